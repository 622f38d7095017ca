"""`crucible gate drift`: what other attentions do to the tokens of a seeded model."""

from typing import Annotated

import typer

from crucible.cli.gate import _finish, app
from crucible.cli.outputs import Json

EXAMPLE = "Example:\n\n  crucible gate drift --quick --json drift.json"
QUICK = ("q2-k32", "split-sum", "tf32")


@app.command(epilog=EXAMPLE)
def drift(
    quick: Annotated[bool, typer.Option("--quick", help="Three candidates, 12 sequences a sampler.")] = False,
    candidates: Annotated[
        list[str] | None, typer.Option("--candidate", help="Only this one; may be given again.")
    ] = None,
    sequences: Annotated[int | None, typer.Option(min=1, help="Sequences a sampler and candidate.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**64 - 1, help="Seed of request 0; the others count on from it.")
    ] = None,
    model: Annotated[str, typer.Option(help="smollm2, a GGUF file or a checkpoint folder.")] = "smollm2",
    mode: Annotated[str, typer.Option(help="f32 or int8.")] = "f32",
    device: Annotated[str, typer.Option(help="cpu, simt, cuda or auto.")] = "auto",
    jobs: Annotated[int, typer.Option(min=1, help="Processes, each with a model of its own.")] = 1,
    json: Json = None,
) -> None:
    """Measure flips and flip mass of candidates, and hold the controls.

    Exit code 0: every control held; 1: one did not; 130: interrupted (what was done is printed and saved).
    """
    from tqdm import tqdm

    from crucible import device as devices
    from crucible.cli.generate import load_model
    from crucible.drift.candidates import available, open_candidate
    from crucible.errors import InputError
    from crucible.files import brief
    from crucible.gates.drift import DriftGate, records, summary

    if quick and candidates and sequences:
        raise InputError("--quick chooses candidates and sequences, and both are given; leave --quick out")
    target = devices.get(device)
    names = candidates or (list(QUICK) if quick else available(target))
    for name in names:
        if name == "reference":
            raise InputError("the reference is measured in every run; leave --candidate reference out")
        if names.count(name) > 1:
            raise InputError(f"--candidate {brief(name)} is given twice; give it once")
    for name in names:
        open_candidate(name, target)  # refused before a model loads
    count = sequences or (12 if quick else 100 if target.name == "cpu" else 1000)
    gate = DriftGate(load_model(model, device, mode), names, count, jobs=jobs, spec=model)
    if seed is not None:
        gate.seed = seed
    interrupted = False
    try:
        with tqdm(total=gate.total, desc="tensors", unit="sequence", disable=None, leave=False) as bar:
            for what, done in gate.work():
                bar.set_description(what)
                bar.update(done)
    except KeyboardInterrupt:
        interrupted = True
    _finish(gate.passed, summary(gate), records(gate), json, interrupted)
