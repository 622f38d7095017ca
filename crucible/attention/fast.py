"""The fast exact tier: launchers of kernels/attention_fast_*.cu and their registry (attention_fast.md)."""

import functools
from collections.abc import Callable

import numpy as np

from crucible.attention.plan import Plan, plan
from crucible.attention.run import Problem, Variant
from crucible.errors import UnsupportedError
from crucible.numerics.contract import PAGE_SIZE

GROUPS = range(1, 9)
HEAD_DIMS = (64, 128)
SCRATCH_BYTES = 256 << 20  # fast-split works through its items in parts whose scores fit this
MULTIPROCESSORS = 132  # where the device does not say


def multiprocessors(device) -> int:
    """Multiprocessors of a cuda device; a fixed number elsewhere, so that simt runs the same items."""
    if device.name != "cuda":
        return MULTIPROCESSORS
    import cupy

    return int(cupy.cuda.Device().attributes["MultiProcessorCount"])


def covers(G: int, D: int) -> bool:
    """Whether the fast kernels exist for G query heads a KV head of dimension D."""
    return G in GROUPS and D in HEAD_DIMS


def _plan(device, p: Problem) -> Plan:
    return p.plan if p.plan is not None else plan(device, p.desc, p.Hkv)


def _geometry(name: str, p: Problem) -> dict[str, int]:
    G = p.Hq // p.Hkv
    if not covers(G, p.D):
        raise UnsupportedError(
            f"attention variant {name} has no kernel for {G} query heads a KV head of dimension {p.D}; "
            "it covers 1 to 8 heads and dimensions 64 and 128, so use --attention reference"
        )
    return {"GROUP": G, "HEAD_DIM": p.D}


def _fits(name: str, device, capacity: int, floats: int) -> int:
    if 4 * floats > device.shared_limit:
        raise UnsupportedError(
            f"a history of {capacity} positions does not fit the shared memory that attention variant "
            f"{name} needs ({4 * floats} bytes, {device.shared_limit} on {device.name}); use fast-split"
        )
    return 4 * floats


def tile_floats(tile: int, double: int, outside: int, D: int, C: int) -> int:
    """Shared memory of attention_fast_tile.cu in floats."""
    staging = tile // 4 * (4 * 32 // (tile // 4)) * D * (1 + double)
    pages = -(-(C // PAGE_SIZE) // 32) * 32
    return D * (tile + 4) + staging + tile // 4 * tile + pages + (128 if outside else C) * tile


def attention_fast_tile(
    device, p: Problem, *, name: str, tile: int, double: int = 0, outside: int = 0, rolled: int = 0, waves=False
) -> None:
    """kernels/attention_fast_tile.cu: `tile` (row, head) distributions a block.

    All their scores lie in shared memory or, with `outside`, in the plan's scratch memory.
    """
    defines = _geometry(name, p)
    made = _plan(device, p)
    C = -(-made.end // 64) * 64
    shared = _fits(name, device, made.end, tile_floats(tile, double, outside, p.D, C))
    items = made.items(tile // defines["GROUP"], multiprocessors(device) if waves else 0)
    blocks = {32: 2, 16: 4}[tile] if p.D == 64 else {32: 1, 16: 2}[tile]
    kernel = device.kernel(
        "attention_fast_tile",
        **{"TILE": tile, "DOUBLE": double, "GLOBAL": outside, "ROLLED": rolled, "MIN_BLOCKS": blocks, **defines},
    )
    n = items.shape[0]
    part = min(n, max(1, SCRATCH_BYTES // (4 * C * tile))) if outside else n
    scratch = made.scratch("scores", part * C * tile) if outside else None
    i32 = np.int32
    for first in range(0, n, part):
        some = items[first : first + part]
        kernel.launch(
            grid=some.shape[0],
            block=8 * tile,
            args=(
                *(p.q, p.kpool, p.vpool, p.tables, i32(p.tables.shape[1]), some, i32(p.layer)),
                *(i32(p.layers), i32(p.Hq), i32(p.Hkv), p.scale, i32(C), scratch, p.out),
            ),
            shared=shared,
        )


def rows_floats(capacity: int, G: int, D: int) -> int:
    """Shared memory of attention_fast_rows.cu in floats."""
    return 2 * G * D + 16 + 2 * G * capacity + capacity * (2 * D + 4)


def attention_fast_rows(device, p: Problem) -> None:
    """kernels/attention_fast_rows.cu: two rows a block, a thread a key, K and V in shared memory."""
    defines = _geometry("fast-rows", p)
    made = _plan(device, p)
    if made.end > 128:
        raise UnsupportedError(
            f"a history of {made.end} positions exceeds the 128 of attention variant fast-rows; use auto"
        )
    capacity = 64 if made.end <= 64 else 128
    items = made.items(2)
    kernel = device.kernel("attention_fast_rows", CAPACITY=capacity, **defines)
    i32 = np.int32
    kernel.launch(
        grid=items.shape[0],
        block=128,
        args=(
            *(p.q, p.kpool, p.vpool, p.tables, i32(p.tables.shape[1]), items, i32(p.layer), i32(p.layers)),
            *(i32(p.Hq), i32(p.Hkv), p.scale, p.out),
        ),
        shared=_fits("fast-rows", device, made.end, rows_floats(capacity, defines["GROUP"], p.D)),
    )


def split_rows(G: int, longest_chunk: int) -> int:
    """Rows of an item of fast-split: 1, 2, 4 or as many as make 32 distributions."""
    most = 32 // G
    return next((r for r in (1, 2, 4) if longest_chunk <= r <= most), most)


def attention_fast_split(device, p: Problem) -> None:
    """kernels/attention_fast_{scores,weights,values}.cu: scores in global memory, any history length."""
    defines = _geometry("fast-split", p)
    made = _plan(device, p)
    G = defines["GROUP"]
    rows = split_rows(G, made.longest_chunk)
    dists = rows * G
    C = -(-made.end // 128) * 128
    items = made.items(rows)
    part = min(items.shape[0], max(1, SCRATCH_BYTES // (4 * dists * C)))
    scores = made.scratch("scores", part * dists * C)
    inverses = made.scratch("inverses", part * dists)
    defines["DISTS"] = dists
    score, weigh, value = (
        device.kernel(f"attention_fast_{step}", **defines) for step in ("scores", "weights", "values")
    )
    i32 = np.int32
    paged = p.tables, i32(p.tables.shape[1])
    shape = i32(p.layer), i32(p.layers), i32(p.Hq), i32(p.Hkv)
    for first in range(0, items.shape[0], part):
        some = items[first : first + part]
        n = some.shape[0]
        score.launch(
            grid=(n, C // 128),
            block=128,
            args=(p.q, p.kpool, *paged, some, *shape, p.scale, i32(C), scores),
            shared=4 * (-(-dists // 4) * 4 * p.D + 128 * (p.D + 4)),
        )
        weigh.launch(grid=(n, dists), block=256, args=(some, i32(C), scores, inverses))
        value.launch(
            grid=(n, p.D // 32),
            block=128,
            args=(p.vpool, *paged, some, *shape, i32(C), scores, inverses, p.out),
            shared=4 * (4 * 64 * (32 + dists) + C // PAGE_SIZE),
        )


def _everywhere(launcher: Callable) -> dict[str, Callable]:
    return {"simt": launcher, "cuda": launcher}


def _tile(name: str, **options) -> dict[str, Callable]:
    return _everywhere(functools.partial(attention_fast_tile, name=name, **options))


FAST: dict[str, Variant] = {
    "fast-t32": Variant("32 (row, head) distributions a block", True, _tile("fast-t32", tile=32)),
    "fast-t32d": Variant(
        "as fast-t32, K double-buffered", True, _tile("fast-t32d", tile=32, double=1)
    ),
    "fast-t32s": Variant(
        "as fast-t32d, scores in global memory: any history", True, _tile("fast-t32s", tile=32, double=1, outside=1)
    ),
    "fast-t16": Variant("16 (row, head) distributions a block", True, _tile("fast-t16", tile=16, rolled=1)),
    "fast-rows": Variant("two rows a block, histories to 128", True, _everywhere(attention_fast_rows)),
    "fast-split": Variant(
        "scores in global memory: few rows, or histories of any length", True, _everywhere(attention_fast_split)
    ),
}
