"""Conformance vector files: what arrays each kind holds, and a reader that refuses anything else."""

import os
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crucible.errors import InputError
from crucible.files import open_regular, shown

_CASES = {
    "case_logits": "i4 c",
    "case_temperature": "f4 c",
    "case_top_k": "i4 c",
    "case_top_p": "f8 c",
    "case_seed": "u8 c",
    "case_n": "u4 c",
    "case_token": "i4 c",
    "case_kept": "i4 c",
}
_TRACE = "embed l0_attn_norm l0_q l0_k l0_v l0_q_rot l0_k_rot l0_attn l0_attn_out l0_after_attn l0_ffn_norm"
_TRACE += " l0_swiglu l0_after_ffn last_hidden final_norm"
_DIGESTS = ("logits", "k0", "v0", "k29", "v29", "k_all", "v_all")

# Arrays of each kind as "dtype dimensions". A name of a dimension has one extent in a file; `{i}` stands for
# a number or a mode, and each value that occurs must occur in every array of the kind that has it.
KINDS: dict[str, dict[str, str]] = {
    "exp": {"exp_x": "f4 n", "exp_y": "f4 n", "sigmoid_g": "f4 m", "sigmoid_y": "f4 m"},
    "sums": {
        **{"x": "f4 n", "offsets": "i4 S+1", "sum256": "f4 S", "sumsq256": "f4 S"},
        **{"tree32_p": "f4 t 32", "tree32": "f4 t"},
    },
    "attention": {
        **{"q": "f4 R Hq D", "kpool": "f4 pages layers 16 kv", "vpool": "f4 pages layers 16 kv"},
        **{"tables": "i4 requests stride", "Hkv": "i4", "layer": "i4", "desc": "i4 S 4", "out": "f4 R Hq D"},
    },
    "linear_f32": {
        **{"x": "f4 T K", "w": "f4 N K", "bias": "f4 N", "y": "f4 T N", "y_bias": "f4 T N"},
        **{"sub_x": "f4 a K", "sub_w": "f4 b K", "sub_y": "f4 a b"},
        **{"negzero_x": "f4 c K", "negzero_w": "f4 d K", "negzero_y": "f4 c d"},
    },
    "linear_i8": {
        **{"x": "f4 T K", "w": "f4 N K", "qw": "i1 N K", "s_w": "f4 N", "q": "i2 T K", "hi": "i1 T K"},
        **{"lo": "i1 T K", "A": "f4 T", "T": "i8 T N", "y": "f4 T N", "embed": "f4 E K"},
    },
    "rmsnorm": {
        **{"eps": "f4 2", "x_{i}": "f4 T{i} N{i}", "w_{i}": "f4 N{i}"},
        **{"y_{i}_eps0": "f4 T{i} N{i}", "y_{i}_eps1": "f4 T{i} N{i}"},
    },
    "rope": {
        **{"positions": "i4 P", "theta_{i}": "f4", "D_{i}": "i4", "f_{i}": "f4 h{i}"},
        **{
            "cos_{i}": "f4 P h{i}",
            "sin_{i}": "f4 P h{i}",
            "x_{i}": "f4 P H{i} D{i}",
            "y_{i}": "f4 P H{i} D{i}",
        },
    },
    "swiglu": {"g": "f4 n", "u": "f4 n", "h": "f4 n", "res_x": "f4 m", "res_y": "f4 m", "res_z": "f4 m"},
    "sampling": {
        **{"logits": "f4 l", "offsets": "i4 L+1", "greedy": "i4 L", **_CASES, "case_u": "f8 c"},
        **{"u_logits": "i4 u", "u_temperature": "f4 u", "u_top_k": "i4 u", "u_top_p": "f8 u", "u_u": "f8 u"},
        **{"u_token": "i4 u", "u_kept": "i4 u", "rank_big": "i4 b", "rank_ties": "i4 t"},
    },
    "philox": {
        **{"ctr": "u4 n 4", "key": "u4 n 2", "out": "u4 n 4"},
        **{"draw_seed": "u8 s", "draw_n": "u4 d", "draw_u": "f8 s d"},
    },
    "gumbel": {
        **{"logits": "f4 l", "offsets": "i4 L+1", **_CASES},
        **{"ln_v": "f8 v", "ln_y": "f8 v", "logprobs": "f8 p"},
    },
    "smollm2_chat": {
        **{"text": "U", "ids": "i4 T", "temperature": "f4", "top_k": "i4", "top_p": "f8", "seed": "u8"},
        **{f"{{i}}_{name}_digest": "U" for name in _DIGESTS},
        **{"{i}_greedy": "i4 steps", "{i}_seeded": "i4 steps", "{i}_logits": "f4 V"},
        **{"{i}_greedy_step_digests": "U steps", "{i}_seeded_step_digests": "U steps"},
        **{f"{{i}}_trace_{name}": f"f4 {name}" for name in _TRACE.split()},
        **{"weight_names": "U w", "weight_digests": "U w", "int8_q_digests": "U z", "int8_s_digests": "U z"},
    },
}
OPTIONAL: dict[str, dict[str, str]] = {
    "attention": {"chunk_q": "f4 C Hq D", "chunk_desc": "i4 B 4", "chunk_out": "f4 C Hq D"}
}


# What NumPy and zipfile raise for a file that is cut, altered or something else.
_DAMAGE = (OSError, ValueError, EOFError, KeyError, NotImplementedError, SyntaxError)
_DAMAGE += (RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)


@dataclass(frozen=True)
class VectorFile:
    """One checked file: its kind and its arrays by name."""

    path: Path
    kind: str
    arrays: Mapping[str, np.ndarray]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def indices(self, pattern: str) -> list[str]:
        """The values of `{i}` for which `pattern` is in the file."""
        found = (_match(pattern, name) for name in self.arrays)
        return [i for i in found if i is not None]


def find(paths: list[Path]) -> list[Path]:
    """Vector files named by the paths; a folder stands for its .npz files in order of name."""
    files: list[Path] = []
    for path in paths:
        if os.path.isdir(path):
            inside = sorted(path.glob("*.npz"))
            if not inside:
                raise InputError(f"folder {path} holds no .npz file; name a folder of vectors")
            files += inside
        elif os.path.exists(path):
            files.append(path)
        else:
            raise InputError(f"{shown(path)} does not exist; name a vector file or a folder of them")
    if not files:
        raise InputError("no vector files were named; give a file or a folder")
    return files


def _is_other(handle) -> bool:
    """Whether NumPy would take the file for a pickle, and advise to load it unsafely."""
    begin = handle.read(6)
    handle.seek(0)
    return bool(begin) and begin[:2] != b"PK" and begin != b"\x93NUMPY"


def read(path: Path) -> VectorFile:
    """Read and check one file; InputError with one sentence when it is damaged or not of the format."""
    handle = open_regular(path)
    try:
        if _is_other(handle):
            raise InputError(
                f"{path} is damaged or no .npz archive (it does not begin like one); copy it again"
            )
        archive = np.load(handle, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise InputError(f"{path} is a single array; vectors are .npz archives")
        with archive:
            arrays = {name: archive[name] for name in archive.files}
    except InputError:
        raise
    except _DAMAGE as bad:
        why = (str(bad).splitlines() or [type(bad).__name__])[0].rstrip(".")
        raise InputError(f"{path} is damaged or no .npz archive ({why}); copy it again") from bad
    finally:
        handle.close()
    kind = _kind(path, set(arrays))
    _check(path, kind, arrays)
    return VectorFile(path, kind, arrays)


def _match(pattern: str, name: str) -> str | None:
    found = re.fullmatch(re.escape(pattern).replace(r"\{i\}", r"(\d+|f32|int8)"), name)
    return (found.group(1) if found.groups() else "") if found else None


def _kind(path: Path, names: set[str]) -> str:
    def known(kind: str) -> int:
        patterns = {**KINDS[kind], **OPTIONAL.get(kind, {})}
        return sum(any(_match(p, name) is not None for p in patterns) for name in names)

    # The kind that explains the most arrays, and of two the one that lacks least.
    best = max(KINDS, key=lambda kind: (known(kind), -len(KINDS[kind])))
    if known(best) == 0:
        raise InputError(f"{path} holds none of the arrays of any kind of vectors; nothing can be compared")
    return best


def _check(path: Path, kind: str, arrays: dict[str, np.ndarray]) -> None:
    required, optional = KINDS[kind], OPTIONAL.get(kind, {})
    seen: dict[str, set[str]] = {pattern: set() for pattern in (*required, *optional)}
    extents: dict[str, int] = {}
    for name, array in arrays.items():
        hits = [(p, i) for p in seen if (i := _match(p, name)) is not None]
        if not hits:
            raise InputError(f"{path}: array {name} is no part of the {kind} vectors, so nothing checks it")
        pattern, i = hits[0]
        seen[pattern].add(i)
        _check_array(path, name, array, {**required, **optional}[pattern].replace("{i}", i), extents)
    families = set().union(*(seen[p] for p in required if "{i}" in p))
    for pattern in required:
        for i in sorted(families) if "{i}" in pattern else [""]:
            if i not in seen[pattern]:
                raise InputError(f"{path} lacks array {pattern.replace('{i}', i)} of the {kind} vectors")
        if "{i}" in pattern and not families:
            raise InputError(f"{path} lacks array {pattern} of the {kind} vectors")
    present = [p for p in optional if seen[p]]
    if present and len(present) != len(optional):
        missing = next(p for p in optional if not seen[p])
        raise InputError(f"{path} has array {present[0]} but lacks {missing}; they belong together")


def _check_array(path: Path, name: str, array: np.ndarray, spec: str, extents: dict[str, int]) -> None:
    dtype, *dimensions = spec.split()
    right = array.dtype.kind == "U" if dtype == "U" else array.dtype == np.dtype(dtype)
    if not right:
        raise InputError(f"{path}: array {name} has dtype {array.dtype}, the format says {dtype}")
    if array.ndim != len(dimensions) or not array.size:
        wanted = f"[{']['.join(dimensions)}], not empty" if dimensions else "one number"
        raise InputError(f"{path}: array {name} has shape {array.shape}, the format says {wanted}")
    for dimension, extent in zip(dimensions, array.shape, strict=True):
        if dimension.endswith("+1"):
            dimension, extent = dimension[:-2], extent - 1
        wanted = int(dimension) if dimension.isdigit() else extents.setdefault(dimension, extent)
        if wanted != extent:
            raise InputError(f"{path}: array {name} has {extent} along {dimension}, others {wanted}")
