"""`crucible gate`: hold the kernels of a device to what the project promises."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "Example:\n\n  crucible gate tensor --quick --device simt --json tensor.json"

app = typer.Typer(
    no_args_is_help=True, help="Hold this machine's kernels to the contract, at length.", epilog=EXAMPLE
)


def register(root: typer.Typer) -> None:
    """Add the command group to `root`."""
    from crucible.cli import gate_engine  # noqa: F401 - adds its command to `app`

    root.add_typer(app, name="gate")


@app.command(epilog=EXAMPLE)
def tensor(
    quick: Annotated[bool, typer.Option("--quick", help="Small cases only: minutes, without a GPU.")] = False,
    device: Annotated[str, typer.Option(help="cpu, simt or cuda.")] = "simt",
    seed: Annotated[int, typer.Option(help="Seed of the fuzz cases and of every input.")] = 20260908,
    mutants: Annotated[bool, typer.Option(help="Also show, on simt, that wrong kernels are caught.")] = True,
    json: Annotated[Path | None, typer.Option("--json", help="Evidence file to write.")] = None,
) -> None:
    """Compare every attention variant with the reference over fixed and random cases, bit by bit.

    Exit code 0: all hold; 1: something differs, or a mutant lived; 130: interrupted (what was done is
    printed and saved).
    """
    from tqdm import tqdm

    from crucible import device as devices
    from crucible.gates import mutants as kernels
    from crucible.gates.tensor import TensorGate
    from crucible.gates.tensor_record import records, summary

    gate = TensorGate(devices.get(device), seed, quick)
    found: list[kernels.Caught] = []
    interrupted = False
    total = gate.total + (len(kernels.MUTANTS) if mutants else 0)
    try:
        with tqdm(total=total, desc="compile", unit="case", disable=None, leave=False) as bar:
            gate.compile()
            for name in gate.steps():
                bar.set_description(name)
                bar.update()
            for caught in kernels.caught() if mutants else ():
                found.append(caught)
                bar.set_description(f"mutant: {caught.mutant}")
                bar.update()
    except KeyboardInterrupt:
        interrupted = True
    for line in summary(gate, found):
        typer.echo(line)
    if json is not None:
        from crucible.evidence.record import save

        typer.echo(f"record: {save(json, records(gate, found))}")
    if interrupted:
        typer.echo("interrupted; the counts are those of what was done", err=True)
        raise typer.Exit(130)
    if not gate.passed or not all(m.checks for m in found):
        raise typer.Exit(1)
    typer.echo("pass")
