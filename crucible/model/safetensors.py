"""Hugging Face checkpoint folders: config.json, safetensors files (one or sharded), tokenizer.json."""

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crucible.errors import InputError, UnsupportedError
from crucible.files import brief, map_file, read_text
from crucible.model import config as configs
from crucible.model.bpe import from_json
from crucible.model.checkpoint import Checkpoint, check_tensors
from crucible.model.dequantize import widen_bf16

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_MAX_HEADER = 100_000_000  # bytes; the format's own limit
_MAX_RANK = 8

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
    text = read_text(path)
    try:
        found = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path.name} is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path.name} must hold a JSON object, it holds a {type(found).__name__}")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, refused (ValueError) where two members have one name: readers differ in which counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {brief(next(n for n in names if names.count(n) > 1))} is there twice")
    return found


def _whole(value: Any, least: int = 0) -> bool:
    return type(value) is int and least <= value < 1 << 63


def _entry(entry: Any) -> tuple[str, tuple[int, ...], int, int] | None:
    """(dtype, shape, start, stop) of a tensor's entry in the header; None where it is malformed."""
    if not isinstance(entry, dict):
        return None
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
        return None
    if len(shape) > _MAX_RANK or not all(map(_whole, shape)):
        return None
    if len(offsets) != 2 or not all(map(_whole, offsets)) or offsets[0] > offsets[1]:
        return None
    return dtype, tuple(shape), *offsets


def _directory(path: Path) -> dict[str, _Tensor]:
    """Tensors of one safetensors file by name; their extents must fill the file, each byte once."""
    data = map_file(path)
    where = path.name
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(_MAX_HEADER, len(data) - 8):
        raise InputError(f"{where} is truncated or not a safetensors file: it has {len(data)} bytes, "
                         f"its header claims {length}")  # fmt: skip
    try:
        header = json.loads(bytes(data[8 : 8 + length]), object_pairs_hook=_unique)
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, AttributeError, RecursionError) as error:
        why = f" ({error})" if "twice" in str(error) else ""
        raise InputError(f"{where} is not a safetensors file: its header is not a JSON object{why}") from None
    found = {}
    for name, entry in entries.items():
        read = _entry(entry)
        if read is None:
            raise InputError(f"{where}: the header entry of tensor {name} is malformed: {brief(entry, 120)}")
        dtype, shape, start, stop = read
        start, stop = start + 8 + length, stop + 8 + length
        if dtype in _WIDEN and stop - start != math.prod(shape) * np.dtype(_WIDEN[dtype][0]).itemsize:
            raise InputError(f"{where}: {stop - start} bytes do not fit tensor {name}, {dtype} {list(shape)}")
        if stop > len(data):
            raise InputError(
                f"{where} is truncated: tensor {name} needs bytes {start} to {stop}, the file has {len(data)}"
            )
        found[name] = _Tensor(where, data, dtype, shape, start, stop)
    at = 8 + length
    for name, tensor in sorted(found.items(), key=lambda item: (item[1].start, item[1].stop)):
        if tensor.start != at:
            what = "overlaps another" if tensor.start < at else f"leaves a gap of {tensor.start - at} bytes"
            raise InputError(f"{where} is corrupt: tensor {name} at byte {tensor.start} {what}")
        at = tensor.stop
    if at != len(data):
        raise InputError(f"{where} is corrupt: no tensor holds its last {len(data) - at} bytes")
    return found


def _tensors(folder: Path) -> dict[str, _Tensor]:
    """Tensors of the folder: the index's shards, else model.safetensors."""
    if not os.path.lexists(folder / INDEX):
        if not os.path.lexists(folder / SINGLE):
            raise InputError(f"{folder} has neither {SINGLE} nor {INDEX}")
        return _directory(folder / SINGLE)
    weight_map = _read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(file, str) and file and Path(file).name == file for file in weight_map.values()
    ):
        raise InputError(f"{INDEX}: weight_map must map tensor names to file names")
    shards = {file: _directory(folder / file) for file in sorted(set(weight_map.values()))}
    for name, file in weight_map.items():
        if name not in shards[file]:
            raise InputError(f"{INDEX} places tensor {brief(name)} in {file}, which does not hold it")
    return {name: shards[file][name] for name, file in weight_map.items()}


def _optional_json(path: Path) -> dict[str, Any]:
    return _read_json(path) if os.path.lexists(path) else {}


def _eos_ids(folder: Path, found: dict[str, Any]) -> tuple[int, ...]:
    where = "generation_config.json"
    own = _optional_json(folder / where)
    if "eos_token_id" not in own:
        own, where = found, "config.json"
    eos = own.get("eos_token_id")
    listed = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(type(token) is int for token in listed):
        raise InputError(f"{where}: eos_token_id is {brief(eos)}, it must be a token id or a list of them")
    return tuple(listed)


def _token(folder: Path, key: str) -> str:
    """The text of a special token that tokenizer_config.json names, as text or as an object; else ""."""
    value = _optional_json(folder / "tokenizer_config.json").get(key)
    text = value.get("content") if isinstance(value, dict) else "" if value is None else value
    if not isinstance(text, str):
        raise InputError(f"tokenizer_config.json: {key} is {brief(value)}, it must be a token's text")
    return text


def _chat_template(folder: Path) -> str | None:
    if os.path.lexists(folder / "chat_template.jinja"):
        return read_text(folder / "chat_template.jinja")
    template = _optional_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):  # several named templates
        entries = [entry for entry in template if isinstance(entry, dict)]
        if len(entries) < len(template) or not all(isinstance(e.get("name"), str) for e in entries):
            raise InputError("tokenizer_config.json: chat_template lists an entry without a name")
        template = next((e.get("template") for e in entries if e["name"] == "default"), None)
    if not isinstance(template, str | None):
        raise InputError(f"tokenizer_config.json: chat_template is {brief(template)}, it must be text")
    return template


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
                f"{tensor.file}: tensor {hf_name(name)} has dtype {brief(tensor.dtype)}, version 1 covers "
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
        spelled=hf_name,
    )
