"""Llama-type checkpoints of every group size, with biases, q/k norms, tied or not, against transformers.

`python tests/model/test_families.py` makes family_logits.npz anew: what transformers answers, so that the
comparison holds without it. The tests that need transformers itself run where it is installed: pip install
"crucible[peers]", or transformers and torch.
"""

import functools
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from crucible import device
from crucible.kv.slices import Slice
from crucible.model.checkpoint import Checkpoint
from crucible.model.config import ModelConfig
from crucible.model.model import Model
from crucible.model.safetensors import hf_name
from crucible.model.synthetic import open_synthetic
from crucible.numerics import inputs
from crucible.numerics.bits import assert_same_bits

VECTORS = Path(__file__).with_name("family_logits.npz")
BOUND = 1e-4  # of the largest logit
TOKENS = 19
KEPT = 3  # last rows whose logits the vectors hold
QKV = ("attn_q", "attn_k", "attn_v")
FAMILIES = {
    "llama": {},
    "llama-attention-bias": {"biases": frozenset((*QKV, "attn_output"))},
    "llama-mlp-bias": {"biases": frozenset(("ffn_gate", "ffn_up", "ffn_down"))},
    "qwen2": {"architecture": "qwen2", "biases": frozenset(QKV)},
    "qwen3": {"architecture": "qwen3", "qk_norm": True},
}
CASES = [
    f"{family} G{G} D{D} {'tied' if (G + D // 64 + i) % 2 else 'untied'}"
    for (i, family), G, D in itertools.product(enumerate(FAMILIES), range(1, 9), (64, 128))
]
SOME = CASES[::7]


def config_of(case: str) -> ModelConfig:
    """The sizes of a case: two layers of 12 channels a head, one or two KV heads."""
    family, g, d, tied = case.split()
    G, kv_heads = int(g[1:]), 1 + int(g[1:]) % 2
    sizes = {
        "architecture": "llama",
        "layers": 2,
        "hidden": 12 * G * kv_heads,
        "heads": G * kv_heads,
        "kv_heads": kv_heads,
        "head_dim": int(d[1:]),
        "ffn": 160,
        "vocab": 120,
        "context": 64,
        "rope_theta": 10000.0,
        "eps": 1e-5,
        "tied": tied == "tied",
    }
    return ModelConfig(**{**sizes, **FAMILIES[family]})


def weight(config: ModelConfig, name: str) -> np.ndarray:
    """A tensor that matters: scores spread over several units, biases and norms far from 0 and 1."""
    shape, stream = config.tensor_shapes()[name], list(config.tensor_shapes()).index(name)
    if "norm" in name:
        return inputs.uniform(5, stream, shape, 0.5, 1.5)
    if name.endswith("bias"):
        return inputs.normalish(5, stream, shape, 0.4)
    return inputs.normalish(5, stream, shape, 1.0 if name.startswith("token") else 1.5 / shape[1] ** 0.5)


def ids_of(case: str) -> list[int]:
    return (inputs.bits(9, CASES.index(case), TOKENS) % 120).tolist()


def ours(model: Model, ids: list[int]) -> np.ndarray:
    """Logits f32 [T][V] of a prompt, its last three tokens fed one by one."""
    cache = model.new_cache(4, page_seed=1)
    cache.reserve(0, len(ids))
    first = len(ids) - 3
    rows = [model.transformer.forward(ids[:first], [Slice(0, 0, first)], cache, rows=range(first))]
    for at in range(first, len(ids)):
        rows.append(model.transformer.forward(ids[at : at + 1], [Slice(0, at, 1)], cache))
    return np.concatenate([model.device.download(row) for row in rows])


@functools.cache
def checkpoint(case: str) -> Checkpoint:
    config = config_of(case)
    return open_synthetic(config, name=case).with_tensors(lambda name: weight(config, name))


def theirs(case: str, dtype: str, folder: Path | None = None) -> np.ndarray:
    """transformers' logits [T][V] in float32 or float64; the checkpoint is saved to `folder`."""
    import torch
    import transformers

    config = config_of(case)
    kind = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[config.architecture]
    options = {
        "vocab_size": config.vocab,
        "hidden_size": config.hidden,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.eps,
        "tie_word_embeddings": config.tied,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "attn_implementation": "eager",
    }
    if config.architecture == "llama":
        options["attention_bias"] = "attn_output" in config.biases
        options["mlp_bias"] = "ffn_up" in config.biases
    made = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**options))
    state = dict(made.named_parameters())
    with torch.inference_mode():
        for name in config.tensor_shapes():
            state.pop(hf_name(name)).copy_(torch.from_numpy(weight(config, name)))
        assert not state, f"{case}: transformers has {', '.join(state)} beside ours"
        if folder is not None:
            made.save_pretrained(folder)
        made = made.eval().to(getattr(torch, dtype))
        return made(input_ids=torch.tensor([ids_of(case)])).logits[0].numpy().astype(np.float64)


def error(expected: np.ndarray, actual: np.ndarray) -> float:
    """The largest error, as a part of the largest logit."""
    assert np.isfinite(actual).all() and actual.any()
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_that_transformers_gave(case):
    model = Model.from_checkpoint(checkpoint(case), device.get("cpu"))
    with np.load(VECTORS) as found:
        expected = found[case]
    assert expected.shape == (KEPT, 120)
    assert error(expected, ours(model, ids_of(case))[-KEPT:]) < BOUND


@pytest.mark.parametrize("case", SOME)
def test_a_weight_that_is_left_out_is_seen(case):
    config = config_of(case)
    forgotten = [name for name in config.tensor_shapes() if "norm" in name or "bias" in name]
    with np.load(VECTORS) as found:
        expected = found[case]
    for name in forgotten[:: max(1, len(forgotten) // 4)]:

        def read(tensor, name=name):
            made = weight(config, tensor)
            return made if tensor != name else np.full_like(made, "norm" in name)

        model = Model.from_checkpoint(open_synthetic(config).with_tensors(read), device.get("cpu"))
        assert error(expected, ours(model, ids_of(case))[-KEPT:]) > 10 * BOUND, name


@pytest.mark.parametrize("case", SOME)
def test_a_checkpoint_that_transformers_saved_loads_and_agrees(case, tmp_path):
    pytest.importorskip("transformers", reason='needs transformers: pip install "crucible[peers]"')
    expected = theirs(case, "float32", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["num_hidden_layers"] == 2
    from crucible.model.safetensors import open_safetensors

    # What a tokenizer would read is no part of it.
    model = Model.from_checkpoint(open_safetensors(tmp_path), device.get("cpu"))
    found = ours(model, ids_of(case))
    assert error(expected, found) < BOUND and error(theirs(case, "float64"), found) < BOUND


@pytest.mark.parametrize("case", CASES)
def test_the_vectors_are_what_transformers_gives_here(case):
    pytest.importorskip("transformers", reason='needs transformers: pip install "crucible[peers]"')
    with np.load(VECTORS) as found:
        assert error(found[case], theirs(case, "float64")[-KEPT:]) < 1e-6


def same_on(name: str, case: str, mode: str) -> None:
    on_cpu, there = (Model.from_checkpoint(checkpoint(case), device.get(d), mode) for d in ("cpu", name))
    assert_same_bits(ours(on_cpu, ids_of(case)), ours(there, ids_of(case)), f"{case}, {mode}")


@pytest.mark.parametrize("case", SOME[::4])
def test_simt_has_the_bits_of_cpu(case):
    same_on("simt", case, ("f32", "int8")[CASES.index(case) % 2])


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["f32", "int8"])
@pytest.mark.parametrize("case", CASES)
def test_cuda_has_the_bits_of_cpu(case, mode):
    same_on("cuda", case, mode)


if __name__ == "__main__":
    np.savez_compressed(
        VECTORS, **{case: theirs(case, "float64")[-KEPT:].astype(np.float32) for case in CASES}
    )
    print(f"{VECTORS}: {len(CASES)} cases, {VECTORS.stat().st_size} bytes")
