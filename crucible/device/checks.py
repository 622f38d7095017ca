"""Checks of array arguments before a launch: dtype, shape and layout, each refused with one sentence."""

import numpy as np

from crucible.errors import InputError, NoKernelError


def expect(name: str, array, dtype, shape: tuple[int | None, ...]) -> None:
    """Refuse `array` unless it has this dtype, this shape (None matches any extent) and is C-contiguous."""
    if array.dtype != dtype:
        raise InputError(f"{name} has dtype {array.dtype}; it must be {np.dtype(dtype).name}")
    if len(array.shape) != len(shape) or any(
        want is not None and have != want for have, want in zip(array.shape, shape, strict=True)
    ):
        wanted = "][".join("any" if want is None else str(want) for want in shape)
        raise InputError(f"{name} has shape {tuple(array.shape)}; it must be [{wanted}]")
    if not array.flags.c_contiguous:
        raise InputError(f"{name} of shape {tuple(array.shape)} is not C-contiguous; copy it first")


def need_cpu(operation: str, device) -> None:
    """Raise NoKernelError unless this is the cpu device: no other has `operation` so far."""
    if device.name != "cpu":
        raise NoKernelError(operation, device.name)
