"""Launchers of the linear layers (contract section 6): one call, f32 or int8 by the kind of the weight."""

import numpy as np

from crucible.device.checks import expect, expect_out
from crucible.errors import InputError
from crucible.linear.gpu_f32 import linear_f32
from crucible.linear.weights import STORAGES, LinearWeight
from crucible.numerics.checks import check_eps

Q_LIMIT = 127 * 256  # the largest quantized row value


def linear(device, x, weight: LinearWeight, out=None, scratch=None, add=None):
    """x f32 [T][K] through the weight -> f32 [T][N], bias added last.

    With `add` f32 [T][N] (it may be `out`) the result is add + y, a rounding of its own: the residual.
    `scratch` lends buffers that outlive the call (crucible.device.scratch); None allocates them.
    """
    _layer(weight)
    expect("x", x, np.float32, (None, weight.k))
    rows = x.shape[0]
    out = _output(device, rows, weight, out, (x, weight.packed, weight.scale, weight.bias), add)
    if device.name != "cpu":
        run = linear_f32 if weight.kind == "f32" else _gpu_i8().linear_int8
        run(device, x, weight, out, scratch, add)
        return out
    if weight.kind == "int8":
        q, top = quantize_rows(device, x, scratch)
        return _linear_int8(device, q, top, weight, out, add)
    code = STORAGES[weight.storage][0]
    y = out if add is None else _lent(device, scratch, "layer", out.shape)
    device.call("crucible_linear", code, x, weight.packed, weight.bias, y, rows, weight.n, weight.k)
    if add is not None:
        device.call("crucible_residual", add, y, out, out.size)
    return out


def rmsnorm_linear(device, x, norm_weight, eps, weight: LinearWeight, out=None, scratch=None, add=None):
    """The int8 layer of rmsnorm(x, norm_weight, eps), x f32 [T][K], quantized as they are made."""
    _layer(weight, "int8")
    if device.name != "cpu":
        return _gpu_i8().rmsnorm_linear(device, x, norm_weight, eps, weight, out, scratch, add)
    expect("x", x, np.float32, (None, weight.k))
    expect("norm_weight", norm_weight, np.float32, (weight.k,))
    eps, rows = check_eps(eps), x.shape[0]
    out = _output(device, rows, weight, out, (x, norm_weight, weight.packed, weight.scale, weight.bias), add)
    q, top = _quantized_rows(device, rows, weight.k, scratch)
    device.call("crucible_rmsnorm_quantize", x, norm_weight, q, top, rows, weight.k, eps)
    return _linear_int8(device, q, top, weight, out, add)


def swiglu_linear(device, gate_up, weight: LinearWeight, out=None, scratch=None, add=None):
    """The int8 layer of swiglu(gate, up), the halves of gate_up f32 [T][2K], quantized as they are made."""
    _layer(weight, "int8")
    if device.name != "cpu":
        return _gpu_i8().swiglu_linear(device, gate_up, weight, out, scratch, add)
    expect("gate_up", gate_up, np.float32, (None, 2 * weight.k))
    rows = gate_up.shape[0]
    out = _output(device, rows, weight, out, (gate_up, weight.packed, weight.scale, weight.bias), add)
    q, top = _quantized_rows(device, rows, weight.k, scratch)
    device.call("crucible_swiglu_quantize", gate_up, q, top, rows, weight.k)
    return _linear_int8(device, q, top, weight, out, add)


def quantize_rows(device, x, scratch=None):
    """x f32 [T][K] -> (q, A f32 [T]): 16-bit fixed point per row.

    q is int16 [T][K] on the cpu; elsewhere what `linear_quantized` takes there.
    """
    expect("x", x, np.float32, (None, None))
    if device.name != "cpu":
        return _gpu_i8().quantize_rows(device, x, scratch)
    rows, k = x.shape
    q, top = _quantized_rows(device, rows, k, scratch)
    device.call("crucible_quantize_rows", x, q, top, rows, k)
    return q, top


def linear_quantized(device, q, top, weight: LinearWeight, out=None, scratch=None, add=None):
    """The int8 layer on rows quantized before, so that layers sharing an input quantize it once."""
    if device.name != "cpu":
        _layer(weight, "int8")
        return _gpu_i8().linear_quantized(device, q, top, weight, out, scratch, add)
    _quantized(q, weight)
    expect("A", top, np.float32, (q.shape[0],))
    inputs = (q, top, weight.packed, weight.scale, weight.bias)
    out = _output(device, q.shape[0], weight, out, inputs, add)
    return _linear_int8(device, q, top, weight, out, add)


def _output(device, rows: int, weight, out, inputs, add):
    """`out`, or an array made for it, after checking it and what is added to it."""
    shape = (rows, weight.n)
    if add is not None:
        expect("add", add, np.float32, shape)
    out = device.empty(shape) if out is None else out
    expect_out("out", out, np.float32, shape, inputs, () if add is None else (add,))
    return out


def _lent(device, scratch, name: str, shape, dtype=np.float32):
    return device.empty(shape, dtype) if scratch is None else scratch.take(name, shape, dtype)


def _quantized_rows(device, rows: int, k: int, scratch):
    """Room for the quantized rows of the cpu device."""
    return _lent(device, scratch, "quantized", (rows, k), np.int16), _lent(device, scratch, "tops", (rows,))


def _gpu_i8():
    from crucible.linear import gpu_i8

    return gpu_i8


def _linear_int8(device, q, top, weight: LinearWeight, out, add):
    given = (q, top, weight.packed, weight.scale, weight.bias, add)
    device.call("crucible_linear_i8", *given, out, q.shape[0], weight.n, weight.k)
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
    if device.name != "cpu":
        _layer(weight, "int8")
        return _gpu_i8().linear_sums(device, q, weight)
    _quantized(q, weight)
    out = device.empty((q.shape[0], weight.n), np.int64)
    device.call("crucible_linear_i8_sums", q, weight.packed, out, q.shape[0], weight.n, weight.k)
    return out
