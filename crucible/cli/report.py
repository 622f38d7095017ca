"""`crucible report`: run the notebooks with the parameters that fit this machine and write one report."""

import sys
from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = """
Example:

  crucible report --params params/cpu.yaml --only 01 --out outputs/first
"""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(epilog=EXAMPLE)(report)


def report(
    params: Annotated[
        Path | None, typer.Option(help="Parameter set; default: the one that fits this machine.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Run this notebook only (01 or its name); repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; default: outputs/<time>-<set>.")
    ] = None,
) -> None:
    """Run the conformance vectors and the notebooks, and write evidence.json, report.md and report.html."""
    from crucible.report import driver, notebooks, parameters
    from crucible.report.assemble import assemble, counted
    from crucible.report.checks import CHECKS

    chosen = params or parameters.fitting()
    everything = notebooks.discover()
    values = parameters.resolve(parameters.read_set(chosen), everything, str(chosen))
    selected = notebooks.select(everything, only or [])
    folder = driver.new_folder(out, chosen.stem)
    many = counted(len(selected), "notebook")
    typer.echo(f"running {many} with {_near(chosen)} into {_near(folder)}")
    checks = {} if only else CHECKS  # one notebook is asked for to see that one
    run = driver.execute(selected, values, folder, str(chosen), sys.stderr.isatty(), checks)
    _, page = assemble(run)
    for outcome in run.outcomes:
        typer.echo(f"{outcome.status:8} {outcome.stem}  {outcome.seconds:.1f} s  {outcome.error}".rstrip())
    typer.echo(f"report: {_near(page)}")
    raise typer.Exit(run.exit_code)


def _near(path: Path) -> Path:
    """`path` from the current folder if it lies inside it, else as it is."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
