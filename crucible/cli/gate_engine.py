"""`crucible gate engine`: what a request returns in any company equals its run alone."""

from pathlib import Path
from typing import Annotated

import typer

from crucible.cli.gate import app
from crucible.cli.outputs import Json, keep, writable

EXAMPLE = "Example:\n\n  crucible gate engine --quick --json engine.json --plot timeline.svg"
_SMALL = 450  # prompt rows of a workload that the quick gate runs on a real model
_PICTURES = (".svg", ".png", ".pdf")


def _picture(path: Path | None) -> Path | None:
    """The path as given; InputError where no picture can be written there."""
    from crucible.errors import InputError
    from crucible.files import shown

    if path is not None and path.suffix.lower() not in _PICTURES:
        raise InputError(f"cannot draw {shown(path)}: its name must end in {', '.join(_PICTURES)}")
    return writable(path)


@app.command(epilog=EXAMPLE)
def engine(
    quick: Annotated[
        bool, typer.Option("--quick", help="All workloads on a tiny model, the small ones on SmolLM2 int8.")
    ] = False,
    model: Annotated[list[str] | None, typer.Option(help="Name, GGUF file or folder; repeatable.")] = None,
    mode: Annotated[list[str] | None, typer.Option(help="f32 or int8; repeatable, default both.")] = None,
    device: Annotated[
        str, typer.Option(help="cpu, simt, cuda or auto; the tiny model runs on cpu.")
    ] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Seed of all workloads.")] = 20260908,
    controls: Annotated[bool, typer.Option(help="Also show that wrong engines are caught.")] = True,
    json: Json = None,
    plot: Annotated[
        Path | None,
        typer.Option(callback=_picture, help="Picture of a step timeline to write: svg, png or pdf."),
    ] = None,
) -> None:
    """Run 42 workloads of 384 sequences and compare each with its run alone, exactly.

    Exit code 0: all hold; 1: something differs, a page did not come back, or a wrong engine was not
    caught; 130: interrupted (what was done is printed and saved).
    """
    from tqdm import tqdm

    from crucible.cli.generate import load_model
    from crucible.errors import InputError
    from crucible.gates import engine_record as record
    from crucible.gates.engine import EngineGate, Judge
    from crucible.gates.engine_controls import CONTROLS, Control
    from crucible.gates.engine_controls import controls as wrong_engines
    from crucible.gates.engine_workloads import small, workloads

    tiny = record.tiny_model()
    all_tiny = workloads(tiny.config, seed)
    gates = [EngineGate(tiny, all_tiny)] if quick and not model else []
    names = model or (["smollm2"] if quick else ["synthetic-12x768"])
    for name in names:
        for way in mode or (["int8"] if quick else ["f32", "int8"]):
            loaded = load_model(name, device, way)
            found = workloads(loaded.config, seed)
            found = small(found, _SMALL) if quick else found
            on_cpu = loaded.device.name == "cpu"
            how = ((None, False),) if on_cpu else ((True, False), (False, False), (True, True))
            judge = Judge(loaded)
            gates += [EngineGate(loaded, found, *each, judge) for each in how]
    if plot is not None and not any(w.kind == "pressure" for gate in gates for w in gate.workloads):
        raise InputError(
            "--plot shows the run under page pressure, which --quick leaves out of --model; drop one"
        )
    caught: list[Control] = []
    interrupted = False
    total = sum(len(gate.workloads) for gate in gates) + len(CONTROLS) * controls
    try:
        with tqdm(total=total, unit="run", disable=None, leave=False) as bar:
            for gate in gates:
                for name in gate.steps():
                    bar.set_description(f"{gate.model.name} {gate.model.mode}: {name}")
                    bar.update()
            for control in wrong_engines(tiny, all_tiny) if controls else ():
                caught.append(control)
                bar.set_description(control.name)
                bar.update()
    except KeyboardInterrupt:
        interrupted = True
    for gate in gates:
        for line in record.summary(gate):
            typer.echo(line)
    if caught:
        typer.echo(f"{sum(bool(c.fault) for c in caught)} of {len(caught)} wrong engines caught")
        for control in caught:
            typer.echo(f"  {control.name}: {control.fault or 'NOT CAUGHT'}")
    made = record.records(gates, caught, seed)
    if json is not None:
        keep(json, made, interrupted)
    if plot is not None and made:
        from crucible.report.timeline import draw

        shown = [r for r in made if r.samples]
        path = draw(shown[-1], plot) if shown else "none, the run under page pressure was not reached"
        typer.echo(f"plot: {path}")
    if interrupted:
        typer.echo("interrupted; the counts are those of what was done", err=True)
        raise typer.Exit(130)
    if not all(gate.passed for gate in gates) or not all(c.fault for c in caught):
        raise typer.Exit(1)
    typer.echo("pass")
