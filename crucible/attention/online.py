"""The online-softmax diagnostics: kernels/attention_online.cu and its native twins. Never a default."""

from collections.abc import Callable

from crucible.attention.base import Problem, Variant, fits
from crucible.attention.exact import Tile, launch_tiles
from crucible.attention.native import native
from crucible.numerics.contract import PAGE_SIZE

KEYS = (16, 32, 64)
TILES = (
    *(Tile(rows, keys) for rows in (1, 2, 4) for keys in KEYS),
    *(Tile(2, 32, *options) for options in ((True, False), (False, True), (True, True))),
)


def shared_bytes(tile: Tile, G: int, D: int, end: int) -> int:
    """Dynamic shared memory of one CTA of attention_online.cu, in bytes."""
    pages = -(-end // PAGE_SIZE) if tile.cache else 0
    return 4 * (tile.keys * D + tile.rows * G * tile.keys + pages)


def covers(tile: Tile) -> Callable:
    def why_not(device, p: Problem) -> str:
        refused = tile.refuses(p)
        if refused:
            return refused
        end = p.capacity
        return fits(f"for online-{tile}", shared_bytes(tile, p.G, p.D, end), device.shared_limit, end)

    return why_not


def attention_online(tile: Tile) -> Callable:
    """A launcher of kernels/attention_online.cu for one tile."""

    def launch(device, p: Problem) -> None:
        shared = shared_bytes(tile, p.G, p.D, p.capacity)
        launch_tiles(device, p, tile, "attention_online", shared, ())

    return launch


def _variant(tile: Tile) -> Variant:
    launcher = attention_online(tile)
    summary = f"online softmax in tiles of {tile.keys} keys, {tile.rows} rows a CTA"
    return Variant(summary, False, {"simt": launcher, "cuda": launcher}, covers(tile), ablation=True)


VARIANTS = {
    **{f"online-{tile}": _variant(tile) for tile in TILES},
    **{
        f"online-k{keys}": Variant(
            f"online softmax in tiles of {keys} keys, native; on simt and cuda: online-q2-k{keys}",
            False,
            {"cpu": native("crucible_attention_online", keys)},
        )
        for keys in KEYS
    },
}
