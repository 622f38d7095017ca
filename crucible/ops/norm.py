"""Launcher of RMSNorm (contract section 7)."""

import numpy as np

from crucible.device.checks import expect, expect_out
from crucible.numerics.checks import check_eps


def rmsnorm(device, x, weight, eps, out=None):
    """(x*r)*weight with r = 1/sqrt(sumsq256(x)/N + eps), row by row.

    x f32 [T][N], weight f32 [N], eps f32; `out` f32 [T][N] may be x itself. Returns out.
    """
    expect("x", x, np.float32, (None, None))
    rows, n = x.shape
    expect("weight", weight, np.float32, (n,))
    out = device.empty(x.shape) if out is None else out
    expect_out("out", out, np.float32, (rows, n), (weight,), (x,))
    eps = check_eps(eps)
    if device.name == "cpu":
        device.call("crucible_rmsnorm", x, weight, out, rows, n, eps)
    elif out.size:
        values = 4 if n <= 1024 else 8 if n <= 2048 else 16  # of a row in a thread's registers
        device.kernel("rmsnorm", VALUES=values).launch(rows, 256, (x, weight, out, np.int32(n), eps))
    return out
