"""What a call of `crucible report` runs, and which outcomes of an earlier call in its folder stand."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from crucible.errors import InputError
from crucible.evidence import record
from crucible.evidence.record import Record
from crucible.files import read_text, shown
from crucible.report import earlier
from crucible.report.notebooks import Literal, Notebook, parameters, select
from crucible.report.parameters import filled
from crucible.report.runs import READS_EVIDENCE, Run, load, made_from, package_digest, shown_path


@dataclass(frozen=True)
class Plan:
    """The notebooks and checks to run, and the run whose other outcomes and records stand."""

    notebooks: list[Notebook]
    checks: dict[str, Callable[[], list[Record]]]
    kept: Run


def plan(
    everything: list[Notebook],
    only: Iterable[str],
    values: Mapping[str, Mapping[str, Literal]],
    folder: Path,
    parameter_set: str,
    checks: Mapping[str, Callable[[], list[Record]]],
) -> Plan:
    """Without `only`: every check and notebook that is not done, or was made from something else.

    With `only`: those notebooks, done or not, and no check. A notebook that sums up the others runs again
    in both cases, if the folder has it. What lost its records or its executed copy, or has them damaged, is
    not done. Raises InputError where the folder holds another parameter set, and with `only` where something
    else is damaged.
    """
    only = list(only)
    asked = {n.stem for n in select(everything, only)}
    earlier.put_back(folder)
    before = load(folder) or Run(folder, shown_path(parameter_set))
    if before.parameter_set != shown_path(parameter_set):
        raise InputError(
            f"{folder} holds a run of {before.parameter_set}, not of {shown_path(parameter_set)}; "
            "choose another --out"
        )
    readers = {n.stem for n in everything if READS_EVIDENCE in parameters(n)}
    broken = damaged(before)
    if only and (others := [why for name, why in broken.items() if name not in asked | readers]):
        raise InputError(f"{others[0]}; leave out --only, and what is damaged is made again")
    fresh = {n.stem: made_from(n, filled(n, values.get(n.stem, {}))) for n in everything}
    held = [
        replace(o, older=o.made_from != fresh.get(o.stem)) for o in before.outcomes if o.stem not in broken
    ]
    before.checks = {name: made for name, made in before.checks.items() if name not in broken}
    stands = {o.stem for o in held if o.executed and (only or (o.status == "done" and not o.older))}
    again = {stem for stem in asked if only or stem not in stands} | (
        readers & (asked | stands | set(broken))
    )
    before.outcomes = [o for o in held if only or o.stem in stands or o.stem in again]
    due = {} if only else {k: v for k, v in checks.items() if before.checks.get(k) != package_digest()}
    return Plan([n for n in everything if n.stem in again], due, before)


def damaged(run: Run) -> dict[str, str]:
    """What a run folder should hold and does not, or not whole: {notebook or check: why}.

    A notebook that gave no record needs none; older states of a folder do not say which gave one.
    """
    found = {}
    states = {o.stem: o.status for o in run.outcomes if o.status != "skipped"}
    for name in [*run.checks, *states]:
        records, copy = (run.folder / place for place in earlier.places(name))
        try:
            if name in run.recorded or records.exists():
                record.load(records)
            if states.get(name) == "done" or copy.exists():
                _read_notebook(copy)
        except InputError as error:
            found[name] = str(error)
    return found


def _read_notebook(path: Path) -> None:
    import nbformat

    text = read_text(path)
    try:
        nbformat.reads(text, as_version=4)
    except Exception as error:  # nbformat raises what its parser and its validator raise
        raise InputError(f"{shown(path)} is not a notebook: {' '.join(str(error).split())[:80]}") from None
