"""Run notebooks through papermill into one run folder; what is done survives a failure or Ctrl-C."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from crucible.errors import CrucibleError, InputError
from crucible.evidence import record
from crucible.files import check_writable, shown
from crucible.report import earlier
from crucible.report.notebooks import Literal, Notebook, root
from crucible.report.parameters import filled
from crucible.report.runs import (
    NAME,
    READS_EVIDENCE,
    Outcome,
    Run,
    made_from,
    package_digest,
    save,
    shown_path,
)

KERNEL = "python3"
# The kernel's start-up notices are not the user's business; its errors are.
KERNEL_ARGUMENTS = ("--IPKernelApp.log_level=40",)
FAILED_NOTEBOOK = "notebook"  # kind of the record that the driver writes for a notebook that failed


def new_folder(out: Path | None, name: str) -> Path:
    """`out`, else outputs/<time>-<name>; made if missing.

    InputError for one inside notebooks/, one that is a file, and one that cannot be made or written to.
    """
    folder = Path(out) if out else root() / "outputs" / f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
    folder = folder.resolve()
    notebooks = (root() / "notebooks").resolve()
    if folder == notebooks or notebooks in folder.parents:
        raise InputError(f"{folder} lies in notebooks/, which a run never writes to; choose another --out")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; --out names a folder")
    try:
        check_writable(folder / NAME)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make {shown(folder)}: {error.strerror}; choose another --out") from None
    return folder


def execute(
    notebooks: list[Notebook],
    values: Mapping[str, Mapping[str, Literal]],
    folder: Path,
    parameter_set: str = "",
    progress: bool = True,
    checks: Mapping[str, Callable[[], list[record.Record]]] | None = None,
    kept: Run | None = None,
) -> Run:
    """Run `checks`, then `notebooks` with `values[stem]`; a failing notebook is an outcome, never a raise.

    A check gives records, which are kept under its name as a notebook's are; one that raises is a failed
    claim. Executed copies land in folder/notebooks, each notebook's records in folder/evidence, those of this
    run's notebooks in folder/evidence.json after every notebook, a failing one as a failed claim. The
    kernel is always `python3`, its working directory is `folder`. Ctrl-C stops the run and keeps what
    is done. `kept` holds the outcomes of an earlier call: those that `notebooks` does not name stand, and
    so does one that was done and is named, until its new run has ended.
    """
    logging.getLogger("papermill").setLevel(logging.ERROR)  # papermill's own lines repeat the progress bar
    (folder / "notebooks").mkdir(parents=True, exist_ok=True)
    kept, checks = kept or Run(folder, ""), checks or {}
    run = Run(folder, shown_path(parameter_set), checks=dict(kept.checks))
    waiting = {n.stem: n for n in notebooks}
    run.outcomes = _before(waiting, values, kept)
    try:
        for name, check in checks.items():
            record.save(folder / "evidence" / f"{name}.json", _checked(name, check))
            run.checks[name] = package_digest()
    except KeyboardInterrupt:
        run.stopped = True
    collect(folder, run.stems)
    save(run)
    for at, before in enumerate(run.outcomes):
        stem = before.stem
        if stem not in waiting or run.stopped:
            continue
        earlier.put_aside(folder, stem)
        run.outcomes[at] = outcome = _one(waiting[stem], values.get(stem, {}), folder, progress)
        run.stopped = outcome.status == "stopped"
        if outcome.status == "failed":
            record.save(folder / "evidence" / f"{stem}.json", [_failure(outcome)])
        if run.stopped and before.status == "done":
            earlier.put_back(folder)
            note = f"{outcome.error} after {outcome.seconds:.1f} s; what it had given before stands"
            run.outcomes[at] = replace(before, note=note)
        else:
            earlier.drop(folder)
        collect(folder, run.stems)
        save(run)
    if any(o.stem in waiting and not o.kept and o.executed for o in run.outcomes):
        run.outcomes = [replace(o, older=o.older or _outrun(o, waiting)) for o in run.outcomes]
    return run


def _outrun(outcome: Outcome, waiting: Mapping[str, Notebook]) -> bool:
    """It sums up others that have run since, and was to run again itself."""
    return outcome.kept and outcome.stem in waiting and READS_EVIDENCE in outcome.values


def _before(waiting: Mapping[str, Notebook], values: Mapping, kept: Run) -> list[Outcome]:
    """The outcomes before anything runs, in name order: those of `kept`, and `skipped` for what waits and
    was not done."""
    stands = {o.stem: o for o in kept.outcomes if o.status == "done" or o.stem not in waiting}
    skipped = {stem: Outcome(stem, "skipped", 0.0, None, values.get(stem, {})) for stem in waiting}
    return [found for _, found in sorted({**skipped, **stands}.items())]


@contextmanager
def within(minutes: float | None = None) -> Iterator[None]:
    """Press Ctrl-C after so many minutes (None: never) or on SIGTERM: what runs is stopped and kept."""

    def press(*_) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = [(number, signal.signal(number, press)) for number in (signal.SIGALRM, signal.SIGTERM)]
    signal.setitimer(signal.ITIMER_REAL, 60 * (minutes or 0))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before:
            signal.signal(number, handler)


def _checked(name: str, check: Callable[[], list[record.Record]]) -> list[record.Record]:
    try:
        return check()
    except CrucibleError as error:
        return [
            _failed(f"the check {name} runs to its end", "what it holds this machine to", str(error), name)
        ]


def _one(notebook: Notebook, values: Mapping[str, Literal], folder: Path, progress: bool) -> Outcome:
    import papermill
    from papermill.exceptions import PapermillExecutionError

    executed = folder / "notebooks" / f"{notebook.stem}.ipynb"
    given = filled(notebook, values)
    words = folder / "notebooks" / f"{notebook.stem}.kernel.log"
    started = time.monotonic()
    status, error = "done", ""
    try:
        papermill.execute_notebook(
            _prepared(notebook),
            str(executed),
            parameters=given,
            kernel_name=KERNEL,
            cwd=str(folder),
            progress_bar={"desc": notebook.stem} if progress else False,
            extra_arguments=list(KERNEL_ARGUMENTS),
            kernel_manager_class=_kernel_manager(words),
        )
    except PapermillExecutionError as problem:
        status, error = "failed", f"{problem.ename}: {problem.evalue}"
    except (KeyboardInterrupt, asyncio.CancelledError):
        status, error = "stopped", "stopped by Ctrl-C"
    except Exception as problem:  # a kernel that dies or never starts must not take the other notebooks along
        status, error = "failed", f"{type(problem).__name__}: {problem}"
    seconds = time.monotonic() - started
    if words.exists() and (status in ("done", "stopped") or not words.stat().st_size):
        words.unlink()
    copy = executed if executed.exists() else None
    made = made_from(notebook, given)
    return Outcome(notebook.stem, status, seconds, copy, given, _line(error), made)


def _kernel_manager(words: Path) -> type:
    """A kernel manager whose kernel writes its own stderr to `words` instead of the terminal.

    A kernel that is stopped in the middle of a message dies with a traceback of its sockets, which is
    nothing to the user; the last words of one that dies by itself are kept beside the executed copy.
    """
    from jupyter_client.manager import AsyncKernelManager

    class Manager(AsyncKernelManager):
        async def _async_launch_kernel(self, kernel_cmd, **options):
            with words.open("w", encoding="utf-8") as log:
                await super()._async_launch_kernel(kernel_cmd, **{**options, "stderr": log})

        _launch_kernel = _async_launch_kernel

    return Manager


def _prepared(notebook: Notebook):
    """The notebook as a node for papermill, with the kernel fixed and no editor's pairing left in it."""
    node = notebook.read()
    node.metadata.pop("jupytext", None)
    node.metadata["kernelspec"] = {"name": KERNEL, "display_name": "Python 3", "language": "python"}
    node.metadata["language_info"] = {"name": "python"}
    return node


def _failure(outcome: Outcome) -> record.Record:
    claim = f"{outcome.stem} runs to its end"
    return _failed(claim, "its cells, one by one", outcome.error, FAILED_NOTEBOOK)


def _failed(claim: str, compared: str, error: str, kind: str) -> record.Record:
    return record.Record(
        kind=kind, claim=claim, compared=compared, verdict="fail", facts={"error": _line(error)}
    )


def _line(text: str) -> str:
    return " ".join(text.split())[:400]


def collect(folder: Path, stems: Iterable[str]) -> Path:
    """Gather folder/evidence/<stem>.json of `stems`, in name order, into folder/evidence.json, if only empty.

    Records that an earlier run left in the folder stay out: they are no claims of this one.
    """
    paths = [folder / "evidence" / f"{stem}.json" for stem in sorted(stems)]
    records = [item for path in paths if path.exists() for item in record.load(path)]
    return record.save(folder / "evidence.json", records)
