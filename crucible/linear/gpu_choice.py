"""Which kernel runs an f32 linear layer on cuda and simt: the builds, and the choice by shape."""

from crucible.linear.gpu_f32 import Rows, Tile

KERNELS: dict[str, Tile | Rows | None] = {
    "reference": None,
    "tile-128x128": Tile(stages=3),
    "tile-128x256": Tile(thread_n=16, stages=3, min_blocks=1),
    "tile-64x128-split": Tile(warps_m=2, stages=3, split=1, min_blocks=4),
    "rows-1": Rows(),
    "rows-4": Rows(thread_m=4),
    "rows-8": Rows(thread_m=8, block_lanes=2),
    "rows-16": Rows(thread_m=8, row_lanes=2, block_lanes=1, thread_n=2, step=16),
}


def choose(device, rows: int, weight) -> str:
    """The name of the kernel for `rows` rows through a layer."""
    if rows <= 32:
        return "rows-1" if rows == 1 else "rows-4" if rows <= 4 else "rows-8" if rows <= 8 else "rows-16"
    tiles = -(-rows // 128) * -(-weight.n // 128)
    return "tile-64x128-split" if tiles < 150 else "tile-128x128" if tiles < 400 else "tile-128x256"
