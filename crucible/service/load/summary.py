"""Samples of a run as a table of client times, and as an evidence record whose raw samples lie beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from crucible.evidence.environment import capture
from crucible.evidence.record import Record, Series
from crucible.evidence.statistics import bracket
from crucible.service.load import samples
from crucible.service.load.samples import FORMULAS, Sample

_FOR_P95 = 20  # values that a 95th percentile takes: below, it would only name the largest
NOT_CLAIMED = (
    "times of another client, network or machine",
    "times inside the server: these are arrivals at the client",
)


@dataclass(frozen=True)
class Metric:
    """Values of one kind, and the burst of each."""

    name: str
    unit: str
    values: tuple[float, ...]
    bursts: tuple[str, ...]


def metrics(taken: Sequence[Sample]) -> list[Metric]:
    """Client times of the good, timed requests; a metric without a value is left out."""
    good = [s for s in taken if s.good and not s.warmup]
    bursts = {n: list(group) for n, group in groupby(sorted(good, key=lambda s: s.burst), lambda s: s.burst)}
    found = {
        ("TTFT", "ms"): [(s.burst, 1e3 * s.ttft) for s in good],
        ("gap", "ms"): [(s.burst, 1e3 * gap) for s in good for gap in s.gaps],
        ("end to end", "ms"): [(s.burst, 1e3 * s.end_to_end) for s in good],
        ("tok/s a stream", "tok/s"): [(s.burst, s.rate) for s in good if s.rate is not None],
        ("tok/s", "tok/s"): [(n, samples.throughput(group)) for n, group in bursts.items()],
    }
    made = []
    for (name, unit), pairs in found.items():
        if pairs:
            where, values = zip(*pairs, strict=True)
            made.append(Metric(name, unit, tuple(map(float, values)), tuple(map(str, where))))
    return made


def over_server(taken: Sequence[Sample]) -> list[float]:
    """Seconds of client TTFT above the server's own, from submission to the first token, a request each."""
    timed = (s for s in taken if s.good and not s.warmup)
    return [s.ttft - s.server["first_token"] for s in timed if "first_token" in s.server]


def lines(taken: Sequence[Sample]) -> list[str]:
    """What a person reads: counts, median [least, most] of every metric, formulas, the server's own times."""
    timed = [s for s in taken if not s.warmup]
    good = [s for s in timed if s.good]
    tokens, shared = sum(s.count for s in good), sum(s.shared for s in good)
    text = [
        f"{len(good)} of {len(timed)} requests answered, {tokens:,} tokens, {shared:,} came with another; "
        f"{refused(timed)} refused with 429 by a queue that is full; {len(taken) - len(timed)} warmups apart"
    ]
    text += [f"  failed: {why} (x{count})" for why, count in failures(timed).items()]
    rows = [("times at the client", "median [least, most]", "p95", "values")]
    for m in metrics(taken):
        b = bracket(m.values)
        p95 = f"{np.percentile(m.values, 95):.4g}" if len(m.values) >= _FOR_P95 else ""
        shown = f"{b.median:.4g} [{b.low:.4g}, {b.high:.4g}] {m.unit}"
        rows.append((m.name, shown, p95, str(len(m.values))))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    text += ["  " + "  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    late = [s.sent - s.planned for s in timed if s.planned is not None and s.sent > s.planned]
    if late:
        text.append(f"  sent at most {1e3 * max(late):.3g} ms after it was due")
    if extra := over_server(taken):
        b = bracket([1e3 * value for value in extra])
        text.append(
            f"  TTFT above the server's own, from submission: {b.median:.3g} [{b.low:.3g}, {b.high:.3g}] ms"
        )
    return text + [f"  {name}: {what}" for name, what in FORMULAS.items()]


def refused(taken: Sequence[Sample]) -> int:
    """Requests that the service did not take, as too many waited."""
    return sum(s.status == 429 for s in taken)


def failures(taken: Sequence[Sample]) -> dict[str, int]:
    """Requests that were not answered, by what was said."""
    bare = "no token that can be timed: it ended at once, or its tokens have no text"
    why = [s.error or (bare if s.status == 200 else f"HTTP status {s.status}") for s in taken if not s.good]
    return {each: why.count(each) for each in dict.fromkeys(why)}


def to_record(plan: str, taken: Sequence[Sample], raw: Path | None, facts: dict, device: str) -> Record:
    """Kind `load`: a median a metric as facts, a value a request as samples; gaps stay in the raw file."""
    found = metrics(taken)
    timed = [s for s in taken if not s.warmup]
    failed = sum(not s.good for s in timed)
    facts = dict(facts) | {f"{m.name}, median {m.unit}": round(bracket(m.values).median, 4) for m in found}
    facts |= {f"formula of {name}": what for name, what in FORMULAS.items()}
    if extra := over_server(taken):
        facts["TTFT above the server's own, median ms"] = round(1e3 * bracket(extra).median, 4)
    if raw is not None:
        facts["raw samples"] = raw.name
    return Record(
        kind="load",
        claim=f"times that a client sees under {plan}",
        compared="nothing: one service, one client",
        verdict="measured" if not failed else "fail",
        elements=len(timed),
        finite=len(timed) - failed,
        nonzero=len(timed) - failed,
        facts={
            "plan": plan,
            "requests": len(timed),
            "failed": failed,
            "refused with 429": refused(timed),
            **facts,
        },
        samples=tuple(Series(m.name, m.unit, m.values, m.bursts) for m in found if m.name != "gap"),
        not_claimed=NOT_CLAIMED,
        environment=capture(device),
    )
