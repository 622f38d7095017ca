"""`crucible report`: run the notebooks with the parameters that fit this machine and write one report."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = """
Examples:

  crucible report --params params/cpu.yaml --out outputs/first

  crucible report --out outputs/first --only 04

  crucible report --params params/gpu.yaml --resume --minutes 8
"""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(epilog=EXAMPLE)(report)


def report(
    params: Annotated[
        Path | None,
        typer.Option(help="Parameter set; default: that of the run in --out, else the one that fits here."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Run this notebook (01 or its name), done or not; repeatable. The rest stands."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run; what is done in it stands. Default: outputs/<time>-<set>."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the youngest run of this set in outputs/.")
    ] = False,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after so many minutes as Ctrl-C does, to be resumed later.")
    ] = None,
) -> None:
    """Run the conformance vectors and the notebooks, and write evidence.json, report.md and report.html.

    A stopped or failed run goes on where it was when it is called again with the same folder.
    """
    from crucible.errors import InputError
    from crucible.report import driver, earlier, notebooks, parameters, runs
    from crucible.report.assemble import assemble, counted
    from crucible.report.checks import checks
    from crucible.report.resume import plan

    if minutes is not None and not 0 < minutes <= 24 * 60:
        raise InputError(f"--minutes {minutes:g} must lie between 0 and 1440; leave it out for no limit")
    if resume and out:
        raise InputError(f"--resume finds the folder by itself; --out {out} alone goes on with that one")
    chosen = params or (out and runs.set_of(out)) or parameters.fitting()
    everything = notebooks.discover()
    values = parameters.resolve(parameters.read_set(chosen), everything, str(chosen))
    notebooks.select(everything, only or [])
    folder = runs.newest(str(chosen)) if resume else driver.new_folder(out, chosen.stem)
    with earlier.alone(folder):
        todo = plan(everything, only or [], values, folder, str(chosen), checks())
        many = counted(len(todo.notebooks), "notebook")
        typer.echo(f"running {many} with {_near(chosen)} into {_near(folder)}")
        with driver.within(minutes):
            run = driver.execute(
                todo.notebooks, values, folder, str(chosen), sys.stderr.isatty(), todo.checks, todo.kept
            )
        _, page = assemble(run)
    for outcome in run.outcomes:
        how = "kept" if outcome.kept and outcome.status == "done" else outcome.status
        said = outcome.error or outcome.note
        typer.echo(f"{how:8} {outcome.stem}  {outcome.seconds:.1f} s  {said}".rstrip())
    typer.echo(f"report: {_near(page)}")
    if run.exit_code:
        again = ["crucible", "report", "--params", str(_near(chosen)), "--out", str(_near(folder))]
        typer.echo(
            f"to go on: {shlex.join([*again, *(part for one in only or () for part in ('--only', one))])}"
        )
    raise typer.Exit(run.exit_code)


def _near(path: Path) -> Path:
    """`path` from the current folder if it lies inside it, else as it is."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
