"""Launchers of the elementwise operations: exp and sigmoid (contract section 2), SwiGLU and residual (7)."""

import numpy as np

from crucible.device.checks import expect, expect_array, expect_out, need_cpu
from crucible.errors import InputError


def _unary(operation: str, device, x):
    need_cpu(operation, device)
    expect("x", x, np.float32, None)
    out = device.empty(x.shape)
    device.call(f"crucible_{operation}", x, out, x.size)
    return out


def exp(device, x):
    """e^x for x <= 0, f32 elementwise."""
    return _unary("exp", device, x)


def sigmoid(device, x):
    """1/(1+e^-x), f32 elementwise."""
    return _unary("sigmoid", device, x)


def _flat_rows(name: str, x, n: int):
    """(flat contiguous view, row stride in elements) of rows [T][n] that may be columns of a wider buffer."""
    if x.dtype != np.float32 or x.ndim != 2 or x.strides[1] != 4 or x.strides[0] % 4 or x.strides[0] < 4 * n:
        raise InputError(f"{name} {x.dtype}{tuple(x.shape)} must be f32 [T][N] with contiguous rows; copy it")
    rows, stride = x.shape[0], x.strides[0] // 4
    extent = (rows - 1) * stride + n if rows else 0
    return np.lib.stride_tricks.as_strided(x, (extent,), (4,)), stride


def swiglu(device, gate, up, out=None):
    """(gate*sigmoid(gate))*up, f32 [T][N].

    gate and up may be the two halves of one [T][2N] buffer. `out` may be contiguous `gate` or `up`.
    """
    need_cpu("swiglu", device)
    expect_array("gate", gate)
    expect_array("up", up)
    if gate.shape != up.shape or gate.ndim != 2:
        raise InputError(f"gate {tuple(gate.shape)} and up {tuple(up.shape)} must both be [T][N]")
    rows, n = gate.shape
    like = (gate, up)
    gate, gate_stride = _flat_rows("gate", gate, n)
    up, up_stride = _flat_rows("up", up, n)
    if rows > 1 and gate_stride != up_stride:
        raise InputError(f"gate has row stride {gate_stride} and up {up_stride}; they must be equal")
    out = device.empty((rows, n)) if out is None else out
    expect_out("out", out, np.float32, (rows, n), like=like)
    device.call("crucible_swiglu", gate, up, out, rows, n, gate_stride)
    return out


def residual(device, x, y, out=None):
    """x + y, f32, any equal shapes; `out` may be x or y."""
    need_cpu("residual", device)
    expect("x", x, np.float32, None)
    expect("y", y, np.float32, x.shape)
    out = device.empty(x.shape) if out is None else out
    expect_out("out", out, np.float32, x.shape, like=(x, y))
    device.call("crucible_residual", x, y, out, x.size)
    return out
