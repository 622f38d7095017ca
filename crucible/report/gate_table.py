"""Every gate in one table: what it counted, on which device, with what verdict, and how to run it again."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from crucible.report.gathered import THIS_RUN, Kept, of_kind
from crucible.report.tables import Table, table

NOT_RUN = "not run"
MANY = 20  # more conformance records than this are one row


@dataclass(frozen=True)
class Gate:
    """One gate: the kinds of its records, the fact (or the noun) that counts its cases, its command."""

    name: str
    kinds: tuple[str, ...]
    counts: str
    command: str


GATES = (
    Gate("conformance", ("conformance",), "cases", "crucible conformance tests/vectors --device DEVICE"),
    Gate("tensor", ("tensor gate",), "comparisons", "crucible gate tensor --device DEVICE"),
    Gate("model", ("model gate",), "sequences", "crucible gate model --device DEVICE"),
    Gate("devices", ("cpu and cuda", "cpu and simt"), "sequences", "crucible gate devices --device DEVICE"),
    Gate("drift", ("drift",), "sequences", "crucible gate drift"),
    Gate("engine", ("engine gate",), "sequences", "crucible gate engine"),
    Gate("service", ("service-gate",), "requests", "crucible gate service"),
    Gate("sanitizers", ("sanitizers",), "launches", "python -m crucible.gates.sanitizers FILE"),
    Gate("GPU tests", ("tests",), "passed", "pytest -m gpu tests --record FILE"),
    Gate("held-out text", ("held-out",), "scored targets", "crucible eval"),
)


@dataclass(frozen=True)
class Line:
    """One gate on one device of one machine."""

    gate: Gate
    where: str
    records: tuple[Kept, ...]

    @property
    def verdict(self) -> str:
        """fail if any record fails, pass if one passes and none fails, else measured or `not run`."""
        seen = {one.record.verdict for one in self.records}
        return next((v for v in ("fail", "pass", "measured") if v in seen), NOT_RUN)

    @property
    def counted(self) -> int:
        """The cases of all records, in the gate's own noun."""
        return sum(_counted(one, self.gate.counts) for one in self.records)


def _counted(kept: Kept, noun: str) -> int:
    value = kept.record.facts.get(noun)
    if isinstance(value, int):
        return int(value)
    said = re.match(rf"([\d,]+) {noun}\b", kept.record.compared)
    return int(said[1].replace(",", "")) if said else 0


def lines(kept: Sequence[Kept]) -> list[Line]:
    """A line for every gate, device and machine that has records, and one for a gate that has none."""
    found = []
    for gate in GATES:
        places: dict[str, list[Kept]] = {}
        for one in of_kind(kept, *gate.kinds):
            places.setdefault(one.where, []).append(one)
        found += [Line(gate, where, tuple(ones)) for where, ones in places.items()]
        found += [Line(gate, "", ())] if not places else []
    return found


def gates_table(kept: Sequence[Kept]) -> Table:
    """One row a line: verdict first, then counts; a gate that nobody ran has a row that says so."""
    rows = []
    for line in lines(kept):
        name, ones = line.gate.name, [one.record for one in line.records]
        if not ones:
            rows.append((NOT_RUN, name, "", "", "", "", ""))
            continue
        many = (
            f"{line.counted:,} {line.gate.counts}"
            if line.counted
            else f"{len(ones)} record{'s' * (len(ones) != 1)}"
        )
        states = "; ".join(dict.fromkeys(one.state for one in line.records if one.state)) or THIS_RUN
        elements, differing = sum(r.elements for r in ones), sum(r.differing for r in ones)
        rows.append((line.verdict, name, line.where, many, elements, differing, states))
    heads = ("verdict", "gate", "device, folder", "counted", "elements compared", "differing", "commit, day")
    return table(heads, rows)


def verdict_sentence(kept: Sequence[Kept]) -> str:
    """All gates in one sentence, failures by name and fact, and those that were not run."""
    found = lines(kept)
    said = [f"{sum(one.verdict == 'pass' for one in found)} of {len(found)} lines pass"]
    for one in found:
        if one.verdict == "fail":
            bad = next(k.record for k in one.records if k.record.verdict == "fail")
            facts = ", ".join(f"{name} {value}" for name, value in list(bad.facts.items())[:6])
            said.append(f'{one.gate.name} fails on {one.where}: "{bad.claim}" does not hold ({facts})')
    missing = [one.gate.name for one in found if one.verdict == NOT_RUN]
    said += [f"not run: {', '.join(missing)}"] if missing else []
    return "; ".join(said) + "."


def commands_table(kept: Sequence[Kept]) -> Table:
    """How to make each gate's line again, and the file that keeps its records."""
    rows = []
    for line in lines(kept):
        device = next((k.record.environment.device for k in line.records if k.record.environment), "DEVICE")
        files = ", ".join(dict.fromkeys(one.file for one in line.records)) or NOT_RUN
        rows.append((line.gate.name, line.where, line.gate.command.replace("DEVICE", device), files))
    return table(("gate", "device, folder", "command", "records"), rows)


def claims_table(kept: Sequence[Kept]) -> Table:
    """Every claim of the gates with its verdict; the many files of conformance are one row a machine."""
    rows = []
    for line in lines(kept):
        ones = [one.record for one in line.records]
        if line.gate.name == "conformance" and len(ones) > MANY:
            some = (line.gate.name, f"each of {len(ones)} sections has the contract's bits", "stored vectors")
            counts = (sum(r.elements for r in ones), sum(r.differing for r in ones))
            rows.append((line.verdict, line.where, *some, *counts))
            continue
        rows += [(r.verdict, line.where, r.kind, r.claim, r.compared, r.elements, r.differing) for r in ones]
    heads = ("verdict", "device, folder", "record", "claim", "compared", "elements", "differing")
    return table(heads, rows)
