"""What a call of `crucible report` runs, and which outcomes of an earlier call in its folder stand."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from crucible.errors import InputError
from crucible.evidence.record import Record
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
    in both cases, if the folder has it. Raises InputError where the folder holds another parameter set.
    """
    only = list(only)
    asked = {n.stem for n in select(everything, only)}
    before = load(folder) or Run(folder, shown_path(parameter_set))
    if before.parameter_set != shown_path(parameter_set):
        raise InputError(
            f"{folder} holds a run of {before.parameter_set}, not of {shown_path(parameter_set)}; "
            "choose another --out"
        )
    fresh = {n.stem: made_from(n, filled(n, values.get(n.stem, {}))) for n in everything}
    held = [replace(o, older=o.made_from != fresh.get(o.stem)) for o in before.outcomes]
    stands = {o.stem for o in held if o.executed and (only or (o.status == "done" and not o.older))}
    readers = {n.stem for n in everything if READS_EVIDENCE in parameters(n)}
    again = {stem for stem in asked if only or stem not in stands} | (readers & (asked | stands))
    before.outcomes = [o for o in held if o.stem not in again and (only or o.stem in stands)]
    due = {} if only else {k: v for k, v in checks.items() if before.checks.get(k) != package_digest()}
    return Plan([n for n in everything if n.stem in again], due, before)
