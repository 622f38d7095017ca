"""Launchers of the elementwise operations: exp and sigmoid (contract section 2), SwiGLU and residual (7)."""

import numpy as np

from crucible.device.checks import expect, expect_array, expect_out
from crucible.errors import InputError

_BLOCKS = 4096  # elementwise kernels stride over the grid, so more would only cost launch time
_MANY = 1 << 17  # elements from which swiglu takes four a thread: fewer leave processors idle that way


def _unary(operation: str, device, x):
    expect("x", x, np.float32, None)
    out = device.empty(x.shape)
    if device.name == "cpu":
        device.call(f"crucible_{operation}", x, out, x.size)
    else:
        _elementwise(device, "unary", x, out, np.int64(x.size), np.int32(operation == "sigmoid"))
    return out


def _elementwise(device, entry: str, *args) -> None:
    n = args[0].size
    if n:
        per_block = 1024 if entry == "residual" else 256
        device.kernel("pointwise", entry).launch(min(-(-n // per_block), _BLOCKS), 256, args)


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
    return _strided(x, (extent,), (4,)), stride


def _strided(x, shape, strides):
    if isinstance(x, np.ndarray):
        return np.lib.stride_tricks.as_strided(x, shape, strides)
    from cupy.lib.stride_tricks import as_strided

    return as_strided(x, shape, strides)


def swiglu(device, gate, up, out=None):
    """(gate*sigmoid(gate))*up, f32 [T][N].

    gate and up may be the two halves of one [T][2N] buffer. `out` may be contiguous `gate` or `up`.
    """
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
    if device.name == "cpu":
        device.call("crucible_swiglu", gate, up, out, rows, n, gate_stride)
    elif out.size:
        fours = n % 4 == gate_stride % 4 == 0 and all(_address(a) % 16 == 0 for a in (*like, out))
        vector = 4 if fours and out.size >= _MANY else 1
        grid = (-(-n // (256 * vector)), min(rows, 65535))
        sizes = (np.int32(rows), np.int32(n), np.int64(gate_stride))
        device.kernel("swiglu", VECTOR=vector).launch(grid, 256, (gate, up, out, *sizes))
    return out


def _address(array) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def residual(device, x, y, out=None):
    """x + y, f32, any equal shapes; `out` may be x or y."""
    expect("x", x, np.float32, None)
    expect("y", y, np.float32, x.shape)
    out = device.empty(x.shape) if out is None else out
    expect_out("out", out, np.float32, x.shape, like=(x, y))
    if device.name == "cpu":
        device.call("crucible_residual", x, y, out, x.size)
    else:
        _elementwise(device, "residual", x, y, out, np.int64(x.size))
    return out
