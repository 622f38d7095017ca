"""Service evidence as tables: paired A/B, the policy sweep, the load client; a table has one metric.

Series are named `WORKLOAD, METRIC, SIDE`, facts `ROW, METRIC, COLUMN` with one of COLUMNS, where a row is a
workload or a policy and a workload. So no two kinds of time meet in a table.
"""

from collections.abc import Sequence

from crucible.evidence.record import Record, Series
from crucible.evidence.statistics import bracket
from crucible.report.gathered import Kept, of_kind
from crucible.report.tables import Table, or_not_run, table

AB, SWEEP, GATE, LOAD, CHECK = "service-ab", "policy-sweep", "service-gate", "load", "load-check"
COMMANDS = {
    AB: "crucible ab --baseline reference --candidate auto --json FILE",
    SWEEP: "crucible sweep --json FILE",
    GATE: "crucible gate service --json FILE",
    LOAD: "crucible load --json FILE",
    CHECK: "crucible load --check-against openai --json FILE",
}
COLUMNS = ("change %", "interval %", "every pair improved", "outcome")
MEDIAN = "median [least, most]"
ARRIVAL, GAP = "TTFT p50", "stream gap worst"  # the two sides of a policy's trade-off
_ENVELOPE = "envelope, round "


def sections(kept: Sequence[Kept], kind: str) -> list[Table]:
    """The tables of every record of a kind; without any one that says `not run` and names the command."""
    found = of_kind(kept, kind)
    if not found:
        return [or_not_run(table((kind,), []), COMMANDS[kind])]
    return [made for one in found for made in (_head(one), *metric_tables(one.record), *_rest(one.record))]


def _head(one: Kept) -> Table:
    item = one.record
    known = tuple(f", {column}" for column in COLUMNS)
    plain = [
        (name, value)
        for name, value in item.facts.items()
        if not name.endswith(known) and not name.startswith(_ENVELOPE)
    ]
    rows = [("verdict of the record", item.verdict), ("claim", item.claim), ("where", one.where), *plain]
    return table((item.kind, "value"), rows)


def metric_tables(item: Record) -> list[Table]:
    """One table a metric: medians of every side, then what the record says of their pairs."""
    cells: dict[str, dict[str, dict[str, object]]] = {}
    units: dict[str, str] = {}
    for one in item.samples:
        workload, metric, side = _named(one)
        if not side or not one.values:
            continue
        row, column = (workload, side) if item.kind == AB else (f"{side}, {workload}", MEDIAN)
        units[metric] = one.unit
        cells.setdefault(metric, {}).setdefault(row, {})[column] = _median(one)
    for name, value in item.facts.items():
        column = next((c for c in COLUMNS if name.endswith(f", {c}")), "")
        row, _, metric = name.removesuffix(f", {column}").rpartition(", ")
        if column and row:
            cells.setdefault(metric, {}).setdefault(row, {})[column] = value
    made = []
    for metric, rows in cells.items():
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        heading = f"{metric} ({units[metric]})" if metric in units else metric
        body = [(name, *(row.get(column, "") for column in columns)) for name, row in rows.items()]
        made.append(table((heading, *columns), body))
    return made


def _rest(item: Record) -> list[Table]:
    """Series without a side, a table a unit, and the machine through every run."""
    made, plain = [], [one for one in item.samples if not _named(one)[2] and one.values]
    for unit in dict.fromkeys(one.unit for one in plain):
        rows = [(one.name, _median(one), len(one.values)) for one in plain if one.unit == unit]
        made.append(table((f"samples ({unit})", MEDIAN, "number"), rows))
    machine: dict[str, dict[str, object]] = {}
    for name, value in item.facts.items():
        if name.startswith(_ENVELOPE):
            who, _, what = name.removeprefix("envelope, ").partition(", ")
            machine.setdefault(who, {})[what] = value
    columns = list(dict.fromkeys(what for row in machine.values() for what in row))
    rows = [(who, *(row.get(what, "") for what in columns)) for who, row in machine.items()]
    return [*made, *([table(("machine through the run", *columns), rows)] if rows else [])]


def _named(one: Series) -> tuple[str, str, str]:
    """(workload, metric, side) of a series' name; no side where it has fewer parts."""
    workload, metric, side = [*one.name.split(", ", 2), "", ""][:3]
    return workload, metric, side


def _median(one: Series) -> str:
    seen = bracket(one.values)
    return f"{seen.median:.4g} [{seen.low:.4g}, {seen.high:.4g}]"


def trade_offs(kept: Sequence[Kept]) -> dict[str, tuple[tuple[float, ...], tuple[float, ...]]]:
    """{policy: (arrivals' TTFT, the stream's worst gap)} samples in ms of the sweeps that have both."""
    found: dict[str, dict[str, tuple[float, ...]]] = {}
    for one in of_kind(kept, SWEEP):
        named = [(_named(series), series) for series in one.record.samples if series.values]
        streams = {workload for (workload, metric, _), _ in named if metric == GAP}
        for (workload, metric, policy), series in named:
            if workload in streams and metric in (ARRIVAL, GAP) and series.unit == "ms":
                found.setdefault(f"{policy}, {workload}", {})[metric] = series.values
    return {policy: (both[ARRIVAL], both[GAP]) for policy, both in found.items() if len(both) == 2}
