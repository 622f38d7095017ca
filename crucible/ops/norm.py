"""Launcher of RMSNorm (contract section 7)."""

import numpy as np

from crucible.device.checks import expect, expect_out, need_cpu
from crucible.errors import InputError
from crucible.numerics.checks import real


def rmsnorm(device, x, weight, eps, out=None):
    """(x*r)*weight with r = 1/sqrt(sumsq256(x)/N + eps), row by row.

    x f32 [T][N], weight f32 [N], eps f32; `out` f32 [T][N] may be x itself. Returns out.
    """
    need_cpu("rmsnorm", device)
    expect("x", x, np.float32, (None, None))
    rows, n = x.shape
    expect("weight", weight, np.float32, (n,))
    out = device.empty(x.shape) if out is None else out
    expect_out("out", out, np.float32, (rows, n), (weight,), (x,))
    if not isinstance(eps, np.float32):
        with np.errstate(over="ignore"):
            eps = np.float32(real("eps", eps))
    if not (np.isfinite(eps) and eps >= 0):
        raise InputError(f"eps {eps} must be finite in float32 and at least 0")
    device.call("crucible_rmsnorm", x, weight, out, rows, n, eps)
    return out
