"""Launchers of the linear layers (contract section 6): one call, f32 or int8 by the kind of the weight."""

import numpy as np

from crucible.device.checks import expect, expect_out, need_cpu
from crucible.errors import InputError
from crucible.linear.weights import STORAGES, LinearWeight

Q_LIMIT = 127 * 256  # the largest quantized row value


def linear(device, x, weight: LinearWeight, out=None):
    """x f32 [T][K] through the weight -> f32 [T][N], bias added last."""
    _layer(weight)
    need_cpu(f"linear_{weight.kind}", device)
    expect("x", x, np.float32, (None, weight.k))
    rows = x.shape[0]
    out = device.empty((rows, weight.n)) if out is None else out
    expect_out("out", out, np.float32, (rows, weight.n), (x, weight.packed, weight.scale, weight.bias))
    if weight.kind == "int8":
        q, top = quantize_rows(device, x)
        return _linear_int8(device, q, top, weight, out)
    code = STORAGES[weight.storage][0]
    device.call("crucible_linear", code, x, weight.packed, weight.bias, out, rows, weight.n, weight.k)
    return out


def quantize_rows(device, x):
    """x f32 [T][K] -> (q int16 [T][K], A f32 [T]): 16-bit fixed point per row."""
    need_cpu("quantize_rows", device)
    expect("x", x, np.float32, (None, None))
    rows, k = x.shape
    q, top = device.empty((rows, k), np.int16), device.empty(rows)
    device.call("crucible_quantize_rows", x, q, top, rows, k)
    return q, top


def linear_quantized(device, q, top, weight: LinearWeight, out=None):
    """The int8 layer on rows quantized before, so that layers sharing an input quantize it once."""
    need_cpu("linear_int8", device)
    _quantized(q, weight)
    expect("A", top, np.float32, (q.shape[0],))
    out = device.empty((q.shape[0], weight.n)) if out is None else out
    inputs = (q, top, weight.packed, weight.scale, weight.bias)
    expect_out("out", out, np.float32, (q.shape[0], weight.n), inputs)
    return _linear_int8(device, q, top, weight, out)


def _linear_int8(device, q, top, weight: LinearWeight, out):
    extents = (q.shape[0], weight.n, weight.k)
    device.call("crucible_linear_i8", q, top, weight.packed, weight.scale, weight.bias, out, *extents)
    return out


def _layer(weight, kind: str | None = None) -> None:
    if not isinstance(weight, LinearWeight) or kind not in (None, weight.kind):
        what = f"{weight.kind} layer" if isinstance(weight, LinearWeight) else type(weight).__name__
        raise InputError(f"weight is {what}; it must be {'a layer' if kind is None else f'of kind {kind}'}")


def _quantized(q, weight) -> None:
    """Refuse rows beyond what quantize_rows makes: larger ones overflow a block's int32 sum."""
    _layer(weight, "int8")
    expect("q", q, np.int16, (None, weight.k))
    if q.size and max(-int(q.min()), int(q.max())) > Q_LIMIT:
        raise InputError(f"q reaches {int(q.min())}..{int(q.max())}; it must lie in -{Q_LIMIT}..{Q_LIMIT}")


def linear_sums(device, q, weight: LinearWeight):
    """The exact integer sums T int64 [T][N] of an int8 layer before scaling, for conformance."""
    need_cpu("linear_i8_sums", device)
    _quantized(q, weight)
    out = device.empty((q.shape[0], weight.n), np.int64)
    device.call("crucible_linear_i8_sums", q, weight.packed, out, q.shape[0], weight.n, weight.k)
    return out
