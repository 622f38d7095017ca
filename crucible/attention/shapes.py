"""Shapes that attention is timed and checked on, with inputs: paged K/V of three layers, pages shuffled."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crucible.errors import InputError
from crucible.kv.slices import Packed, Slice, pack
from crucible.numerics import inputs
from crucible.numerics.contract import PAGE_SIZE

SEED = 20260908
LAYERS, LAYER = 3, 1
# A shape is its segments: (rows already in the pool, rows of this launch).
Segments = tuple[tuple[int, int], ...]


def _same(count: int, start: int, length: int) -> Segments:
    return ((start, length),) * count


SHAPES: dict[str, Segments] = {
    **{f"single-{n}": _same(1, 0, n) for n in (1, 16, 32, 64, 128, 256, 512, 768, 941, 1024)},
    "16x16": _same(16, 0, 16),
    "8x32": _same(8, 0, 32),
    "4x64": _same(4, 0, 64),
    "4x128": _same(4, 0, 128),
    "4x256": _same(4, 0, 256),
    "8x128": _same(8, 0, 128),
    "2x512": _same(2, 0, 512),
    **{f"history-64-at-{p}": _same(4, p, 64) for p in (0, 64, 256, 512, 960)},
    "scheduled-4x512-first": _same(4, 0, 256),
    "scheduled-4x512-second": _same(4, 256, 256),
    "heterogeneous": ((0, 17), (63, 64), (255, 129), (512, 257)),
}
DECODE: dict[str, Segments] = {
    "decode-1x1000": _same(1, 999, 1),
    "decode-16x1000": _same(16, 999, 1),
    "decode-64x1000": _same(64, 999, 1),
}

ALL = {**SHAPES, **DECODE}


def chosen(names: Sequence[str]) -> dict[str, Segments]:
    """The named shapes of ALL, or the 25 where no name is given. InputError for an unknown one."""
    for name in names:
        if name not in ALL:
            raise InputError(f"no attention shape {name!r}; choose from {', '.join(ALL)}")
    return {name: ALL[name] for name in names} if names else SHAPES


@dataclass(frozen=True)
class Case:
    """Inputs on the host; `packed` describes the rows. Slots that no position owns hold NaN."""

    segments: Segments
    packed: Packed
    Hq: int
    Hkv: int
    D: int
    q: np.ndarray
    kpool: np.ndarray
    vpool: np.ndarray
    tables: np.ndarray

    @property
    def pairs(self) -> int:
        """Visible (query head, row, key) triples."""
        return self.Hq * sum(t * p + t * (t + 1) // 2 for p, t in self.segments)

    def own(self) -> tuple[np.ndarray, np.ndarray]:
        """K and V of this launch's own rows, f32 [T][Hkv*D] each, as a hybrid variant is given them."""
        position, request = self.packed.positions, self.packed.desc[self.packed.row_segment, 3]
        at = self.tables[request, position // PAGE_SIZE], LAYER, position % PAGE_SIZE
        return np.ascontiguousarray(self.kpool[at]), np.ascontiguousarray(self.vpool[at])

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V that the rows see, each read once."""
        return sum(p + t for p, t in self.segments) * self.Hkv * self.D * 2 * 4


def case(segments: Segments, Hq: int = 12, Hkv: int = 3, D: int = 64, seed: int = SEED) -> Case:
    """The inputs of one shape: q, K and V near normal, every request's pages scattered over the pool."""
    packed = pack([Slice(i, p, t) for i, (p, t) in enumerate(segments)])
    needed = [-(-(p + t) // PAGE_SIZE) for p, t in segments]
    pages = sum(needed) + 7
    order = np.argsort(inputs.bits(seed, 3, pages), kind="stable").astype(np.int32)
    tables = np.full((len(segments), max(needed)), order[-1], np.int32)
    owned = np.zeros((pages, PAGE_SIZE), bool)
    used = 0
    for i, (p, t) in enumerate(segments):
        tables[i, : needed[i]] = order[used : used + needed[i]]
        used += needed[i]
        position = np.arange(p + t)
        owned[tables[i, position // PAGE_SIZE], position % PAGE_SIZE] = True
    pools = []
    for stream in (1, 2):
        pool = np.full((pages, LAYERS, PAGE_SIZE, Hkv * D), np.nan, np.float32)
        pool[:, LAYER] = inputs.normalish(seed, stream, (pages, PAGE_SIZE, Hkv * D))
        pool[:, LAYER][~owned] = np.nan
        pools.append(pool)
    q = inputs.normalish(seed, 0, (packed.rows, Hq, D))
    return Case(tuple(segments), packed, Hq, Hkv, D, q, *pools, tables)
