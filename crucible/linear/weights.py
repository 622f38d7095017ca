"""Weights of linear layers as a device stores them: packed f32, or packed int8 with row scales."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from crucible.device.checks import expect
from crucible.errors import InputError
from crucible.linear.gpu_f32 import pack_rows
from crucible.numerics.checks import whole

Kind = Literal["f32", "int8"]

# Storages of an f32 layer: code in kernels/cpu/panels.h, and (elements, bytes) of a block of a row. The
# weight is the f32 number that the block widens to, formed again on the way to each product.
STORAGES = {"f32": (0, 1, 4), "bf16": (1, 1, 2), "q8_0": (2, 32, 34), "q4_1": (3, 32, 20)}


@dataclass(frozen=True)
class LinearWeight:
    """One linear layer, N outputs by K inputs.

    `packed` is in the device's own layout: an f32 layer in one of STORAGES, or int8 with `scale`
    f32 [N]. `bias` is f32 [N] or None.
    """

    kind: Kind
    n: int
    k: int
    packed: object
    scale: object = None
    bias: object = None
    storage: str = "f32"


def quantize_weight(device, w):
    """w f32 [N][K] -> (q int8 [N][K], s_w f32 [N]): 127 levels a row, ties to even (contract section 6)."""
    expect("w", w, np.float32, (None, None))
    if device.name != "cpu":
        return _gpu_i8().quantize_weight(device, w)
    n, k = w.shape
    q, scale = device.empty((n, k), np.int8), device.empty(n)
    device.call("crucible_quantize_weight", w, q, scale, n, k)
    bad = np.flatnonzero(~np.isfinite(scale))
    if bad.size:
        raise InputError(
            f"row {bad[0]} of the weight holds NaN or infinity, which int8 cannot carry; use f32"
        )
    return q, scale


def pack(device, w, kind: Kind, bias=None) -> LinearWeight:
    """Pack w f32 [N][K] (and bias f32 [N]) for `linear`; kind int8 quantizes it first."""
    if bias is not None:
        expect("bias", bias, np.float32, (None,))
    if kind == "int8":
        return pack_int8(device, *quantize_weight(device, w), bias)
    if kind != "f32":
        raise InputError(f"linear kind {kind!r} is unknown; choose f32 or int8")
    _, k = _extent("w", w, np.float32, bias)
    return pack_stored(device, w.view(np.uint8), "f32", k, bias)


def pack_stored(device, rows, storage: str, k: int, bias=None) -> LinearWeight:
    """Pack an f32 layer in the storage it came in: rows uint8 [N][bytes of K weights] (little-endian).

    Storages: f32, bf16, and GGUF's q8_0 and q4_1 blocks of 32. The layer's bits are those of the
    weights widened first; only the memory it takes and reads differs.
    """
    k = whole("k", k)
    if not isinstance(storage, str) or storage not in STORAGES:
        raise InputError(f"storage {storage!r} is unknown; choose one of {', '.join(STORAGES)}")
    code, elements, size = STORAGES[storage]
    if k < 1 or k % elements:
        raise InputError(f"a {storage} layer needs a multiple of {elements} inputs, not {k}")
    expect("rows", rows, np.uint8, (None, k // elements * size))
    n, _ = _extent("rows", rows, np.uint8, bias)
    if device.name != "cpu":
        packed, storage = pack_rows(device, rows, storage, n, k)
        return LinearWeight("f32", n, k, packed, bias=bias, storage=storage)
    packed = device.empty(device.call("crucible_packed_size", code, n, k), np.uint8)
    device.call("crucible_pack", code, rows, packed, n, k)
    return LinearWeight("f32", n, k, packed, bias=bias, storage=storage)


def pack_int8(device, q, scale, bias=None) -> LinearWeight:
    """Pack q int8 [N][K] with s_w f32 [N] as they are: a tied head shares them with the embedding."""
    n, k = _extent("q", q, np.int8, bias)
    expect("scale", scale, np.float32, (n,))
    if device.name != "cpu":
        return _gpu_i8().pack_int8(device, q, scale, bias)
    if int(q.min()) == -128:
        raise InputError("q holds -128; a quantized weight lies in -127..127")
    packed = device.empty(device.call("crucible_packed_i8_size", n, k), np.int8)
    device.call("crucible_pack_i8", q, packed, n, k)
    return LinearWeight("int8", n, k, packed, scale, bias)


def _gpu_i8():
    from crucible.linear import gpu_i8

    return gpu_i8


def _extent(name: str, w, dtype, bias) -> tuple[int, int]:
    expect(name, w, dtype, (None, None))
    n, k = w.shape
    if n < 1 or k < 1:
        raise InputError(f"{name} has shape ({n}, {k}); a linear layer needs at least one output and input")
    if bias is not None:
        expect("bias", bias, np.float32, (n,))
    return n, k
