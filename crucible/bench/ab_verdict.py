"""Accepted or refused, and why: outputs first, then the machine, then what was demanded, then the changes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crucible.bench.ab_runs import Campaign
from crucible.bench.ab_statistics import METRICS, TOLERANCE, Row
from crucible.errors import InputError
from crucible.evidence.watch import marks
from crucible.numerics.checks import real


@dataclass(frozen=True)
class Demand:
    """Every pair of a workload's metric improves by at least `percent`; a negative one may worsen so far."""

    workload: str
    metric: str
    percent: float

    @classmethod
    def parse(cls, text: str) -> "Demand":
        """ "4x512:TTFT:35" or "2x33:throughput:-2"; the metric by the beginning of its name."""
        parts = text.split(":")
        if len(parts) != 3:
            raise InputError(f"demand {text!r} is not WORKLOAD:METRIC:PERCENT, such as 4x512:TTFT:35")
        hits = [m.name for m in METRICS if m.name.lower().startswith(parts[1].lower())]
        if len(hits) != 1:
            names = ", ".join(m.name for m in METRICS)
            raise InputError(f"demand {text!r}: {parts[1]!r} is not one metric of {names}")
        try:
            percent = real("percent", float(parts[2]))
            if not math.isfinite(percent):
                raise ValueError
            return cls(parts[0], hits[0], percent)
        except ValueError:
            raise InputError(f"demand {text!r}: {parts[2]!r} is not a number of per cent") from None

    def __str__(self) -> str:
        return f"{self.workload} {self.metric} {self.percent:+g} %"

    def met(self, rows: Sequence[Row]) -> str:
        """ "" where it is met, else why not."""
        row = next((r for r in rows if (r.workload, r.metric.name) == (self.workload, self.metric)), None)
        if row is None:
            return f"{self} was demanded and not measured"
        least = min(row.gains)
        return "" if least >= self.percent else f"{self} was demanded of every pair, one has {least:+.1f} %"


@dataclass(frozen=True)
class Verdict:
    """What to do with the candidate, and the reason in a sentence."""

    accepted: bool
    reason: str

    def __str__(self) -> str:
        return f"{'accepted' if self.accepted else 'refused'}: {self.reason}"


def verdict(
    campaign: Campaign,
    rows: Sequence[Row],
    rounds: int,
    demands: Sequence[Demand] = (),
    tolerance: float = TOLERANCE,
) -> Verdict:
    """The first rule that fails decides.

    1. Every output is the baseline's, and every request was answered. 2. All rounds are complete. 3. The
    machine was the same through all runs, within the bounds of evidence.watch. 4. Every demand is met.
    5. No metric is worse, resolved, by more than `tolerance` per cent. 6. Without demands, some metric is
    better, resolved.
    """
    if campaign.broken:
        return Verdict(False, campaign.broken)
    done = len(campaign.runs) // len(campaign.sides)
    if campaign.stopped or done < rounds:
        return Verdict(False, f"{done} of {rounds} rounds were complete when it was interrupted")
    moved = [f"{who}: {'; '.join(said)}" for who, said in marked(campaign).items()]
    if moved:
        more = f"; {len(moved) - 1} more)" if moved[1:] else ")"
        return Verdict(False, f"the machine was not the same in all runs ({moved[0]}{more}")
    if unmet := [why for demand in demands if (why := demand.met(rows))]:
        return Verdict(False, "; ".join(unmet))
    by = {"improved": [], "worse": []}
    for row in rows:
        by.setdefault(row.outcome(tolerance), []).append(row)
    if by["worse"]:
        worst = min(by["worse"], key=lambda row: row.gain)
        return Verdict(
            False,
            f"{worst.workload} {worst.metric.name} is {-worst.gain:.1f} % worse ({len(by['worse'])} of "
            f"{len(rows)} metrics are worse by more than {tolerance:g} %)",
        )
    if not by["improved"] and not demands:
        why = next((f": {row.too_few}" for row in rows if row.too_few), "")
        return Verdict(False, f"none of {len(rows)} metrics improved by more than the rounds differ{why}")
    return Verdict(
        True,
        f"outputs equal, {len(by['improved'])} of {len(rows)} metrics improved, none worse by more than "
        f"{tolerance:g} %" + (f", {len(demands)} demands met" if demands else ""),
    )


def marked(campaign: Campaign) -> Mapping[str, list[str]]:
    """{run: how its envelope leaves the bounds}, of the runs that do."""
    found = marks([run.envelope for run in campaign.runs])
    pairs = zip(campaign.runs, found, strict=True)
    return {f"round {run.round + 1} {run.side}": said for run, said in pairs if said}
