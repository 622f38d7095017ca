"""The fast exact tier: launchers of kernels/attention_fast_*.cu and their registry (attention_fast.md)."""

import functools
from collections.abc import Callable

import numpy as np

from crucible.attention.base import Problem, TooLong, Variant
from crucible.numerics.contract import PAGE_SIZE

GROUPS = range(1, 9)
HEAD_DIMS = (64, 128)
ROWS_LIMIT = 128  # longest history of fast-rows
SCRATCH_BYTES = 256 << 20  # fast-split works through its items in parts whose scores fit this
# Where the device does not say: multiprocessors, and shared bytes of one.
MULTIPROCESSORS, SHARED_OF_ONE = 132, 228 << 10
RESERVED = 1024  # shared bytes that a block takes beyond its own


@functools.cache
def multiprocessors(device) -> tuple[int, int]:
    """Multiprocessors of a cuda device and the shared bytes of each; fixed numbers on simt."""
    if device.name != "cuda":
        return MULTIPROCESSORS, SHARED_OF_ONE
    import cupy

    at = cupy.cuda.Device().attributes
    return int(at["MultiProcessorCount"]), int(at["MaxSharedMemoryPerMultiprocessor"])


def covers(G: int, D: int) -> bool:
    """Whether the fast kernels exist for G query heads a KV head of dimension D."""
    return G in GROUPS and D in HEAD_DIMS


def _geometry(p: Problem) -> dict[str, int]:
    return {"GROUP": p.G, "HEAD_DIM": p.D}


def tile_floats(tile: int, double: int, outside: int, D: int, C: int) -> int:
    """Shared memory of attention_fast_tile.cu in floats."""
    staging = tile // 4 * (4 * 32 // (tile // 4)) * D * (1 + double)
    pages = -(-(C // PAGE_SIZE) // 32) * 32
    return D * (tile + 4) + staging + tile // 4 * tile + pages + (128 if outside else C) * tile


def tile_blocks(tile: int, D: int) -> int:
    """Blocks of attention_fast_tile.cu that the registers of a multiprocessor are divided among."""
    return {32: 2, 16: 4}[tile] // (D // 64)


def tile_defines(tile: int, double: int, outside: int, rolled: int, D: int) -> dict[str, int]:
    """Macros of attention_fast_tile.cu beside the geometry."""
    blocks = tile_blocks(tile, D)
    return {"TILE": tile, "DOUBLE": double, "GLOBAL": outside, "ROLLED": rolled, "MIN_BLOCKS": blocks}


def attention_fast_tile(
    device, p: Problem, *, tile: int, double: int = 0, outside: int = 0, rolled: int = 1
) -> None:
    """kernels/attention_fast_tile.cu: `tile` (row, head) distributions a block.

    All their scores lie in shared memory or, with `outside`, in the plan's scratch memory.
    """
    defines, made = _geometry(p), p.plan
    C = -(-made.end // 64) * 64
    shared = 4 * tile_floats(tile, double, outside, p.D, C)
    slots, shared_of_one = multiprocessors(device)
    resident = max(1, min(tile_blocks(tile, p.D), shared_of_one // (shared + RESERVED)))
    items = made.items(tile // p.G, slots, resident)
    defines |= tile_defines(tile, double, outside, rolled, p.D)
    kernel = device.kernel("attention_fast_tile", **defines)
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
    defines, made = _geometry(p), p.plan
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
        shared=4 * rows_floats(capacity, p.G, p.D),
    )


def split_rows(G: int, longest_chunk: int, most_dists: int = 32) -> int:
    """Rows of an item of fast-split: 1, 2, 4 or as many as make `most_dists` distributions.

    fast-decode stops at 16 distributions, whose chains its threads hold in registers.
    """
    most = most_dists // G
    return next((r for r in (1, 2, 4) if longest_chunk <= r <= most), most)


def decode_floats(dists: int, C: int) -> int:
    """Shared memory of attention_fast_decode.cu in floats."""
    return 5 * 64 * 32 + dists * (C + 4 + 8) + C // PAGE_SIZE


def decode_shared(device, blocks: int, dists: int, C: int) -> int:
    """Dynamic shared bytes of `blocks` blocks of attention_fast_decode.cu.

    Where every block can have a multiprocessor, a block asks for more than half of one: started early, they
    would otherwise crowd onto those whose score blocks end first.
    """
    slots, shared_of_one = multiprocessors(device)
    alone = shared_of_one // 2 - RESERVED + 16 if blocks <= slots else 0
    return max(4 * decode_floats(dists, C), min(alone, device.shared_limit))


def attention_fast_split(device, p: Problem, *, fused: bool) -> None:
    """Scores in scratch memory by kernels/attention_fast_scores.cu, then softmax and value chains.

    Those are one kernel where `fused` (attention_fast_decode.cu, all weights in shared memory), else two
    (attention_fast_weights.cu and attention_fast_values.cu, any history).
    """
    defines, made = _geometry(p), p.plan
    rows = split_rows(p.G, made.longest_chunk, 16 if fused else 32)
    dists = rows * p.G
    C = -(-made.end // 128) * 128
    items = made.items(rows)
    part = min(items.shape[0], max(1, SCRATCH_BYTES // (4 * dists * C)))
    scores = made.scratch("scores", part * dists * C)
    defines["DISTS"] = dists
    score, *rest = (
        device.kernel(f"attention_fast_{step}", **defines)
        for step in ("scores", *(("decode",) if fused else ("weights", "values")))
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
        if fused:
            rest[0].launch(
                grid=(n, p.D // 32),
                block=256,
                args=(p.vpool, *paged, some, *shape, i32(C), scores, p.out),
                shared=decode_shared(device, n * (p.D // 32), dists, C),
                early=True,
            )
            continue
        inverses = made.scratch("inverses", part * dists)
        rest[0].launch(grid=(n, dists), block=256, args=(some, i32(C), scores, inverses))
        rest[1].launch(
            grid=(n, p.D // 32),
            block=128,
            args=(p.vpool, *paged, some, *shape, i32(C), scores, inverses, p.out),
            shared=4 * (4 * 64 * (32 + dists) + C // PAGE_SIZE),
        )


# Options of attention_fast_tile by variant name; t is the number of distributions, d doubles the staging of
# K, s keeps scores in scratch memory.
TILES: dict[str, dict[str, int]] = {
    "fast-t32": {"tile": 32},
    "fast-t32d": {"tile": 32, "double": 1},
    "fast-t32s": {"tile": 32, "double": 1, "outside": 1},
    "fast-t16": {"tile": 16},
    "fast-t16s": {"tile": 16, "double": 1, "outside": 1},
}


def fits(name: str, device, end: int, chunk: int, G: int, D: int) -> bool:
    """Whether a variant runs histories up to `end`, at most `chunk` rows of a segment, on `device`."""
    if name == "fast-rows":
        return end <= ROWS_LIMIT and 4 * rows_floats(64 if end <= 64 else 128, G, D) <= device.shared_limit
    if name in TILES:
        options = {"double": 0, "outside": 0, **TILES[name]}
        floats = tile_floats(options["tile"], options["double"], options["outside"], D, -(-end // 64) * 64)
        return 4 * floats <= device.shared_limit
    if name == "fast-decode":
        floats = decode_floats(split_rows(G, chunk, 16) * G, -(-end // 128) * 128)
        return 4 * floats <= device.shared_limit
    return True


def _covers(name: str) -> Callable[[object, Problem], str]:
    def why_not(device, p: Problem) -> str:
        if not covers(p.G, p.D):
            return f"it has kernels for 1 to 8 heads a KV head of dimension 64 or 128, not {p.G} of {p.D}"
        if name == "fast-rows" and p.plan.end > ROWS_LIMIT:
            return TooLong(f"its histories end at {ROWS_LIMIT} positions, not at {p.plan.end}")
        if not fits(name, device, p.plan.end, p.plan.longest_chunk, p.G, p.D):
            end, limit = p.plan.end, device.shared_limit
            return TooLong(f"{end} positions of history do not fit its {limit} bytes of shared memory")
        return ""

    return why_not


def _variant(name: str, summary: str, launcher: Callable, ablation: bool = False) -> Variant:
    launchers = {"simt": launcher, "cuda": launcher}
    return Variant(summary, True, launchers, covers=_covers(name), ablation=ablation)


def _tile(name: str, options: dict[str, int]) -> Variant:
    summary = f"{options['tile']} (row, head) distributions a block"
    summary += ", K double-buffered" if options.get("double") else ""
    summary += ", scores in scratch memory: any history" if options.get("outside") else ""
    launcher = functools.partial(attention_fast_tile, **options)
    return _variant(name, summary, launcher, ablation=name not in ("fast-t32", "fast-t32s"))


VARIANTS: dict[str, Variant] = {
    **{name: _tile(name, options) for name, options in TILES.items()},
    "fast-rows": _variant("fast-rows", "two rows a block, histories to 128", attention_fast_rows),
    "fast-decode": _variant(
        "fast-decode",
        "few rows over long histories: scores in parallel over keys, values over dimensions",
        functools.partial(attention_fast_split, fused=True),
    ),
    "fast-split": _variant(
        "fast-split",
        "as fast-decode in three launches: histories of any length",
        functools.partial(attention_fast_split, fused=False),
    ),
}


def sources(G: int, D: int) -> list[tuple[str, dict[str, int]]]:
    """(stem, defines) of every kernel that the fast tier may run at a geometry, to compile ahead."""
    geometry = {"GROUP": G, "HEAD_DIM": D}
    found = [
        (
            "attention_fast_tile",
            geometry
            | tile_defines(o["tile"], o.get("double", 0), o.get("outside", 0), o.get("rolled", 1), D),
        )
        for o in TILES.values()
    ]
    found += [("attention_fast_rows", geometry | {"CAPACITY": capacity}) for capacity in (64, ROWS_LIMIT)]
    steps = ("scores", "decode", "weights", "values")
    rows = {1, 2, 4, 16 // G, 32 // G}
    most = {"decode": 16}  # distributions of a block
    return found + [
        (f"attention_fast_{step}", geometry | {"DISTS": r * G})
        for r in sorted(rows)
        for step in steps
        if r * G <= most.get(step, 32)
    ]
