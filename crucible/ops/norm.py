"""Launcher of RMSNorm (contract section 7)."""

import numpy as np

from crucible.device.checks import expect, need_cpu


def rmsnorm(device, x, weight, eps, out=None):
    """(x*r)*weight with r = 1/sqrt(sumsq256(x)/N + eps), row by row.

    x f32 [T][N], weight f32 [N], eps f32; `out` f32 [T][N] may be x itself. Returns out.
    """
    need_cpu("rmsnorm", device)
    expect("x", x, np.float32, (None, None))
    rows, n = x.shape
    expect("weight", weight, np.float32, (n,))
    out = device.empty(x.shape) if out is None else out
    expect("out", out, np.float32, (rows, n))
    device.call("crucible_rmsnorm", x, weight, out, rows, n, np.float32(eps))
    return out
