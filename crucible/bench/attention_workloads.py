"""The attention launches whose hardware counters are read (counters.py): main kernels at a few shapes."""

import functools
from collections.abc import Iterator, Sequence

from crucible.attention.shapes import ALL, case
from crucible.bench.attention import prepare
from crucible.bench.counters import Workload
from crucible.errors import UnsupportedError

SHAPES = ("16x16", "4x256", "2x512", "decode-16x1000", "decode-64x1000")
VARIANTS = (
    *("reference", "exact-q4-k64", "fast-t32", "fast-t32s", "fast-t16", "fast-rows", "fast-decode"),
    *("online-q2-k32",),
)


def workloads(
    shapes: Sequence[str] = SHAPES, variants: Sequence[str] = VARIANTS, heads: Sequence[int] = (12, 3, 64)
) -> Iterator[Workload]:
    """`variant at shape`, and the launch; a variant that does not cover a shape is left out."""
    from crucible import device as devices

    device = devices.get("cuda")
    for shape in shapes:
        c = case(ALL[shape], *heads)
        run, _ = prepare(device, c)
        few = max(length for _, length in c.segments) <= 4
        for name in variants:
            if name == "fast-decode" and not few:
                continue  # a kernel for few rows
            try:
                run(name)
            except UnsupportedError:
                continue
            yield f"{name} at {shape}", functools.partial(run, name)
