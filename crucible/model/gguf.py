"""GGUF files: a small bounds-checked reader of the container, and llama's Q/K row order undone."""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crucible.errors import InputError, UnsupportedError
from crucible.files import brief, map_file
from crucible.linear.weights import STORAGES
from crucible.model import config as configs
from crucible.model.bpe import from_gguf as tokenizer_from_gguf
from crucible.model.bpe import gguf_strings
from crucible.model.checkpoint import Checkpoint, check_tensors
from crucible.model.dequantize import ENCODINGS, Encoding

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
_MAX_DEPTH = 4  # nesting of arrays in metadata; real files use 1

# Value types of metadata -> NumPy dtype of a scalar; strings and arrays are read by `_Cursor.value`.
_SCALARS = {
    **{0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 10: "<u8", 11: "<i8"},
    **{6: "<f4", 7: "|b1", 12: "<f8"},
}
_STRING, _ARRAY = 8, 9

# Names of the tensor types that version 1 does not cover, for the refusal.
_OTHER_TYPES = {
    **{2: "Q4_0", 6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K"},
    **{
        14: "Q6_K",
        15: "Q8_K",
        16: "IQ2_XXS",
        17: "IQ2_XS",
        18: "IQ3_XXS",
        19: "IQ1_S",
        20: "IQ4_NL",
        21: "IQ3_S",
    },
    **{22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M"},
    **{34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"},
}


@dataclass(frozen=True)
class Tensor:
    """Place of one tensor in the file; `shape` is [out][in] (GGUF stores the innermost extent first)."""

    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    start: int
    size: int


class _Cursor:
    """Reads little-endian values and never past the end of the file."""

    def __init__(self, data: memoryview, where: str):
        self.data, self.where, self.at = data, where, 0

    def take(self, size: int, what: str) -> memoryview:
        if size > len(self.data) - self.at:
            raise InputError(
                f"{self.where} is truncated or corrupt: {what} needs {size} bytes at offset {self.at}, "
                f"the file has {len(self.data)}"
            )
        self.at += size
        return self.data[self.at - size : self.at]

    def unpack(self, code: str, what: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))[0]

    def string(self, what: str) -> str:
        raw = self.take(self.unpack("Q", what), what)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{self.where} is corrupt: {what} is not UTF-8 text") from None

    def strings(self, count: int, what: str) -> list[str]:
        """`count` strings; vocabularies are long, so this loop does without a call per field."""
        found, at, end, read = [], self.at, len(self.data), struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at + 8 > end or (stop := at + 8 + read(self.data, at)[0]) > end:
                self.at = at
                self.string(what)  # refuses, with the place
            raw = self.data[at + 8 : stop]
            try:
                found.append(str(raw, "utf-8"))
            except UnicodeDecodeError:
                raise InputError(f"{self.where} is corrupt: {what} is not UTF-8 text") from None
            at = stop
        self.at = at
        return found

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            inner, count = self.unpack("I", what), self.unpack("Q", what)
            if inner in _SCALARS:
                dtype = np.dtype(_SCALARS[inner])
                return np.frombuffer(self.take(count * dtype.itemsize, what), dtype).copy()
            if inner == _STRING:
                return self.strings(count, what)
            if depth >= _MAX_DEPTH or count > (len(self.data) - self.at) // 12:  # a type and a count each
                raise InputError(f"{self.where} is corrupt: {what} claims {count} nested values")
            return [self.value(inner, what, depth + 1) for _ in range(count)]
        if kind not in _SCALARS:
            raise InputError(f"{self.where} is corrupt: {what} has the unknown value type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self.take(dtype.itemsize, what), dtype)[0].item()


@dataclass(frozen=True)
class Container:
    """An open GGUF file: metadata as Python values (numbers in arrays as NumPy), and where tensors lie."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]
    data: memoryview

    def read(self, name: str) -> np.ndarray:
        """Tensor `name` widened to f32 in the file's own row order."""
        tensor = self.tensors[name]
        return tensor.encoding.widen(self.raw(name), tensor.shape)

    def raw(self, name: str) -> np.ndarray:
        """Bytes of tensor `name`, uint8, in the file's own row order."""
        tensor = self.tensors[name]
        return np.frombuffer(self.data, np.uint8, tensor.size, tensor.start)


def _tensor_info(cursor: _Cursor, index: int) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string(f"the name of tensor {index}")
    what = f"tensor {name}"
    rank = cursor.unpack("I", what)
    if not 1 <= rank <= 4:
        raise InputError(f"{cursor.where} is corrupt: {what} has {rank} dimensions, it must have 1 to 4")
    shape = tuple(cursor.unpack("Q", what) for _ in range(rank))[::-1]
    return name, shape, cursor.unpack("I", what), cursor.unpack("Q", what)


def open_container(path: Path) -> Container:
    """Map the file and read its directory; every extent is checked against the file's length.

    Raises InputError for a missing, truncated or corrupt file and UnsupportedError, naming the
    tensor, for a type other than F32, F16, BF16, Q8_0 and Q4_1.
    """
    data = map_file(path)
    where = path.name
    cursor = _Cursor(data, where)
    magic = bytes(cursor.take(4, "the magic number"))
    if magic != MAGIC:
        raise InputError(f"{where} is not a GGUF file: it starts with {magic!r} instead of {MAGIC!r}")
    version = cursor.unpack("I", "the version")
    if version not in VERSIONS:
        raise UnsupportedError(f"{where}: GGUF version {version} is not covered (versions 2 and 3 are)")
    tensor_count, value_count = cursor.unpack("Q", "the tensor count"), cursor.unpack("Q", "the key count")

    metadata: dict[str, Any] = {}
    for index in range(value_count):
        key = cursor.string(f"metadata key {index}")
        if key in metadata:
            raise InputError(f"{where} is corrupt: the metadata key {brief(key)} is there twice")
        metadata[key] = cursor.value(cursor.unpack("I", f"metadata {key}"), f"metadata {key}")
    infos = [_tensor_info(cursor, index) for index in range(tensor_count)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1:
        raise InputError(
            f"{where} is corrupt: general.alignment is {brief(alignment)}, it must be a positive integer"
        )
    base = -(-cursor.at // alignment) * alignment

    tensors: dict[str, Tensor] = {}
    for name, shape, kind, offset in infos:
        if kind not in ENCODINGS:
            shown = _OTHER_TYPES.get(kind, f"number {kind}")
            raise UnsupportedError(
                f"{where}: tensor {name} has type {shown}, version 1 covers "
                + ", ".join(e.name for e in ENCODINGS.values())
            )
        encoding = ENCODINGS[kind]
        count = math.prod(shape)
        if shape[-1] % encoding.elements:
            raise InputError(
                f"{where} is corrupt: rows of tensor {name} hold {shape[-1]} values, "
                f"{encoding.name} needs a multiple of {encoding.elements}"
            )
        size = count // encoding.elements * encoding.bytes
        if base + offset + size > len(data):
            raise InputError(
                f"{where} is truncated: tensor {name} needs bytes {base + offset} to {base + offset + size}, "
                f"the file has {len(data)}"
            )
        if name in tensors:
            raise InputError(f"{where} is corrupt: tensor {name} is listed twice")
        tensors[name] = Tensor(name, shape, encoding, base + offset, size)
    at = base
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.size)):
        if tensor.start < at:
            raise InputError(
                f"{where} is corrupt: tensor {tensor.name} at byte {tensor.start} overlaps another"
            )
        at = tensor.start + tensor.size
    return Container(path, metadata, tensors, data)


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a llama Q or K projection from GGUF's interleaved rotation pairs to half-split order.

    Head h of the file holds rows (0, D/2, 1, D/2+1, …); the result holds (0, 1, …, D-1). Works on
    a weight [heads*D][in] and on a bias [heads*D].
    """
    half = rows.shape[0] // heads // 2
    pairs = rows.reshape(heads, half, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def open_gguf(path: Path) -> Checkpoint:
    """Checkpoint of a GGUF file of the architectures llama, qwen2 and qwen3; errors as `open_container`."""
    container = open_container(path)
    metadata = container.metadata
    config = configs.from_gguf(metadata, container.tensors)
    check_tensors(path.name, config, {name: tensor.shape for name, tensor in container.tensors.items()})
    heads = {"attn_q": config.heads, "attn_k": config.kv_heads} if config.architecture == "llama" else {}

    def read_tensor(name: str) -> np.ndarray:
        kind = name.split(".")[2] if name.startswith("blk.") else name
        array = container.read(name)
        return unpermute(array, heads[kind]) if kind in heads else array

    def stored(name: str) -> tuple[str, np.ndarray] | None:
        tensor = container.tensors[name]
        storage = tensor.encoding.name.lower()
        if storage not in STORAGES:
            return None
        kind = name.split(".")[2] if name.startswith("blk.") else name
        rows = container.raw(name).reshape(tensor.shape[0], -1)
        return storage, unpermute(rows, heads[kind]) if kind in heads else rows

    where, tokens = "GGUF metadata", gguf_strings(metadata, "tokenizer.ggml.tokens") or []

    def special(key: str) -> int | None:
        key = f"tokenizer.ggml.{key}_token_id"
        return configs.optional(configs.integer, metadata, key, where)

    def spelled(key: str) -> str:
        token = special(key)
        return tokens[token] if token is not None and 0 <= token < len(tokens) else ""

    eos = [special(key) for key in ("eos", "eot", "eom")]
    eos = [token for token in eos if token is not None and 0 <= token < config.vocab]
    return Checkpoint(
        name=configs.optional(configs.text, metadata, "general.name", where) or path.stem,
        source=path,
        config=config,
        read_tensor=read_tensor,
        load_tokenizer=lambda: tokenizer_from_gguf(metadata, config.vocab),
        eos_ids=tuple(dict.fromkeys(eos)),
        chat_template=configs.optional(configs.text, metadata, "tokenizer.chat_template", where),
        bos=spelled("bos"),
        eos=spelled("eos"),
        stored=stored,
    )
