"""Checks of array arguments before a launch: dtype, shape and layout, each refused with one sentence."""

import contextlib
import threading
from collections.abc import Iterator

import numpy as np

from crucible.errors import InputError

_thread = threading.local()


@contextlib.contextmanager
def vouched() -> Iterator[None]:
    """Leave out the checks of this module and of launches in this thread.

    For calls that repeat, on arrays of the same shapes and places, calls that were checked: the layers of a
    pass after its first. A check costs as much as the launch that it guards.
    """
    before, _thread.vouched = is_vouched(), True
    try:
        yield
    finally:
        _thread.vouched = before


def is_vouched() -> bool:
    """Whether this thread is inside `vouched`."""
    return getattr(_thread, "vouched", False)


def expect_array(name: str, array) -> None:
    """Refuse anything that is no array: None, lists, text, scalars."""
    if isinstance(array, np.ndarray):
        return
    parts = ("dtype", "shape", "strides", "flags", "ndim")
    if isinstance(array, np.generic) or not all(hasattr(array, part) for part in parts):
        raise InputError(f"{name} is {type(array).__name__}; it must be an array of the device")


def expect(name: str, array, dtype, shape: tuple[int | None, ...] | None) -> None:
    """Refuse `array` unless it has this dtype, this shape and is C-contiguous.

    None for an extent, or for the whole shape, matches any.
    """
    if is_vouched():
        return
    expect_array(name, array)
    shape = tuple(array.shape) if shape is None else shape
    if array.dtype != dtype:
        raise InputError(f"{name} has dtype {array.dtype}; it must be {np.dtype(dtype).name}")
    if len(array.shape) != len(shape) or any(
        want is not None and have != want for have, want in zip(array.shape, shape, strict=True)
    ):
        wanted = "][".join("any" if want is None else str(want) for want in shape)
        raise InputError(f"{name} has shape {tuple(array.shape)}; it must be [{wanted}]")
    if not array.flags.c_contiguous:
        raise InputError(f"{name} of shape {tuple(array.shape)} is not C-contiguous; copy it first")


def expect_out(name: str, out, dtype, shape: tuple[int | None, ...], inputs=(), like=()) -> None:
    """Refuse `out` as `expect` does, and where it is read-only or overlaps what the launch reads.

    inputs: arrays that it must not touch; like: arrays that it may be (the same elements), not overlap.
    """
    if is_vouched():
        return
    expect(name, out, dtype, shape)
    if not getattr(out.flags, "writeable", True):
        raise InputError(
            f"{name} of shape {tuple(out.shape)} is read-only; pass an array that may be written"
        )
    if not out.size:
        return
    first, last = _span(out)
    for array in (*inputs, *like):
        if array is None or not array.size:
            continue
        start, stop = _span(array)
        if start >= last or first >= stop:
            continue
        same = (start, array.strides, array.shape) == (first, out.strides, out.shape)
        if same and any(array is other for other in like):
            continue
        raise InputError(
            f"{name} of shape {tuple(out.shape)} overlaps an input of shape {tuple(array.shape)}; "
            "pass memory of its own"
        )


def _address(array) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def _span(array) -> tuple[int, int]:
    """Addresses of the first byte and past the last of an array that is not empty; no stride is negative."""
    start = _address(array)
    if array.flags.c_contiguous:
        return start, start + array.nbytes
    reach = sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True))
    return start, start + reach + array.dtype.itemsize
