"""run.json: what became of each notebook of a run folder, and from what it was made."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from crucible.errors import InputError
from crucible.evidence.environment import kernel_digest
from crucible.files import read_text, shown, write_whole
from crucible.report.notebooks import Literal, Notebook, root

NAME = "run.json"
FORMAT = "crucible-run"
FORMAT_VERSION = 1
READS_EVIDENCE = "evidence_path"  # a notebook with this parameter sums up the others


@dataclass(frozen=True)
class Outcome:
    """What became of one notebook: done, failed, stopped or skipped; `error` is one line.

    `made_from` digests the notebook, its values and the package; `kept` says that an earlier call ran it,
    `older` that this call would make it from something else, `note` what this call tried in vain.
    """

    stem: str
    status: str
    seconds: float
    executed: Path | None
    values: Mapping[str, Literal]
    error: str = ""
    made_from: str = ""
    kept: bool = False
    older: bool = False
    note: str = ""


@dataclass
class Run:
    """A run folder, the checks and the outcomes so far, in order; a check has the digest it was made from.

    `recorded` names the checks and notebooks that gave records, as run.json says.
    """

    folder: Path
    parameter_set: str
    outcomes: list[Outcome] = field(default_factory=list)
    checks: dict[str, str] = field(default_factory=dict)
    stopped: bool = False
    recorded: frozenset[str] = frozenset()

    @property
    def stems(self) -> list[str]:
        """What has records of this run: checks and notebooks that ran, in order."""
        return [*self.checks, *(o.stem for o in self.outcomes if o.status != "skipped")]

    @property
    def exit_code(self) -> int:
        """0 when every notebook is done, 130 when the run was stopped, else 1."""
        states = {o.status for o in self.outcomes}
        return 130 if self.stopped or "stopped" in states else 0 if states <= {"done"} else 1


@cache
def package_digest() -> str:
    """blake2b-16 over the package's Python files (relative path and bytes) and the kernel sources, in hex."""
    package = Path(__file__).resolve().parents[1]
    h = hashlib.blake2b(kernel_digest().encode(), digest_size=16)
    for path in sorted(package.rglob("*.py")):
        for part in (path.relative_to(package).as_posix().encode(), path.read_bytes()):
            h.update(len(part).to_bytes(8, "little") + part)
    return h.hexdigest()


def made_from(notebook: Notebook, values: Mapping[str, Literal]) -> str:
    """One digest of a notebook's source, the values it gets, and the package."""
    h = hashlib.blake2b(package_digest().encode(), digest_size=16)
    h.update(notebook.source.read_bytes())
    h.update(json.dumps(dict(values), sort_keys=True).encode())
    return h.hexdigest()


def save(run: Run) -> Path:
    """Write run.json by an atomic rename; paths stay out of it."""
    body = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "parameter_set": run.parameter_set,
        "checks": run.checks,
        "recorded": [name for name in run.stems if (run.folder / "evidence" / f"{name}.json").exists()],
        "notebooks": {
            o.stem: {
                "status": o.status,
                "seconds": round(o.seconds, 1),
                "error": o.error,
                "executed": o.executed is not None,
                "values": dict(o.values),
                "made_from": o.made_from,
            }
            for o in run.outcomes
        },
    }
    path = run.folder / NAME
    write_whole(path, json.dumps(body, indent=1) + "\n")
    return path


def load(folder: Path) -> Run | None:
    """The run that a folder holds, every outcome `kept`; None without run.json. InputError if damaged."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        body = json.loads(read_text(path))
        if (body["format"], body["version"]) != (FORMAT, FORMAT_VERSION):
            raise InputError(f"{shown(path)} has another format than {FORMAT} {FORMAT_VERSION}")
        outcomes = [_outcome(folder, stem, item) for stem, item in body["notebooks"].items()]
        recorded = frozenset(body.get("recorded", ()))  # states of earlier versions lack it
        return Run(folder, str(body["parameter_set"]), outcomes, dict(body["checks"]), recorded=recorded)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{shown(path)} is damaged ({error!r}); choose another --out") from None


def _outcome(folder: Path, stem: str, item: dict) -> Outcome:
    executed = folder / "notebooks" / f"{stem}.ipynb"
    return Outcome(
        stem,
        str(item["status"]),
        float(item["seconds"]),
        executed if item["executed"] and executed.exists() else None,
        dict(item["values"]),
        str(item["error"]),
        str(item["made_from"]),
        kept=True,
    )


def newest(parameter_set: str, outputs: Path | None = None) -> Path:
    """The youngest folder in outputs/ with a run of this set (by name); InputError where there is none."""
    outputs = outputs or root() / "outputs"
    wanted, found = shown_path(parameter_set), []
    for path in sorted(outputs.glob(f"*/{NAME}")):
        run = load(path.parent)
        if run and run.parameter_set == wanted:
            found.append((path.stat().st_mtime_ns, path.parent))
    if not found:
        raise InputError(f"no run of {wanted} to resume in {shown(outputs)}; start one without --resume")
    return max(found)[1]


def shown_path(path: str) -> str:
    """A path as a report names it: inside the checkout from its root, elsewhere the file's name alone."""
    if not path:
        return "defaults"
    found = Path(path).resolve()
    return str(found.relative_to(root())) if found.is_relative_to(root()) else found.name


def set_of(folder: Path) -> Path | None:
    """The file of the parameter set that a folder's run was made with, if the checkout has it; else None."""
    run = load(folder)
    path = root() / run.parameter_set if run else None
    return path if path and path.is_file() else None
