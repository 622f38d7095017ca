"""The forward pass: right against a float64 model of our own, and the same bits however it is cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crucible import device
from crucible.errors import CrucibleError, InputError
from crucible.kv.slices import Slice
from crucible.model.cache import pages_for
from crucible.model.config import BLOCK_LINEARS
from crucible.model.model import Model
from crucible.model.safetensors import open_safetensors
from crucible.numerics.bits import assert_same_bits, same_bits
from crucible.numerics.digest import digest


def forward64(config, weights, ids):
    """Logits [T][V] of a Llama-family model in float64, written from the published definitions."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}

    def norm(x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config.eps) * weight

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    half = config.head_dim // 2
    frequencies = config.rope_theta ** (-np.arange(half) / half)
    angles = np.arange(len(ids))[:, None, None] * frequencies

    def rotate(x):
        a, b = x[..., :half], x[..., half:]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = w["token_embd.weight"][ids]
    visible = np.tril(np.ones((len(ids), len(ids)), bool))
    for layer in range(config.layers):
        p = f"blk.{layer}."
        h = norm(x, w[p + "attn_norm.weight"])
        q, k, v = (
            linear(h, p + kind).reshape(len(ids), -1, config.head_dim)
            for kind in ("attn_q", "attn_k", "attn_v")
        )
        if config.qk_norm:
            q, k = norm(q, w[p + "attn_q_norm.weight"]), norm(k, w[p + "attn_k_norm.weight"])
        q, k = rotate(q), rotate(k)
        k, v = (np.repeat(array, config.heads // config.kv_heads, axis=1) for array in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(config.head_dim)
        scores = np.where(visible, scores, -np.inf)
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        attended = np.einsum("hqk,khd->qhd", weight, v).reshape(len(ids), -1)
        x = x + linear(attended, p + "attn_output")
        h = norm(x, w[p + "ffn_norm.weight"])
        gate = linear(h, p + "ffn_gate")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, p + "ffn_up"), p + "ffn_down")
    head = w["token_embd.weight"] if config.tied else w["output.weight"]
    return norm(x, w["output_norm.weight"]) @ head.T


ATTENTION = frozenset(("attn_q", "attn_k", "attn_v"))
GEOMETRIES = {
    "llama-g1-d64": {"heads": 2, "kv_heads": 2, "head_dim": 64},
    "llama-g2-d32": {"heads": 4, "kv_heads": 2, "head_dim": 32},
    "llama-g3-d64-untied": {"heads": 3, "kv_heads": 1, "head_dim": 64, "tied": False},
    "llama-g8-d128": {"heads": 8, "kv_heads": 1, "head_dim": 128, "hidden": 96},
    "llama-biases": {"heads": 4, "kv_heads": 4, "biases": frozenset(BLOCK_LINEARS)},
    "qwen2-g4-d64": {"architecture": "qwen2", "heads": 4, "kv_heads": 1, "head_dim": 64, "biases": ATTENTION},
    "qwen3-g5-d96": {"architecture": "qwen3", "heads": 5, "kv_heads": 1, "head_dim": 96, "qk_norm": True},
    "qwen3-g2-d128": {"architecture": "qwen3", "heads": 4, "kv_heads": 2, "head_dim": 128, "qk_norm": True},
}


def run(model: Model, ids, cuts=None, page_seed=None, trace=None):
    """Logits of every position, the prompt cut into slices of the given lengths, and the cache."""
    cache = model.new_cache(3 * pages_for(len(ids)), page_seed=page_seed)
    cache.reserve(0, len(ids))
    parts, start = [], 0
    for length in cuts or [len(ids)]:
        part = ids[start : start + length]
        rows = None if len(part) == 1 else range(len(part))  # one row: the recorded decode step
        logits = model.transformer.forward(part, [Slice(0, start, len(part))], cache, rows=rows, trace=trace)
        parts.append(np.array(logits))
        start += length
    return np.concatenate(parts), cache


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_logits_agree_with_a_float64_model(tmp_path, make_tiny, write_checkpoint, name, dtype):
    config = make_tiny(**GEOMETRIES[name]).config
    weights = write_checkpoint(tmp_path, config, dtype)
    model = Model.from_checkpoint(open_safetensors(tmp_path), device.get("cpu"))
    ids = np.random.default_rng(5).integers(0, config.vocab, 41).tolist()
    expected = forward64(config, weights, ids)
    found, _ = run(model, ids, [30, 1, 10])
    # A tolerance by nature: f32 against f64. Weights or rotation out of place give errors near 1.
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert found.any() and error < 2e-5, error
    int8, _ = run(Model.from_checkpoint(open_safetensors(tmp_path), device.get("cpu"), "int8"), ids)
    assert 0 < np.abs(int8 - expected).max() / np.abs(expected).max() < 0.1


@st.composite
def cuts_of(draw, total: int):
    cuts = []
    while (left := total - sum(cuts)) > 0:
        cuts.append(draw(st.integers(1, left)))
    return cuts


@pytest.mark.parametrize("mode", ["f32", "int8"])
@pytest.mark.parametrize("name", ["llama-g3-d64-untied", "qwen2-g4-d64", "qwen3-g5-d96"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_cuts_and_pages_move_no_bit(make_tiny, mode, name, data):
    model = make_tiny(mode, **GEOMETRIES[name])
    ids = np.random.default_rng(8).integers(0, 300, 37).tolist()
    whole, cache = run(model, ids)
    cuts = data.draw(cuts_of(len(ids)))
    found, other = run(model, ids, cuts, page_seed=data.draw(st.one_of(st.none(), st.integers(0, 99))))
    assert_same_bits(whole, found, f"logits, cuts {cuts}")
    for expected, got, pool in zip(cache.read(0, 37), other.read(0, 37), "kv", strict=True):
        assert_same_bits(expected, got, f"{pool} cache, cuts {cuts}")


@pytest.mark.parametrize("mode", ["f32", "int8"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_neighbours_in_a_packed_step_move_no_bit(make_tiny, mode, data):
    model = make_tiny(mode, **GEOMETRIES["llama-g2-d32"])
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=2, max_size=6))
    prompts = [np.random.default_rng(n).integers(0, 300, n + 1).tolist() for n in lengths]
    order = data.draw(st.permutations(range(len(prompts))))
    cache = model.new_cache(4 * len(prompts), len(prompts), page_seed=data.draw(st.integers(0, 9)))
    for request in order:
        cache.reserve(request, len(prompts[request]))
    packed = [token for request in order for token in prompts[request][:-1]]
    slices = [Slice(request, 0, lengths[request]) for request in order]
    first = np.array(model.transformer.forward(packed, slices, cache))
    # Then one decode step of everybody, in another order.
    again = data.draw(st.permutations(range(len(prompts))))
    steps = [Slice(request, lengths[request], 1) for request in again]
    second = np.array(model.transformer.forward([prompts[r][-1] for r in again], steps, cache))
    for request, prompt in enumerate(prompts):
        alone, _ = run(model, prompt)
        assert_same_bits(alone[-2], first[order.index(request)], f"prefill of request {request}")
        assert_same_bits(alone[-1], second[again.index(request)], f"decode of request {request}")


def test_a_replayed_step_equals_a_fresh_one_after_other_work(make_tiny):
    model = make_tiny(**GEOMETRIES["llama-g1-d64"])
    ids = np.random.default_rng(2).integers(0, 300, 60).tolist()
    whole, _ = run(model, ids)
    # A long chunk between two decode steps must not disturb the recorded buffers.
    found, _ = run(model, ids, [1, 1, 30, 1, 20, 1, 1, 5])
    assert_same_bits(whole, found)


@pytest.mark.parametrize("own", [True, False])
def test_logits_belong_to_the_caller_unless_they_are_lent(make_tiny, own):
    model = make_tiny(**GEOMETRIES["llama-g1-d64"])
    cache = model.new_cache(1, 1)
    cache.reserve(0, 4)
    step = model.transformer.forward
    first = step([5], [Slice(0, 0, 1)], cache, own=own)
    kept = first.copy()
    second = step([6], [Slice(0, 1, 1)], cache, own=own)
    assert not same_bits(kept, second)
    assert_same_bits(kept if own else second, first)


def test_variants_of_attention_are_the_same_model(make_tiny):
    model = make_tiny(**GEOMETRIES["llama-g2-d32"])
    ids = list(range(40))
    cache = model.new_cache(3)
    cache.reserve(0, 40)
    found = {
        variant: np.array(model.transformer.forward(ids, [Slice(0, 0, 40)], cache, variant=variant))
        for variant in ("reference", "exact", "auto")
    }
    assert len({digest(array) for array in found.values()}) == 1
    with pytest.raises(InputError, match="nonsense"):
        model.transformer.forward(ids, [Slice(0, 0, 40)], cache, variant="nonsense")


@pytest.mark.parametrize(
    ("ids", "slices", "named"),
    [
        ([1, 300], [Slice(0, 0, 2)], "300"),
        ([1, -1], [Slice(0, 0, 2)], "-1"),
        ([1.5, 2.0], [Slice(0, 0, 2)], "integers"),
        ([1, 2, 3], [Slice(0, 0, 2)], "3 token ids"),
        ([1, 2], [Slice(1, 0, 2)], "1"),
        ([1, 2], [Slice(0, 31, 2)], "33"),
        ([1, 2], [Slice(0, 127, 2)], "129"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_before_the_device(make_tiny, ids, slices, named):
    model = make_tiny()
    cache = model.new_cache(2)
    cache.reserve(0, 32)
    with pytest.raises(CrucibleError) as refused:
        model.transformer.forward(ids, slices, cache)
    assert named in str(refused.value) and "\n" not in str(refused.value)


def test_released_pages_are_refused_and_come_back(make_tiny):
    model = make_tiny()
    cache = model.new_cache(4, 2)
    cache.reserve(0, 40)
    with pytest.raises(CrucibleError):
        cache.reserve(1, 40)
    cache.release(0)
    with pytest.raises(InputError):
        model.transformer.forward([1], [Slice(0, 0, 1)], cache)
    assert len(cache.reserve(1, 40)) == 3
    assert len(cache.reserve(1, 64)) == 4  # grows, keeping its pages
    cache.pages.check()
    with pytest.raises(InputError, match="context of 128"):
        cache.reserve(0, 129)
