"""A comparison of two services as text: the verdict, the table of changes, the machine beside it."""

from collections.abc import Sequence

from crucible.bench.ab_runs import Campaign
from crucible.bench.ab_statistics import SIGNIFICANT, TOLERANCE, Row, missing
from crucible.bench.ab_verdict import Verdict, marked
from crucible.evidence.statistics import BOOTSTRAP_SEED, bracket
from crucible.evidence.watch import BOUNDS
from crucible.report.tables import Table, table
from crucible.service.load.samples import FORMULAS


def comparison(rows: Sequence[Row], baseline: str, candidate: str, tolerance: float = TOLERANCE) -> Table:
    """A line a workload and metric."""
    heads = ("workload", "metric", baseline, candidate, "change, %", "95 % interval", "every pair", "so")
    lines = []
    for row in rows:
        sides = (_shown(medians, row.metric.unit) for medians in (row.baseline, row.candidate))
        interval = f"[{row.interval.low:+.1f}, {row.interval.high:+.1f}]"
        better = sum(gain > 0 for gain in row.gains)
        every = "improved" if row.every_pair else f"{better} of {len(row.gains)}"
        change = f"{row.interval.estimate:+.1f}"
        lines.append((row.workload, row.metric.name, *sides, change, interval, every, row.outcome(tolerance)))
    caption = (
        "Times at the client over HTTP. A value a burst; median [range] of the rounds' medians; changes are "
        "of the same burst in the same round; intervals resample whole rounds (bootstrap, seed "
        f"{BOOTSTRAP_SEED}). Resolved: no zero in the interval, and p < {SIGNIFICANT:g} by a sign test over "
        "the pairs."
    )
    return table(heads, lines, caption)


def envelopes(campaign: Campaign) -> Table:
    """A line a run: medians and ranges of the machine's readings, and the mark of what leaves its bound."""
    said = marked(campaign)
    names = sorted({name for run in campaign.runs for name in run.envelope.readings})
    lines = []
    for run in campaign.runs:
        here = run.envelope.brackets()
        values = (f"{b.median:.4g} [{b.low:.4g}, {b.high:.4g}]" if (b := here.get(n)) else "" for n in names)
        who = f"round {run.round + 1} {run.side}"
        lines.append((who, *values, "; ".join(said.get(who, ()))))
    return table(("run", *names, "marked"), lines, f"The machine through each run. Bounds: {BOUNDS}.")


def _shown(medians: Sequence[float], unit: str) -> str:
    b = bracket(medians)
    return f"{b.median:.4g} [{b.low:.4g}, {b.high:.4g}] {unit}"


def unmeasured(campaign: Campaign) -> list[str]:
    """The line that names metrics which some burst could not give, if there are any."""
    names = missing(campaign)
    return [f"not measured, since some burst had too few gaps: {', '.join(names)}"] if names else []


def text(campaign: Campaign, rows: Sequence[Row], found: Verdict, tolerance: float = TOLERANCE) -> str:
    """All that a person reads, the verdict first."""
    parts = [str(found), f"{campaign.oracle.compared:,} tokens compared with the first run's, every round"]
    if rows:
        names = (campaign.sides[0].name, campaign.sides[1].name)
        parts.append(comparison(rows, *names, tolerance).markdown())
    if campaign.runs:
        parts += [*unmeasured(campaign), envelopes(campaign).markdown()]
    parts.append("\n".join(f"{name}: {what}" for name, what in FORMULAS.items()))
    return "\n\n".join(parts)
