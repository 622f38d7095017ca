"""Checks of a launch that simt and cuda share: geometry, argument count, types and sizes."""

import functools
from dataclasses import dataclass

import numpy as np

from crucible.device.checks import is_vouched
from crucible.errors import InputError

MAX_THREADS = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True)
class Parameter:
    """One kernel parameter: kind f, i, u or s (struct), bytes; for a pointer these describe its pointee.

    `kind` "?" means unknown: only the size was recorded (a CUBIN keeps no types).
    """

    kind: str
    size: int
    pointer: bool = False
    writable: bool = False


def parse_signature(text: str) -> tuple[Parameter, ...]:
    """Parameters out of the host build's text, for example "Pf4 pf4 i4": const float*, float*, int."""
    parameters = []
    for word in text.split():
        pointer = word[0] in "pP"
        body = word[1:] if pointer else word
        parameters.append(Parameter(body[0], int(body[1:]), pointer, word[0] == "p"))
    return tuple(parameters)


def extent(value, what: str) -> tuple[int, int, int]:
    """`value` (an int or up to three) as three ints within CUDA's limits for `what` (grid or block)."""
    return _extent(value if isinstance(value, (int, np.integer)) else tuple(value), what)


@functools.lru_cache(4096)
def _extent(value, what: str) -> tuple[int, int, int]:
    sizes = value if isinstance(value, tuple) else (value,)
    if not 1 <= len(sizes) <= 3:
        raise InputError(f"{what} {value!r} must have one to three extents")
    sizes = tuple(int(s) for s in sizes) + (1,) * (3 - len(sizes))
    for axis, size, limit in zip("xyz", sizes, MAX_GRID if what == "grid" else MAX_BLOCK, strict=True):
        if not 1 <= size <= limit:
            raise InputError(f"{what}.{axis} is {size}; it must be 1 to {limit}")
    if what == "block" and sizes[0] * sizes[1] * sizes[2] > MAX_THREADS:
        raise InputError(
            f"block {sizes} has {sizes[0] * sizes[1] * sizes[2]} threads; the limit is {MAX_THREADS}"
        )
    return sizes


def check_shared(kernel: str, shared: int, limit: int) -> int:
    """Dynamic shared memory in bytes, refused above the device's `limit`."""
    if not 0 <= shared <= limit:
        raise InputError(
            f"kernel {kernel} asks for {shared} bytes of dynamic shared memory; the limit here is {limit}"
        )
    return int(shared)


def check_arguments(kernel: str, parameters: tuple[Parameter, ...], args, is_array) -> None:
    """Refuse arguments whose number, kind or size differ from the kernel's parameters, before any launch.

    `is_array(x)` tells this device's arrays. Scalars must be NumPy scalars of the exact type:
    a Python int has no width.
    """
    if is_vouched():
        return
    if len(args) != len(parameters):
        raise InputError(f"kernel {kernel} takes {len(parameters)} arguments, {len(args)} given")
    for i, (p, arg) in enumerate(zip(parameters, args, strict=True)):
        where = f"argument {i} of kernel {kernel}"
        if is_array(arg):
            _check_array(where, p, arg)
        elif isinstance(arg, np.generic):
            if p.pointer or arg.dtype.itemsize != p.size or (p.kind != "?" and arg.dtype.kind != p.kind):
                raise InputError(f"{where} is a {arg.dtype} scalar; the kernel takes {_spell(p)}")
        elif arg is None and (p.pointer or p == Parameter("?", 8)):
            continue
        else:
            raise InputError(
                f"{where} is a {type(arg).__module__}.{type(arg).__qualname__}; pass a C-contiguous array "
                "of this device or a NumPy scalar of the exact type"
            )


def _check_array(where: str, p: Parameter, array) -> None:
    if not (p.pointer or (p.kind == "?" and p.size == 8)):
        raise InputError(f"{where} is an array; the kernel takes {_spell(p)}")
    if not array.flags.c_contiguous:
        raise InputError(f"{where} is not C-contiguous; copy it first")
    if not p.pointer or p.kind == "s":
        return
    if array.dtype.itemsize != p.size or array.dtype.kind != p.kind:
        raise InputError(f"{where} has dtype {array.dtype}; the kernel takes {_spell(p)}")
    if p.writable and not getattr(array.flags, "writeable", True):
        raise InputError(f"{where} is read-only, but the kernel writes through it")


def _spell(p: Parameter) -> str:
    names = {"f": "float", "i": "int", "u": "uint", "s": "struct", "?": "value of"}
    kind = names[p.kind] + (str(8 * p.size) if p.kind in "fiu" else f" {p.size} bytes")
    return f"a pointer to {kind}" if p.pointer else f"a {kind}"
