"""Models of the model tests: SmolLM2 loaded once a session, and tiny random checkpoints."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest

from crucible import device
from crucible.model import synthetic
from crucible.model.config import ModelConfig
from crucible.model.fetch import fetch
from crucible.model.model import Model
from crucible.model.safetensors import hf_name


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    """The SmolLM2 GGUF file, fetched on first use."""
    return fetch("smollm2")


@functools.cache
def _smollm2(mode: str) -> Model:
    fetch("smollm2")
    return Model.load("smollm2", device="cpu", mode=mode)


@pytest.fixture(params=["f32", "int8"])
def smollm2(request) -> Model:
    """SmolLM2 on the cpu device, once per mode; loaded once a session."""
    return _smollm2(request.param)


@pytest.fixture(scope="session")
def smollm2_f32() -> Model:
    """SmolLM2 in f32; the same object as `smollm2` in that mode."""
    return _smollm2("f32")


@pytest.fixture(scope="session")
def chat_vector() -> dict[str, np.ndarray]:
    """The whole-model vector: one prompt, its tokens, digests and traces."""
    with np.load(Path(__file__).parents[1] / "vectors" / "smollm2_chat.npz") as found:
        return dict(found)


def tiny_config(**changes) -> ModelConfig:
    """A two-layer llama of 64 channels over a vocabulary of 300."""
    sizes = {
        "architecture": "llama",
        "layers": 2,
        "hidden": 64,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 32,
        "ffn": 96,
        "vocab": 300,
        "context": 128,
        "rope_theta": 10000.0,
        "eps": 1e-5,
        "tied": True,
    }
    return ModelConfig(**{**sizes, **changes})


@pytest.fixture(scope="session")
def make_tiny():
    """Maker of tiny random models: make_tiny(mode, seed, on, **config changes) -> Model, cached."""

    @functools.cache
    def make(mode: str = "f32", seed: int = 7, on: str = "cpu", **changes) -> Model:
        checkpoint = synthetic.open_synthetic(tiny_config(**changes), seed, "tiny")
        return Model.from_checkpoint(checkpoint, device.get(on), mode)

    return make


_STORED = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def _stored(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "BF16":  # truncation: any upper half is a bfloat16
        return (array.view(np.uint32) >> 16).astype(np.uint16)
    return array.astype(_STORED[dtype])


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], dtype: str) -> None:
    """One safetensors file: 8 bytes of header length, the JSON header, the data."""
    header, blobs, at = {}, [], 0
    for name, array in tensors.items():
        blob = _stored(array, dtype).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def hf_config(config: ModelConfig) -> dict:
    """The config.json of a config."""
    return {
        "architectures": [_CLASSES[config.architecture]],
        "model_type": config.architecture,
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ffn,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.eps,
        "tie_word_embeddings": config.tied,
        "hidden_act": "silu",
        "attention_bias": config.architecture == "llama" and "attn_q" in config.biases,
        "mlp_bias": "ffn_up" in config.biases,
        "eos_token_id": 299,
    }


def byte_tokenizer_json() -> str:
    """A tokenizer.json with the 256 bytes as tokens and a control token <|end|> (id 256)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return inner.to_str()


@pytest.fixture(scope="session")
def write_checkpoint():
    """Writer of tiny Hugging Face folders; returns canonical name -> f32 weight as stored."""

    def write(folder: Path, config: ModelConfig, dtype: str = "F32", shards: int = 1, seed: int = 11) -> dict:
        folder.mkdir(parents=True, exist_ok=True)
        weights = {n: synthetic.synthetic_tensor(config, n, seed) for n in config.tensor_shapes()}
        stored = {n: _stored(w, dtype) for n, w in weights.items()}
        widened = {
            n: (s.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else s.astype(np.float32)
            for n, s in stored.items()
        }
        named = {hf_name(n): w for n, w in weights.items()}
        if shards == 1:
            write_safetensors(folder / "model.safetensors", named, dtype)
        else:
            weight_map = {}
            for index in range(shards):
                file = f"model-{index + 1:05}-of-{shards:05}.safetensors"
                part = dict(list(named.items())[index::shards])
                write_safetensors(folder / file, part, dtype)
                weight_map.update(dict.fromkeys(part, file))
            (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        (folder / "config.json").write_text(json.dumps(hf_config(config)))
        (folder / "tokenizer.json").write_text(byte_tokenizer_json())
        return widened

    return write


@pytest.fixture
def folder(tmp_path, make_tiny, write_checkpoint):
    """A tiny llama folder in F32."""
    write_checkpoint(tmp_path / "model", make_tiny().config)
    return tmp_path / "model"
