"""Checks of array arguments before a launch: dtype, shape and layout, each refused with one sentence."""

import numpy as np

from crucible.errors import InputError


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
    expect(name, out, dtype, shape)
    if not getattr(out.flags, "writeable", True):
        raise InputError(
            f"{name} of shape {tuple(out.shape)} is read-only; pass an array that may be written"
        )
    for array in (*inputs, *like):
        if array is None or not _overlap(out, array):
            continue
        same = (_address(array), array.strides, array.shape) == (_address(out), out.strides, out.shape)
        if same and any(array is other for other in like):
            continue
        raise InputError(
            f"{name} of shape {tuple(out.shape)} overlaps an input of shape {tuple(array.shape)}; "
            "pass memory of its own"
        )


def _address(array) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def _overlap(a, b) -> bool:
    """Whether the bytes between first and last element of two arrays meet; strides are never negative."""
    if not a.size or not b.size:
        return False
    spans = []
    for array in (a, b):
        reach = sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True))
        spans.append((_address(array), _address(array) + reach + array.dtype.itemsize))
    return spans[0][0] < spans[1][1] and spans[1][0] < spans[0][1]
