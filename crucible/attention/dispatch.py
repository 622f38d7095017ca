"""`auto`: which exact variant runs a packed batch, chosen from measurements kept as data (dispatch.json)."""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from crucible.attention import exact, fast
from crucible.attention.base import Problem
from crucible.attention.variants import VARIANTS
from crucible.errors import InputError
from crucible.evidence import dispatch_table
from crucible.evidence.dispatch_table import Table
from crucible.files import brief
from crucible.numerics.checks import real, whole

TABLE = Path(__file__).with_name("dispatch.json")
FORMAT = "crucible-attention-dispatch"
# The slowest variant of a measured point is never wanted; this many of the fastest are kept, so that one
# that does not fit a smaller device has a next best.
KEPT = 4
# What any history fits comes after what the table names; the reference is the last resort.
LAST = ("fast-t32s", "fast-t16s", "fast-split", f"exact-{exact.STANDARD}", "reference")


@dataclass(frozen=True)
class Point:
    """One measured batch: what it looks like to a kernel, and variants by microseconds, fastest first.

    G heads a KV head, D head_dim, work: rows times query heads, end: longest history, mean: mean history
    of a row, chunk: rows of the longest segment.
    """

    G: int
    D: int
    work: int
    end: int
    mean: int
    chunk: int
    us: dict[str, float]


@functools.cache
def load(path: Path = TABLE) -> Table:
    """The dispatch table at `path`.

    InputError when the file is not one: a shape below 1, a time that is no positive number, or a name that
    is not one of an exact variant.
    """
    return dispatch_table.load(path, FORMAT, _point, "crucible bench attention --device cuda --tune")


def _point(**given) -> Point:
    wanted = [field.name for field in fields(Point)]
    if set(given) != set(wanted):
        raise InputError(f"a point has {brief(sorted(given))}; it must have {', '.join(wanted)}")
    for name in wanted[:-1]:
        whole(name, given[name], 1)
    us = given["us"]
    if not isinstance(us, dict) or not us:
        raise InputError(f"us {brief(us)} must be microseconds by variant name, at least one")
    for name, time in us.items():
        if not may_choose(name, "cuda"):
            raise InputError(
                f"{brief(name)} is no variant that auto may choose; name exact ones of cuda, such as fast-t32"
            )
        if not 0 < real(f"time of {name}", time) < math.inf:
            raise InputError(f"time of {name} {brief(time)} must be positive and finite")
    return Point(**given)


def may_choose(name: str, device_name: str) -> bool:
    """Whether auto may run a variant: it keeps the contract's bits and the device has it."""
    found = VARIANTS.get(name)
    return found is not None and found.exact and device_name in found.launchers


def save(table: Table, path: Path = TABLE) -> Path:
    """Write a table: a line a point, fastest variants only."""
    dispatch_table.save(table, path, FORMAT, KEPT)
    load.cache_clear()
    return Path(path)


def _features(G: int, D: int, work: int, end: int, mean: int, chunk: int) -> tuple[float, ...]:
    # Work decides how full the device is, the histories how long items take and whether they fit, and a
    # chunk of few rows wastes tiles.
    few = math.log2(min(chunk, 64))
    return math.log2(work), 2 * math.log2(end), math.log2(mean), few, math.log2(G), 4 * math.log2(D)


def ranking(here: Sequence[int], table: Table | None = None) -> list[str]:
    """Variants, best first, at the measured point nearest to (G, D, work, end, mean, chunk) in logarithms."""
    table = table or load()
    at = _features(*here)
    near = min(table.points, key=lambda p: math.dist(at, _features(p.G, p.D, p.work, p.end, p.mean, p.chunk)))
    return sorted(near.us, key=near.us.get)


def candidates(device_name: str, p: Problem, table: Table | None = None) -> Iterator[str]:
    """Exact variants to try for a problem, best first; reads extents only, so no value can move the choice.

    Whatever else a table names is passed over. Beside the cpu device, whose one kernel serves every shape,
    the problem carries its plan.
    """
    if device_name == "cpu":
        yield "exact"
        return
    if fast.covers(p.G, p.D):
        made = p.plan
        here = (p.G, p.D, made.rows * p.Hq, made.end, made.mean, made.longest_chunk)
        named = made.once(("ranking", p.Hq, p.D), lambda: ranking(here, table))
        yield from (name for name in dict.fromkeys((*named, *LAST)) if may_choose(name, device_name))
    else:
        yield from (name for name in LAST if name not in fast.VARIANTS)
