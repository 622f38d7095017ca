"""The exact tiles: kernels/attention_exact.cu, 36 ways of moving K and V that keep every bit."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from crucible.attention.base import Problem, Variant, fits
from crucible.numerics.contract import K_BLOCK, PAGE_SIZE, WARP

HEAD_DIMS = (64, 128)
MAX_WARPS = 32  # a CTA has one warp per row and head


@dataclass(frozen=True)
class Tile:
    """Q query rows and K_TILE history positions of a CTA; hybrid and cache as attention_tile.cuh says."""

    rows: int
    keys: int
    hybrid: bool = False
    cache: bool = False

    def __str__(self) -> str:
        return f"q{self.rows}-k{self.keys}{'-hybrid' * self.hybrid}{'-cache' * self.cache}"

    def defines(self, D: int) -> dict[str, int]:
        """Macros of the compiled kernel."""
        return {
            "Q": self.rows,
            "K_TILE": self.keys,
            "HYBRID": int(self.hybrid),
            "CACHE": int(self.cache),
            "D": D,
        }

    def refuses(self, p: Problem) -> str:
        """Why this tile cannot take the geometry of `p`, or ""."""
        if p.D not in HEAD_DIMS:
            return f"head_dim {p.D} is none of {', '.join(map(str, HEAD_DIMS))}"
        if self.rows * p.G > MAX_WARPS:
            rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
            need = "needs" if self.rows == 1 else "need"
            return f"{rows} of {p.G} heads {need} more than {MAX_WARPS} warps"
        if self.hybrid and (p.k is None or p.v is None):
            return "the call does not pass the packed rows' own K and V"
        return ""


TILES = tuple(
    Tile(rows, keys, hybrid, cache)
    for rows in (1, 2, 4)
    for keys in (16, 32, 64)
    for hybrid in (False, True)
    for cache in (False, True)
)
STANDARD = Tile(4, 64)


def score_capacity(end: int) -> int:
    """C: the largest slice end, rounded up to 256."""
    return -(-end // K_BLOCK) * K_BLOCK


def shared_bytes(tile: Tile, G: int, D: int, C: int) -> int:
    """Dynamic shared memory of one CTA of attention_exact.cu, in bytes."""
    return 4 * (tile.keys * D + tile.rows * G * C + (C // PAGE_SIZE if tile.cache else 0))


def covers(tile: Tile) -> Callable:
    def why_not(device, p: Problem) -> str:
        refused = tile.refuses(p)
        if refused:
            return refused
        C = score_capacity(p.capacity)
        return fits(f"for exact-{tile}", shared_bytes(tile, p.G, p.D, C), device.shared_limit, C)

    return why_not


def launch_tiles(device, p: Problem, tile: Tile, stem: str, shared: int, more: tuple) -> None:
    """Launch a kernel of attention_tile.cuh's grid: a CTA per KV head, tile of rows and segment."""
    i32 = np.int32
    kernel = device.kernel(stem, **tile.defines(p.D))
    k, v = (p.k, p.v) if tile.hybrid else (p.kpool, p.vpool)  # not read unless hybrid
    kernel.launch(
        grid=(p.Hkv, -(-p.longest // tile.rows), p.S),
        block=WARP * tile.rows * p.G,
        args=(
            *(p.q, p.kpool, p.vpool, p.tables, i32(p.tables.shape[1]), p.desc, k, v),
            *(i32(p.layer), i32(p.layers), i32(p.Hq), i32(p.Hkv), p.scale, *more, p.out),
        ),
        shared=shared,
    )


def attention_exact(tile: Tile) -> Callable:
    """A launcher of kernels/attention_exact.cu for one tile."""

    def launch(device, p: Problem) -> None:
        C = score_capacity(p.capacity)
        shared = shared_bytes(tile, p.G, p.D, C)
        launch_tiles(device, p, tile, "attention_exact", shared, (np.int32(C),))

    return launch


def _variant(tile: Tile) -> Variant:
    launcher = attention_exact(tile)
    summary = f"exact tiles of {tile.rows} rows and {tile.keys} keys"
    summary += ", current slice unpaged" * tile.hybrid + ", page table in shared memory" * tile.cache
    devices = {"simt": launcher, "cuda": launcher}
    return Variant(summary, True, devices, covers(tile), ablation=tile != STANDARD)


VARIANTS = {f"exact-{tile}": _variant(tile) for tile in TILES}
