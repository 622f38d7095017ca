"""Records and where they are kept: those of this run, and the committed ones of named machines."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from crucible.evidence import record
from crucible.evidence.record import Record
from crucible.report.notebooks import root
from crucible.report.tables import Table, table

THIS_RUN = "this run"


@dataclass(frozen=True)
class Kept:
    """One record: `machine` is the name of its folder or `this run`, `file` a path from the checkout."""

    machine: str
    file: str
    record: Record

    @property
    def where(self) -> str:
        """The device that made it and the folder that keeps it: `cuda, h200`."""
        made = self.record.environment
        return f"{made.device}, {self.machine}" if made else self.machine

    @property
    def state(self) -> str:
        """The commit and the day of a committed record; nothing for one of this run."""
        made = self.record.environment
        if made is None or self.machine == THIS_RUN:
            return ""
        return f"{made.commit[:7] or 'unknown'}{'-dirty' * made.dirty}, {made.taken_at[:10]}"


def gather(evidence: Path | None, machines: Sequence[str], base: Path | None = None) -> list[Kept]:
    """The records of an evidence file, then every folder's *.json in name order; `machines` lie below `base`.

    A folder that is not there has no records. InputError for a file that is damaged.
    """
    base = base or root()
    found = [Kept(THIS_RUN, "evidence.json", item) for item in (record.load(evidence) if evidence else [])]
    for name in machines:
        folder = base / name
        for path in sorted(folder.glob("*.json")):
            if evidence and path.resolve() == evidence.resolve():
                continue
            if is_evidence(path):
                file = path.relative_to(base).as_posix()
                found += [Kept(folder.name, file, item) for item in record.load(path)]
    return found


def is_evidence(path: Path) -> bool:
    """Whether a JSON file in a folder of records is one: the state of a run, for one, is not."""
    with path.open(encoding="utf-8", errors="replace") as handle:
        return f'"format": "{record.FORMAT}"' in handle.read(200)


def of_kind(kept: Iterable[Kept], *kinds: str) -> list[Kept]:
    """Records of any of these kinds; a kind names its parts too (`drift` has `drift: controls`)."""
    return [k for k in kept if k.record.kind in kinds or k.record.kind.partition(":")[0] in kinds]


def machines_table(kept: Sequence[Kept]) -> Table:
    """What was measured where: one row a machine and device, with its records, commits and days."""
    rows: dict[tuple[str, str], list[Kept]] = {}
    for one in kept:
        if one.record.environment:
            rows.setdefault((one.machine, one.record.environment.device), []).append(one)
    shown = []
    for (machine, device), ones in rows.items():
        made = [one.record.environment for one in ones]
        names = ", ".join(dict.fromkeys(e.device_name for e in made))
        states = "; ".join(dict.fromkeys(one.state for one in ones if one.state))
        shown.append((machine, device, names, len(ones), states))
    return table(("folder", "device", "machine", "records", "commits and days"), shown)
