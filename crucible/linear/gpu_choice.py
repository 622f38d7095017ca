"""Which kernel runs an f32 layer on cuda and simt: the builds and a choice from measurements kept as data."""

import functools
import math
from dataclasses import dataclass
from pathlib import Path

from crucible.evidence import dispatch_table
from crucible.evidence.dispatch_table import Table
from crucible.linear.gpu_f32 import Rows, Tile

TABLE = Path(__file__).with_name("dispatch_f32.json")
FORMAT = "crucible-linear-dispatch"
KEPT = 3  # fastest kernels of a point in the file, so that one that does not fit has a next best

# Rows x outputs of a block; "split" gives each block of K to a block of its own; "k" means that lanes of a
# warp share out blocks of K.
KERNELS: dict[str, Tile | Rows | None] = {
    "reference": None,
    "tile-128x128": Tile(stages=3),
    "tile-128x256": Tile(thread_n=16, stages=3, min_blocks=1),
    "split-128x128": Tile(stages=3, split=1),
    "split-64x128": Tile(warps_m=2, split=1, min_blocks=4),
    "split-64x128-copied": Tile(warps_m=2, split=1, min_blocks=3, early=1, turn=0),
    "split-64x64": Tile(thread_n=4, warps_m=2, stages=3, split=1, min_blocks=4, early=1),
    "rows-1x8k": Rows(step=64),
    "rows-1x32": Rows(block_lanes=1, step=64),
    "rows-1x64": Rows(block_lanes=1, thread_n=2, step=64, stages=3),
    "rows-2x8k": Rows(thread_m=2, step=64, stages=3),
    "rows-2x64": Rows(thread_m=2, block_lanes=1, thread_n=2),
    "rows-4x16k": Rows(thread_m=4, block_lanes=2),
    "rows-4x64": Rows(thread_m=4, block_lanes=1, thread_n=2),
    "rows-8x8": Rows(thread_m=2, row_lanes=4, block_lanes=1),
    "rows-8x16": Rows(thread_m=4, row_lanes=2, block_lanes=1),
    "rows-8x64": Rows(thread_m=8, block_lanes=1, thread_n=2, step=16),
    "rows-8x128": Rows(thread_m=8, block_lanes=1, thread_n=4, step=16),
    "rows-16x8": Rows(thread_m=4, row_lanes=4, block_lanes=1),
    "rows-16x16": Rows(thread_m=4, row_lanes=4, block_lanes=1, thread_n=2),
    "rows-16x32": Rows(thread_m=4, row_lanes=4, block_lanes=1, thread_n=4, step=16),
    "rows-16x64": Rows(thread_m=8, row_lanes=2, block_lanes=1, thread_n=4, stages=3),
}


@dataclass(frozen=True)
class Point:
    """One measured layer: T rows, N outputs, K inputs, storage, and kernels by microseconds."""

    T: int
    N: int
    K: int
    storage: str
    us: dict[str, float]


@functools.cache
def load(path: Path = TABLE) -> Table:
    """The dispatch table at `path`. InputError when the file is not one."""
    return dispatch_table.load(path, FORMAT, Point, "crucible bench linear --device cuda --tune")


def save(table: Table, path: Path = TABLE) -> Path:
    """Write a table: a line a point, fastest kernels only."""
    dispatch_table.save(table, path, FORMAT, KEPT)
    load.cache_clear()
    _here.cache_clear()
    return Path(path)


def _place(T: int, N: int, K: int) -> tuple[float, float, float]:
    return 2 * math.log2(T), math.log2(N), math.log2(K)  # rows decide most: a tile of many wastes few


def ranking(T: int, N: int, K: int, storage: str, table: Table | None = None) -> tuple[str, ...]:
    """Kernels, best first, at the measured point nearest to a layer in logarithms; the reference is last."""
    points = [p for p in (table or load()).points if p.storage == storage]
    at = _place(T, N, K)
    near = min(points, key=lambda p: math.dist(at, _place(p.T, p.N, p.K)))
    return *(name for name in sorted(near.us, key=near.us.get) if name in KERNELS), "reference"


_here = functools.lru_cache(maxsize=4096)(ranking)


def runs(device, build: Tile | Rows | None, weight) -> bool:
    """Whether a device has the shared memory for a build and a layer."""
    return build is None or build.shared(weight.k, weight.storage) <= device.shared_limit


def choose(device, rows: int, weight) -> str:
    """The name of the kernel for `rows` rows through a layer; reads extents only."""
    ranked = _here(rows, weight.n, weight.k, weight.storage)
    return next(name for name in ranked if runs(device, KERNELS[name], weight))
