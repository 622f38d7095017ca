"""Service evidence as tables: paired A/B, the policy sweep, the load client; one table a metric.

A fact is named `ROW: METRIC` or `ROW: METRIC, COLUMN`, where a row is a workload or a policy. So times of the
kernel, of a stage, of the wall and of HTTP cannot meet in one table.
"""

from collections.abc import Sequence

from crucible.evidence.record import Record
from crucible.evidence.statistics import bracket
from crucible.report.gathered import Kept, of_kind
from crucible.report.tables import Table, or_not_run, table

AB, SWEEP, GATE, LOAD = "service-ab", "policy-sweep", "service-gate", "http-load"
COMMANDS = {
    AB: "crucible ab",
    SWEEP: "crucible ab --sweep",
    GATE: "crucible gate service",
    LOAD: "crucible load",
}
ARRIVAL, GAP = "arrival TTFT", "worst gap"  # the two sides of a policy's trade-off, series `POLICY: …` in ms


def sections(kept: Sequence[Kept], kind: str) -> list[Table]:
    """The tables of every record of a kind; one that says `not run` and names the command without any."""
    found = of_kind(kept, kind)
    if not found:
        return [or_not_run(table((kind,), []), COMMANDS[kind])]
    return [made for one in found for made in _tables(one)]


def _tables(one: Kept) -> list[Table]:
    item, by_metric = one.record, metrics(one.record)
    plain = [(name, value) for name, value in item.facts.items() if ": " not in name]
    head = [("verdict", item.verdict), ("claim", item.claim), ("where", one.where), *plain]
    made = [table((item.kind, "value"), head)]
    for metric, rows in by_metric.items():
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        cells = [(name, *(row.get(column, "") for column in columns)) for name, row in rows.items()]
        made.append(table((metric, *(column or "value" for column in columns)), cells))
    return made + _samples(item)


def metrics(item: Record) -> dict[str, dict[str, dict[str, object]]]:
    """{metric: {row: {column: value}}} of the facts named `ROW: METRIC, COLUMN`, in their order."""
    found: dict[str, dict[str, dict[str, object]]] = {}
    for name, value in item.facts.items():
        row, colon, rest = name.partition(": ")
        metric, _, column = rest.partition(", ")
        if colon:
            found.setdefault(metric, {}).setdefault(row, {})[column] = value
    return found


def _samples(item: Record) -> list[Table]:
    """Median and range of every series, one table a metric and unit."""
    found: dict[tuple[str, str], list[tuple]] = {}
    for one in (s for s in item.samples if s.values):
        row, colon, metric = one.name.partition(": ")
        seen = bracket(one.values)
        span = f"{seen.low:.4g} to {seen.high:.4g}"
        cells = (row, f"{seen.median:.4g}", span, seen.samples)
        found.setdefault((metric if colon else "", one.unit), []).append(cells)
    return [
        table((f"{metric} samples ({unit})".strip(), "median", "range", "samples"), rows)
        for (metric, unit), rows in found.items()
    ]


def trade_offs(kept: Sequence[Kept]) -> dict[str, tuple[tuple[float, ...], tuple[float, ...]]]:
    """{policy: (arrival TTFT, worst gap)} samples in ms of the sweeps that have both series."""
    found: dict[str, dict[str, tuple[float, ...]]] = {}
    for one in of_kind(kept, SWEEP):
        for series in one.record.samples:
            policy, _, metric = series.name.partition(": ")
            if metric in (ARRIVAL, GAP) and series.unit == "ms" and series.values:
                found.setdefault(policy, {})[metric] = series.values
    return {policy: (both[ARRIVAL], both[GAP]) for policy, both in found.items() if len(both) == 2}
