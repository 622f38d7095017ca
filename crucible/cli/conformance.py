"""`crucible conformance`: hold a device to stored vectors, bit for bit."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command(epilog="Example: crucible conformance tests/vectors --device cpu")
    def conformance(
        paths: Annotated[list[Path], typer.Argument(help="Vector files (.npz), or folders of them.")],
        device: str = typer.Option("cpu", help="cpu, simt or cuda."),
        json: Annotated[Path | None, typer.Option(help="Also write the evidence records here.")] = None,
    ) -> None:
        """Run conformance vectors on a device and compare every bit.

        Exit code 0: all bits agree; 1: some differ; 2: a file is missing, damaged or not of the format;
        3: no difference, but a section has no kernel on this device yet or needs a model file.
        """
        from crucible.evidence.record import save
        from crucible.gates.conformance import Result, Summary, records, run

        results = []
        for line in run(paths, device):
            print(line, flush=True)
            if isinstance(line, Result):
                results.append(line)
        if json is not None:
            save(json, records(results, device))
        if isinstance(line, Summary) and line.exit_code:
            raise typer.Exit(line.exit_code)
