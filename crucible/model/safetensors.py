"""Hugging Face checkpoint folders: config.json, safetensors files (one or sharded), tokenizer.json."""

import json
import math
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crucible.errors import InputError, UnsupportedError
from crucible.model import config as configs
from crucible.model.checkpoint import Checkpoint, check_tensors
from crucible.model.dequantize import widen_bf16
from crucible.model.tokenizer import from_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_MAX_HEADER = 100_000_000  # bytes; the format's own limit

_WIDEN: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "F32": ("<f4", lambda a: a.astype(np.float32)),
    "F16": ("<f2", lambda a: a.astype(np.float32)),
    "BF16": ("<u2", widen_bf16),
}

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def hf_name(name: str) -> str:
    """Hugging Face name of a canonical tensor name."""
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    _, layer, kind, suffix = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[kind]}.{suffix}"


@dataclass(frozen=True)
class _Tensor:
    file: str
    data: memoryview
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path.name} is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path.name} must hold a JSON object, it holds a {type(found).__name__}")
    return found


def _directory(path: Path) -> dict[str, _Tensor]:
    """Tensors of one safetensors file by name, each extent checked against the file's length."""
    try:
        with open(path, "rb") as handle:
            data = memoryview(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        reason = "the file is empty" if isinstance(error, ValueError) else error.strerror
        raise InputError(f"cannot read {path}: {reason}") from None
    where = path.name
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(_MAX_HEADER, len(data) - 8):
        raise InputError(f"{where} is truncated or not a safetensors file: it has {len(data)} bytes, "
                         f"its header claims {length}")  # fmt: skip
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, AttributeError, RecursionError):
        raise InputError(f"{where} is not a safetensors file: its header is not a JSON object") from None
    found = {}
    for name, entry in entries.items():
        try:
            dtype, shape = entry["dtype"], tuple(entry["shape"])
            start, stop = (8 + length + int(offset) for offset in entry["data_offsets"])
            count = math.prod(shape)
            sane = all(isinstance(extent, int) and extent >= 0 for extent in shape)
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{where}: the header entry of tensor {name} is malformed") from None
        if dtype in _WIDEN and (not sane or stop - start != count * np.dtype(_WIDEN[dtype][0]).itemsize):
            raise InputError(f"{where}: {stop - start} bytes do not fit tensor {name}, {dtype} {list(shape)}")
        if start < 8 + length or stop > len(data):
            raise InputError(
                f"{where} is truncated: tensor {name} needs bytes {start} to {stop}, the file has {len(data)}"
            )
        found[name] = _Tensor(where, data, dtype, shape, start, stop)
    return found


def _tensors(folder: Path) -> dict[str, _Tensor]:
    """Tensors of the folder: the index's shards, else model.safetensors."""
    if not (folder / INDEX).exists():
        if not (folder / SINGLE).exists():
            raise InputError(f"{folder} has neither {SINGLE} nor {INDEX}")
        return _directory(folder / SINGLE)
    weight_map = _read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(file, str) and Path(file).name == file for file in weight_map.values()
    ):
        raise InputError(f"{INDEX}: weight_map must map tensor names to file names")
    shards = {file: _directory(folder / file) for file in sorted(set(weight_map.values()))}
    for name, file in weight_map.items():
        if name not in shards[file]:
            raise InputError(f"{INDEX} places tensor {name} in {file}, which does not hold it")
    return {name: shards[file][name] for name, file in weight_map.items()}


def _eos_ids(folder: Path, found: dict[str, Any]) -> tuple[int, ...]:
    eos = found.get("eos_token_id")
    if (folder / "generation_config.json").exists():
        eos = _read_json(folder / "generation_config.json").get("eos_token_id", eos)
    listed = eos if isinstance(eos, list) else [eos]
    return tuple(token for token in listed if isinstance(token, int))


def _token(folder: Path, key: str) -> str:
    """The text of a special token that tokenizer_config.json names, as text or as an object; else ""."""
    path = folder / "tokenizer_config.json"
    value = _read_json(path).get(key) if path.exists() else None
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else ""


def _chat_template(folder: Path) -> str | None:
    if (folder / "chat_template.jinja").exists():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if not (folder / "tokenizer_config.json").exists():
        return None
    template = _read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):  # several named templates
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def open_safetensors(folder: Path) -> Checkpoint:
    """Checkpoint of a Hugging Face folder (Llama, SmolLM2, Qwen2, Qwen2.5, Qwen3).

    F32, F16 and BF16 tensors widen exactly. Raises UnsupportedError naming the key or tensor that
    version 1 does not cover, InputError for missing, truncated or misshapen content.
    """
    found = _read_json(folder / "config.json")
    tensors = _tensors(folder)
    if found.get("tie_word_embeddings") is None:
        found["tie_word_embeddings"] = "lm_head.weight" not in tensors
    config = configs.from_hf(found)
    check_tensors(
        folder.name,
        config,
        {name: tensor.shape for name, tensor in tensors.items()},
        spelled=hf_name,
        # A tied checkpoint may still carry its head; old exports carry rotary frequencies.
        ignore=lambda n: n.endswith("rotary_emb.inv_freq") or (config.tied and n == "lm_head.weight"),
    )
    for name in config.tensor_shapes():
        tensor = tensors[hf_name(name)]
        if tensor.dtype not in _WIDEN:
            raise UnsupportedError(
                f"{tensor.file}: tensor {hf_name(name)} has dtype {tensor.dtype}, version 1 covers "
                + ", ".join(_WIDEN)
            )

    def read_tensor(name: str) -> np.ndarray:
        tensor = tensors[hf_name(name)]
        code, widen = _WIDEN[tensor.dtype]
        raw = np.frombuffer(tensor.data[tensor.start : tensor.stop], code)
        return widen(raw).reshape(tensor.shape)

    def stored(name: str) -> tuple[str, np.ndarray] | None:
        tensor = tensors[hf_name(name)]
        if tensor.dtype != "BF16":
            return None
        raw = np.frombuffer(tensor.data[tensor.start : tensor.stop], np.uint8)
        return "bf16", raw.reshape(tensor.shape[0], -1)

    return Checkpoint(
        name=folder.resolve().name,
        source=folder,
        config=config,
        read_tensor=read_tensor,
        load_tokenizer=lambda: from_json(folder / "tokenizer.json", config.vocab),
        eos_ids=tuple(token for token in _eos_ids(folder, found) if 0 <= token < config.vocab),
        chat_template=_chat_template(folder),
        bos=_token(folder, "bos_token"),
        eos=_token(folder, "eos_token"),
        stored=stored,
    )
