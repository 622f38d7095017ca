"""Run notebooks through papermill into one run folder; what is done survives a failure or Ctrl-C."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from crucible.errors import CrucibleError, InputError
from crucible.evidence import record
from crucible.report.notebooks import Literal, Notebook, parameters, root
from crucible.report.parameters import DRIVER_FILLED

KERNEL = "python3"
# The kernel's start-up notices are not the user's business; its errors are.
KERNEL_ARGUMENTS = ("--IPKernelApp.log_level=40",)
FAILED_NOTEBOOK = "notebook"  # kind of the record that the driver writes for a notebook that failed


@dataclass(frozen=True)
class Outcome:
    """What became of one notebook: done, failed, stopped or skipped; `error` is one line."""

    stem: str
    status: str
    seconds: float
    executed: Path | None
    values: Mapping[str, Literal]
    error: str = ""


@dataclass
class Run:
    """A run folder and the outcomes so far, in order."""

    folder: Path
    parameter_set: str
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def stems(self) -> list[str]:
        """The notebooks that ran, in order."""
        return [o.stem for o in self.outcomes if o.status != "skipped"]

    @property
    def exit_code(self) -> int:
        """0 when every notebook is done, 130 when the run was stopped, else 1."""
        states = {o.status for o in self.outcomes}
        return 130 if "stopped" in states else 0 if states <= {"done"} else 1


def new_folder(out: Path | None, name: str) -> Path:
    """`out`, else outputs/<time>-<name>; made if missing. A folder inside notebooks/ is refused."""
    folder = Path(out) if out else root() / "outputs" / f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
    folder = folder.resolve()
    notebooks = (root() / "notebooks").resolve()
    if folder == notebooks or notebooks in folder.parents:
        raise InputError(f"{folder} lies in notebooks/, which a run never writes to; choose another --out")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; --out names a folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def execute(
    notebooks: list[Notebook],
    values: Mapping[str, Mapping[str, Literal]],
    folder: Path,
    parameter_set: str = "",
    progress: bool = True,
    checks: Mapping[str, Callable[[], list[record.Record]]] | None = None,
) -> Run:
    """Run `checks`, then `notebooks` with `values[stem]`; a failing notebook is an outcome, never a raise.

    A check gives records, which are kept under its name as a notebook's are; one that raises is a failed
    claim. Executed copies land in folder/notebooks, each notebook's records in folder/evidence, those of this
    run's notebooks in folder/evidence.json after every notebook, a failing one as a failed claim. The
    kernel is always `python3`, its working directory is `folder`. Ctrl-C stops the run and keeps what
    is done.
    """
    logging.getLogger("papermill").setLevel(logging.ERROR)  # papermill's own lines repeat the progress bar
    (folder / "notebooks").mkdir(parents=True, exist_ok=True)
    run, checks = Run(folder, parameter_set), checks or {}
    for name, check in checks.items():
        record.save(folder / "evidence" / f"{name}.json", _checked(name, check))
    for notebook in notebooks:  # never pass off an older run's record
        (folder / "evidence" / f"{notebook.stem}.json").unlink(missing_ok=True)
    collect(folder, [*checks, *run.stems])
    for notebook in notebooks:
        if any(o.status == "stopped" for o in run.outcomes):
            run.outcomes.append(Outcome(notebook.stem, "skipped", 0.0, None, values.get(notebook.stem, {})))
            continue
        run.outcomes.append(_one(notebook, values.get(notebook.stem, {}), folder, progress))
        if run.outcomes[-1].status == "failed":
            record.save(folder / "evidence" / f"{notebook.stem}.json", [_failure(run.outcomes[-1])])
        collect(folder, [*checks, *run.stems])
    return run


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
    known = parameters(notebook)
    given = {**{k: v for k, v in DRIVER_FILLED.items() if k in known}, **values}
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
    return Outcome(
        notebook.stem, status, seconds, executed if executed.exists() else None, given, _line(error)
    )


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
