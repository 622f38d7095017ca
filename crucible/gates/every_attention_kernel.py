"""Every attention kernel in every form that auto may choose, on small shapes, held to the reference."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from crucible import device as devices
from crucible.attention import fast
from crucible.attention.plan import plan_of
from crucible.attention.run import run
from crucible.attention.shapes import LAYER, Case, Segments, case
from crucible.attention.variants import VARIANTS
from crucible.device.dry import Dry
from crucible.errors import UnsupportedError
from crucible.numerics.bits import assert_same_bits
from crucible.ops.kv_store import store_kv
from crucible.ops.rope import rope, rope_table

HKV = 2
ALL, FAST = tuple(VARIANTS), ("reference", *fast.VARIANTS)
FEW_ROWS = ("reference", "fast-decode", "fast-split")


@dataclass(frozen=True)
class Shape:
    """G heads a KV head of dimension D, segments of (rows before, rows), and the variants that run them."""

    G: int
    D: int
    segments: Segments
    variants: tuple[str, ...] = ALL


# Edges of pages, tiles and the 64- and 256-key groups, and a decode row; every variant.
SHAPES = (
    Shape(4, 64, ((0, 17), (33, 5), (0, 1), (70, 20), (255, 2))),
    Shape(3, 64, ((0, 9), (25, 16), (63, 1), (300, 1))),
    Shape(3, 64, ((0, 9), (25, 16), (63, 1), (100, 2))),
    Shape(8, 128, ((0, 20), (129, 3))),
)
# What a fast kernel is compiled for: G, D, histories to 64 or to 128, and 1, 2, 4 or more rows an item.
# The last one goes beyond the scores that a thread or a lane holds in registers.
FORMS = tuple(
    Shape(G, D, segments, variants)
    for G in (3, 4, 8)
    for D in (64, 128)
    for segments, variants in (
        (((0, 21), (33, 9)), FAST),
        (((0, 3), (96, 4), (37, 1)), FAST),
        (((250, 2), (64, 1)), FEW_ROWS),
        (((16, 1), (1100, 1), (2100, 1)), FEW_ROWS),
    )
)


def attention_launches(device, shapes: tuple[Shape, ...] = (*SHAPES, *FORMS)) -> Iterator[str]:
    """Launch kernel after kernel on a device, yielding what ran; AssertionError if exact bits differ."""
    for shape in shapes:
        c = case(shape.segments, shape.G * HKV, HKV, shape.D)
        expected = None
        for variant, out in _runs(device, shape, c):
            result = device.download(out)
            expected = result if variant == "reference" else expected
            if VARIANTS[variant].exact:
                assert_same_bits(expected, result, variant)
            yield f"{variant} G={shape.G} D={shape.D}"
        if shape in SHAPES:
            yield _rope_and_store(device, c)


def attention_sources() -> list[tuple[str, dict[str, int]]]:
    """(stem, macros) of every kernel that `attention_launches` runs, found without a launch."""
    dry = Dry(devices.get("simt"))
    for shape in (*SHAPES, *FORMS):
        for _ in _runs(dry, shape, case(shape.segments, shape.G * HKV, HKV, shape.D)):
            pass
    return dry.sources


def _runs(device, shape: Shape, c: Case) -> Iterator[tuple[str, object]]:
    """Each variant of the shape that the device has and that covers it, and its output."""
    q, *paged = (device.upload(x) for x in (c.q, c.kpool, c.vpool, c.tables, c.packed.desc))
    k, v = (device.upload(x) for x in c.own())
    plan = plan_of(device, c.packed.desc, HKV)
    for variant in shape.variants:
        if device.name not in VARIANTS[variant].launchers:
            continue
        with contextlib.suppress(UnsupportedError):
            out = device.zeros(c.q.shape)
            done = run(device, q, *paged, LAYER, HKV, shape.D, variant, out, plan=plan, k=k, v=v)
            yield variant, done.out


def _rope_and_store(device, c: Case) -> str:
    cos, sin = (device.upload(t) for t in rope_table(10000.0, c.D, np.arange(512)))
    rope(device, device.upload(c.q), device.upload(c.packed.positions), cos, sin, c.D)
    pools = (device.upload(x) for x in (c.kpool, c.vpool, c.tables, c.packed.desc))
    store_kv(device, *(device.upload(x) for x in c.own()), *pools, LAYER)
    return f"rope and kv_store D={c.D}"
