"""`crucible gate`: hold the kernels of a device to what the project promises."""

from pathlib import Path
from typing import Annotated

import typer

from crucible.cli.outputs import Json, keep

EXAMPLE = "Example:\n\n  crucible gate tensor --quick --device simt --json tensor.json"

app = typer.Typer(
    no_args_is_help=True, help="Hold this machine's kernels to the contract, at length.", epilog=EXAMPLE
)


def register(root: typer.Typer) -> None:
    """Add the command group to `root`."""
    from crucible.cli import gate_drift, gate_engine, gate_http, gate_service  # noqa: F401 - they add their commands to `app`

    root.add_typer(app, name="gate")


@app.command(epilog=EXAMPLE)
def tensor(
    quick: Annotated[bool, typer.Option("--quick", help="Small cases only: minutes, without a GPU.")] = False,
    device: Annotated[str, typer.Option(help="cpu, simt or cuda.")] = "simt",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the fuzz cases and of every input.")] = 20260908,
    mutants: Annotated[bool, typer.Option(help="Also show, on simt, that wrong kernels are caught.")] = True,
    json: Json = None,
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
    passed = gate.passed and all(m.checks for m in found)
    _finish(passed, summary(gate, found), records(gate, found), json, interrupted)


MODEL_EXAMPLE = "Example:\n\n  crucible gate model --quick --device cpu --json model.json"


@app.command(epilog=MODEL_EXAMPLE)
def model(
    quick: Annotated[bool, typer.Option("--quick", help="What a laptop does in about a minute.")] = False,
    device: Annotated[str, typer.Option(help="cpu, simt or cuda.")] = "cpu",
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the prompts, the pages and the fuzz sets.")
    ] = 20260908,
    jobs: Annotated[int, typer.Option(min=1, help="Processes, each with models of its own.")] = 1,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="Only this model, whole where --quick has no part of it; repeatable."),
    ] = None,
    modes: Annotated[
        list[str] | None, typer.Option("--mode", help="Only f32 or int8; may be given again.")
    ] = None,
    json: Json = None,
) -> None:
    """Compare complete sequences, packed in every kind of company, with each request alone, bit by bit.

    Exit code 0: all equal; 1: something differs, or a negative control went unseen; 130: interrupted (what
    was done is printed and saved).
    """
    from tqdm import tqdm

    from crucible import device as devices
    from crucible.gates.model import ModelGate
    from crucible.gates.model_parts import parts
    from crucible.gates.model_record import records, summary

    gate = ModelGate(devices.get(device), parts(device, quick, tuple(models or ()), tuple(modes or ())), seed)
    interrupted = False
    try:
        with tqdm(total=gate.total, desc="load", unit="sequence", disable=None, leave=False) as bar:
            for name, sequences in gate.steps(jobs):
                bar.set_description(name)
                bar.update(sequences)
    except KeyboardInterrupt:
        interrupted = True
    _finish(gate.passed, summary(gate), records(gate), json, interrupted)


DEVICES_EXAMPLE = "Example:\n\n  crucible gate devices --device cuda --model smollm2 --text english.txt"


@app.command("devices", epilog=DEVICES_EXAMPLE)
def compare(
    device: Annotated[str, typer.Option(help="cuda or simt: what is held to cpu.")] = "cuda",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the prompts and the pages.")] = 20260908,
    models: Annotated[
        list[str] | None, typer.Option("--model", help="Only this model; may be given again.")
    ] = None,
    modes: Annotated[
        list[str] | None, typer.Option("--mode", help="Only f32 or int8; may be given again.")
    ] = None,
    text: Annotated[Path | None, typer.Option(help="UTF-8 text to feed (none: the held-out text).")] = None,
    json: Json = None,
) -> None:
    """Compare one model on cpu and on another device: logits of a text, keys, values, draws and tokens.

    Exit codes as those of `gate model`.
    """
    from tqdm import tqdm

    from crucible import device as devices
    from crucible.errors import InputError
    from crucible.files import read_text
    from crucible.gates.model_devices import DevicesGate, models_for
    from crucible.gates.model_record import device_records, device_summary
    from crucible.model import heldout

    fed = read_text(text) if text else heldout.text()[: 1 << 14]
    if not fed:
        raise InputError(f"{text} is empty; give a file with some sentences")
    gate = DevicesGate(devices.get(device), models or models_for(device), modes or ["f32", "int8"], fed, seed)
    interrupted = False
    try:
        with tqdm(total=gate.total, desc="load", unit="step", disable=None, leave=False) as bar:
            for name in gate.steps():
                bar.set_description(name)
                bar.update()
    except KeyboardInterrupt:
        interrupted = True
    _finish(gate.passed, device_summary(gate), device_records(gate), json, interrupted)


def _finish(passed: bool, lines, records, json: Path | None, interrupted: bool) -> None:
    """Print, save and exit as every gate does."""
    for line in lines:
        typer.echo(line)
    if json is not None:
        keep(json, records, interrupted)
    if interrupted:
        typer.echo("interrupted; the counts are those of what was done", err=True)
        raise typer.Exit(130)
    if not passed:
        raise typer.Exit(1)
    typer.echo("pass")
