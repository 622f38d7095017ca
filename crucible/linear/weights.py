"""Weights of linear layers as a device stores them: packed f32, or packed int8 with row scales."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from crucible.device.checks import expect, need_cpu
from crucible.errors import InputError

Kind = Literal["f32", "int8"]


@dataclass(frozen=True)
class LinearWeight:
    """One linear layer, N outputs by K inputs.

    `packed` is in the device's own layout: f32, or int8 with `scale` f32 [N]. `bias` is f32 [N] or None.
    """

    kind: Kind
    n: int
    k: int
    packed: object
    scale: object = None
    bias: object = None


def quantize_weight(device, w):
    """w f32 [N][K] -> (q int8 [N][K], s_w f32 [N]): 127 levels a row, ties to even (contract section 6)."""
    need_cpu("quantize_weight", device)
    expect("w", w, np.float32, (None, None))
    n, k = w.shape
    q, scale = device.empty((n, k), np.int8), device.empty(n)
    device.call("crucible_quantize_weight", w, q, scale, n, k)
    return q, scale


def pack(device, w, kind: Kind, bias=None) -> LinearWeight:
    """Pack w f32 [N][K] (and bias f32 [N]) for `linear`; kind int8 quantizes it first."""
    if kind == "int8":
        return pack_int8(device, *quantize_weight(device, w), bias)
    if kind != "f32":
        raise InputError(f"linear kind {kind!r} is unknown; choose f32 or int8")
    need_cpu("pack_f32", device)
    n, k = _extent("w", w, np.float32, bias)
    packed = device.empty(device.call("crucible_packed_f32_size", n, k))
    device.call("crucible_pack_f32", w, packed, n, k)
    return LinearWeight("f32", n, k, packed, bias=bias)


def pack_int8(device, q, scale, bias=None) -> LinearWeight:
    """Pack q int8 [N][K] with s_w f32 [N] as they are: a tied head shares them with the embedding."""
    need_cpu("pack_i8", device)
    n, k = _extent("q", q, np.int8, bias)
    expect("scale", scale, np.float32, (n,))
    packed = device.empty(device.call("crucible_packed_i8_size", n, k), np.int8)
    device.call("crucible_pack_i8", q, packed, n, k)
    return LinearWeight("int8", n, k, packed, scale, bias)


def _extent(name: str, w, dtype, bias) -> tuple[int, int]:
    expect(name, w, dtype, (None, None))
    n, k = w.shape
    if n < 1 or k < 1:
        raise InputError(f"{name} has shape ({n}, {k}); a linear layer needs at least one output and input")
    if bias is not None:
        expect("bias", bias, np.float32, (n,))
    return n, k
