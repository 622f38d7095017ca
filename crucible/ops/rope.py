"""Launcher of rotary position embedding (contract section 7); the tables come from rope_tables."""

import numpy as np

from crucible.device.checks import expect, expect_out
from crucible.errors import InputError
from crucible.numerics.checks import whole
from crucible.ops.rope_tables import rope_frequencies, rope_table

__all__ = ["rope", "rope_frequencies", "rope_table"]

_BLOCKS = 4096  # the kernel strides over the grid, so more would only cost launch time


def rope(device, x, positions, cos, sin, D, out=None):
    """Rotate the pairs (i, i + D/2) of every head of x by its row's position.

    x f32 [T][H*D] or [T][H][D]; positions int32 [T]; cos, sin f32 [P][D/2], row p for position p,
    so every position must be below P; `out` like x may be x itself. Returns out.
    """
    D = whole("head_dim", D)
    expect("x", x, np.float32, None)
    if len(x.shape) not in (2, 3):
        raise InputError(f"x has shape {tuple(x.shape)}; it must be [T][H*D] or [T][H][D]")
    columns = int(np.prod(x.shape[1:]))
    if D < 2 or D % 2 or columns == 0 or columns % D:
        raise InputError(f"x of shape {tuple(x.shape)} does not hold whole heads of an even head_dim {D}")
    expect("positions", positions, np.int32, (x.shape[0],))
    expect("cos", cos, np.float32, (None, D // 2))
    expect("sin", sin, np.float32, tuple(cos.shape))
    out = device.empty(x.shape) if out is None else out
    expect_out("out", out, np.float32, tuple(x.shape), (positions, cos, sin), (x,))
    T, H = x.shape[0], columns // D
    if T == 0:
        return out
    if device.name != "cuda" and not 0 <= positions.min() <= positions.max() < cos.shape[0]:
        raise InputError(
            f"positions run from {positions.min()} to {positions.max()}; "
            f"the table has rows 0 to {cos.shape[0] - 1}"
        )
    if device.name == "cpu":
        device.call("crucible_rope", x, positions, cos, sin, out, T, H, D)
        return out
    blocks = min(-(-T * H * (D // 2) // 256), _BLOCKS)
    sizes = (np.int32(T), np.int32(H), np.int32(D))
    device.kernel("rope").launch(blocks, 256, (x, positions, cos, sin, out, *sizes))
    return out
