"""`auto`: which exact variant runs a packed batch, chosen from measurements kept as data (dispatch.json)."""

import functools
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from crucible.attention.plan import Plan, plan
from crucible.errors import InputError

TABLE = Path(__file__).with_name("dispatch.json")
FORMAT = "crucible-attention-dispatch"
# The slowest variant of a measured point is never wanted; this many of the fastest are kept, so that one
# that does not fit a smaller device has a next best.
KEPT = 4
log = logging.getLogger(__name__)


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


@dataclass(frozen=True)
class Table:
    """Measured points and where they come from (device, time, commit, kernel digest)."""

    provenance: dict[str, str]
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Choice:
    """What `auto` runs and one sentence that says why; `fallback` where none of the fast variants could."""

    variant: str
    reason: str
    fallback: bool = False


@functools.cache
def load(path: Path = TABLE) -> Table:
    """The dispatch table at `path`. InputError when the file is not one."""
    try:
        body = json.loads(Path(path).read_text(encoding="utf-8"))
        if body["format"] != FORMAT:
            raise ValueError(f"format {body['format']!r}")
        return Table(dict(body["provenance"]), tuple(Point(**p) for p in body["points"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not a dispatch table ({error}); run `crucible bench attention --device cuda --tune`"
        ) from None


def save(table: Table, path: Path = TABLE) -> Path:
    """Write a table: a line a point, fastest variants only."""
    lines = []
    for point in table.points:
        us = dict(sorted(point.us.items(), key=lambda item: item[1])[:KEPT])
        lines.append(json.dumps({**asdict(point), "us": {k: round(v, 2) for k, v in us.items()}}))
    head = json.dumps({"format": FORMAT, "provenance": table.provenance}, indent=1)[:-2]
    Path(path).write_text(head + ',\n "points": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n", encoding="utf-8")
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


def choose(device, made: Plan, Hq: int, D: int, table: Table | None = None) -> Choice:
    """The variant for a planned batch on `device`; reads shapes only, so it cannot depend on values."""
    from crucible.attention import fast

    G = Hq // made.Hkv
    if not fast.covers(G, D):
        return Choice("reference", f"no fast kernel for {G} heads a KV head of dimension {D}", True)
    names = ranking((G, D, made.rows * Hq, made.end, made.mean, made.longest_chunk), table)
    for name in [*names, "fast-t32s", "fast-t16s", "fast-split"]:
        if fast.fits(name, device, made.end, made.longest_chunk, G, D):
            return Choice(name, f"fastest measured near {made.rows} rows with histories up to {made.end}")
    return Choice("reference", f"no fast variant fits {device.name}", True)


def attention_auto(device, p) -> None:
    """Launch what `choose` says; a fallback to the reference is logged."""
    from crucible.attention.run import variants

    made = p.plan if p.plan is not None else plan(device, p.desc, p.Hkv)
    choice = made.once(("choice", p.Hq, p.D), lambda: choose(device, made, p.Hq, p.D))
    if choice.fallback:
        log.warning("attention auto runs the reference: %s", choice.reason)
    variants()[choice.variant].launchers[device.name](device, p.planned(made))
