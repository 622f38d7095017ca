"""The int8 linear layer on cuda and simt (contract section 6): packing, quantisation, launchers."""

from dataclasses import dataclass

import numpy as np

from crucible.device.checks import expect, expect_out
from crucible.errors import InputError
from crucible.linear import gpu_i8_kernels as kernels
from crucible.linear.weights import LinearWeight
from crucible.numerics.checks import check_eps

_MOST_BLOCKS = 1 << 16  # blocks of the kernels that stride over their grid
_SHARED_OF_ROWS = 48 << 10  # bytes of shared memory that a block of rows may take
_STATIC_SHARED = 1024  # at least what those kernels declare
_SLICE = 64  # k of a slice of kernels/linear_i8.cuh


@dataclass(frozen=True)
class QuantizedRows:
    """T rows of K activations as two int8 digits: digits int8 [ceil(K/64)][ceil(T/8)][2][4][8][16]."""

    digits: object
    rows: int
    k: int


def quantize_weight(device, w):
    """w f32 [N][K] -> (q int8 [N][K], s_w f32 [N]); InputError where a row is not finite."""
    n, k = w.shape
    q, scale = device.empty((n, k), np.int8), device.empty(n)
    if q.size:
        device.kernel("quantize_weight").launch(n, 256, (w, q, scale, np.int32(k)))
    bad = np.flatnonzero(~np.isfinite(device.download(scale)))
    if bad.size:
        raise InputError(
            f"row {bad[0]} of the weight holds NaN or infinity, which int8 cannot carry; use f32"
        )
    return q, scale


def pack_int8(device, q, scale, bias=None) -> LinearWeight:
    """q int8 [N][K] and s_w f32 [N] as a layer; packed int8 [ceil(K/64)][ceil(N/8)][4][8][16]."""
    n, k = q.shape
    packed = device.empty((-(-k // _SLICE), -(-n // 8), 4, 8, 16), np.int8)
    refused = device.zeros(1, np.int32)
    lines = packed.size // 16
    args = (q, packed.view(np.uint8), refused, np.int32(n), np.int32(k))
    device.kernel("linear_i8_pack").launch(min(-(-lines // 256), _MOST_BLOCKS), 256, args)
    if device.download(refused)[0]:
        raise InputError("q holds -128; a quantized weight lies in -127..127")
    return LinearWeight("int8", n, k, packed, scale, bias)


def quantize_rows(device, x, scratch=None) -> tuple[QuantizedRows, object]:
    """x f32 [T][K] -> (rows, A f32 [T]), in buffers of `scratch` where one is given."""
    rows, k = x.shape
    q, top = _rows(device, rows, k, scratch)
    _per_row(device, "quantize_rows", q, (x,), (x, q.digits, top, np.int32(rows), np.int32(k)))
    return q, top


def rmsnorm_quantize(device, x, norm_weight, eps, scratch=None, out=None) -> tuple[QuantizedRows, object]:
    """quantize_rows of rmsnorm(x, norm_weight, eps), x f32 [T][K]; `out` f32 [T][K] takes the norm too."""
    expect("x", x, np.float32, (None, None))
    rows, k = x.shape
    expect("norm_weight", norm_weight, np.float32, (k,))
    eps = check_eps(eps)
    if out is not None:
        expect_out("out", out, np.float32, (rows, k), (norm_weight,), (x,))
    q, top = _rows(device, rows, k, scratch)
    sizes = (np.int32(rows), np.int32(k), eps)
    floats = (x, norm_weight, out)
    _per_row(device, "quantize_rmsnorm", q, floats, (*floats, q.digits, top, *sizes))
    return q, top


def swiglu_quantize(device, gate_up, ffn: int, scratch=None) -> tuple[QuantizedRows, object]:
    """quantize_rows of swiglu(gate, up), the halves of gate_up f32 [T][2*ffn]."""
    expect("gate_up", gate_up, np.float32, (None, 2 * ffn))
    rows = gate_up.shape[0]
    q, top = _rows(device, rows, ffn, scratch)
    args = (gate_up, q.digits, top, np.int32(rows), np.int32(ffn))
    _per_row(device, "quantize_swiglu", q, (gate_up,), args)
    return q, top


def linear_int8(device, x, weight: LinearWeight, out, scratch=None, add=None, kernel=None):
    """x f32 [T][K] quantized and through an int8 layer into out f32 [T][N]; with `add`, out = add + y.

    `kernel` names one of gpu_i8_kernels.KERNELS; some of them quantize few rows themselves.
    """
    name = kernel or kernels.choose(device, x.shape[0], weight.n, weight.k, floats=True)
    if kernels.is_few(name):
        kernels.launch_few(device, x, weight, add, out, name)
        return out
    return linear_quantized(device, *quantize_rows(device, x, scratch), weight, out, scratch, add, name)


def rmsnorm_linear(
    device, x, norm_weight, eps, weight: LinearWeight, out=None, scratch=None, add=None, kernel=None
):
    """The int8 layer of rmsnorm(x, norm_weight, eps): one launch for few rows, else two."""
    expect("x", x, np.float32, (None, weight.k))
    expect("norm_weight", norm_weight, np.float32, (weight.k,))
    eps = check_eps(eps)
    name = kernel or kernels.choose(device, x.shape[0], weight.n, weight.k, floats=True)
    if kernels.is_few(name):
        out = _output(device, x.shape[0], weight, out, (x, norm_weight), add)
        kernels.launch_few(device, x, weight, add, out, name, 1, norm_weight, eps)
        return out
    q, top = rmsnorm_quantize(device, x, norm_weight, eps, scratch)
    return linear_quantized(device, q, top, weight, out, scratch, add, name)


def swiglu_linear(device, gate_up, weight: LinearWeight, out=None, scratch=None, add=None, kernel=None):
    """The int8 layer of swiglu(gate, up), the halves of gate_up f32 [T][2K]: one launch for few rows."""
    expect("gate_up", gate_up, np.float32, (None, 2 * weight.k))
    name = kernel or kernels.choose(device, gate_up.shape[0], weight.n, weight.k, floats=True)
    if kernels.is_few(name):
        out = _output(device, gate_up.shape[0], weight, out, (gate_up,), add)
        kernels.launch_few(device, gate_up, weight, add, out, name, 2)
        return out
    q, top = swiglu_quantize(device, gate_up, weight.k, scratch)
    return linear_quantized(device, q, top, weight, out, scratch, add, name)


def linear_quantized(
    device, q: QuantizedRows, top, weight: LinearWeight, out=None, scratch=None, add=None, kernel=None
):
    """Rows quantized before through an int8 layer -> out f32 [T][N]; with `add`, out = add + y.

    `kernel` names one of gpu_i8_kernels.KERNELS; by default the fastest measured near this shape runs.
    """
    _expect_rows(q, weight)
    expect("A", top, np.float32, (q.rows,))
    out = _output(device, q.rows, weight, out, (q.digits, top), add)
    kernels.launch(device, q, top, weight, add, out, kernel)
    return out


def linear_sums(device, q: QuantizedRows, weight: LinearWeight):
    """The exact integers T int64 [T][N] before scaling, for conformance."""
    _expect_rows(q, weight)
    out = device.empty((q.rows, weight.n), np.int64)
    kernels.sums(device, q, weight, out)
    return out


def _output(device, rows: int, weight: LinearWeight, out, inputs, add):
    """`out` f32 [rows][N], or an array made for it, after checking it and what is added to it."""
    shape = (rows, weight.n)
    if add is not None:
        expect("add", add, np.float32, shape)
    out = device.empty(shape) if out is None else out
    inputs = (*inputs, weight.packed, weight.scale, weight.bias)
    expect_out("out", out, np.float32, shape, inputs, () if add is None else (add,))
    return out


def _rows(device, rows: int, k: int, scratch) -> tuple[QuantizedRows, object]:
    shape = (-(-k // _SLICE), -(-rows // 8), 2, 4, 8, 16)
    if scratch is None:
        return QuantizedRows(device.empty(shape, np.int8), rows, k), device.empty(rows)
    digits = scratch.take("quantized_digits", shape, np.int8)
    return QuantizedRows(digits, rows, k), scratch.take("quantized_tops", (rows,))


def _per_row(device, stem: str, q: QuantizedRows, floats, args) -> None:
    """Launch a kernel of kernels/quantize_rows.cuh: two or more rows a block fill the sectors written."""
    if not q.rows:
        return
    padded = -(-q.k // _SLICE) * _SLICE
    most = 16 if stem == "quantize_rows" else 8  # quads in registers; norms and gates need the others
    kept = next((n for n in (3, 4, 8) if 256 * n >= padded), most)
    together = 1 if q.rows == 1 else 2 if q.rows < 1024 else 4
    while together > 1 and 2 * together * (padded + 16) > _SHARED_OF_ROWS:
        together //= 2
    shared = 2 * together * (padded + 16)
    direct = int(shared > device.shared_limit - _STATIC_SHARED)
    kernel = device.kernel(stem, KEPT=kept, DIRECT=direct, WHOLE=kernels.whole(q.k, *floats))
    kernel.launch(-(-q.rows // 8) * 8 // together, 64 * together, args, shared=0 if direct else shared)


def _expect_rows(q, weight: LinearWeight) -> None:
    if not isinstance(q, QuantizedRows):
        raise InputError(f"q is {type(q).__name__}; it must come from this device's quantize_rows")
    if q.k != weight.k:
        raise InputError(f"q has rows of {q.k}; the layer takes {weight.k}")
