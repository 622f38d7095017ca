"""`crucible bench model`: the whole model on the GPU beside transformers, and the stages of a pass."""

from pathlib import Path
from typing import Annotated

import typer

from crucible.cli.bench_options import Json, Modes, Note, app, say


@app.command(epilog="Example:\n\n  crucible bench model --device cuda --against transformers")
def model(
    device: Annotated[str, typer.Option(help="cuda; prefill and decode time the cpu.")] = "cuda",
    name: Annotated[str, typer.Option("--model", help="Name, GGUF file or folder.")] = "synthetic-12x768",
    mode: Modes = ["f32", "int8"],  # noqa: B006 - typer copies it
    against: Annotated[list[str] | None, typer.Option(help="transformers; repeatable.")] = None,
    compiled: Annotated[
        bool, typer.Option(help="Of transformers, also a compiled step over a static cache (a minute).")
    ] = True,
    stages: Annotated[bool, typer.Option("--stages", help="Profile the stages instead.")] = False,
    unfused: Annotated[
        bool, typer.Option("--unfused", help="With --stages: the control without fused steps beside it.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; one more is taken and thrown away.")] = 5,
    json: Json = None,
    note: Note = "",
) -> None:
    """Packed prefill 4x256 and 16 requests decoding 16 + 16 tokens, or the stages of a pass."""
    from crucible.errors import InputError

    if device != "cuda":
        raise InputError(
            f"the whole model is timed on cuda, not on {device!r}; bench prefill and decode time the cpu"
        )
    if unknown := set(against or ()) - {"transformers"}:
        raise InputError(f"unknown peer {min(unknown)!r} for the whole model; choose from transformers")
    if stages and against:
        raise InputError("--stages profiles Crucible alone; leave --against out, or --stages for the peer")
    if unfused and not stages:
        raise InputError("--unfused is a control of the stages; add --stages, or leave it out")
    if stages:
        _stages(name, mode, unfused, rounds, json, note)
        return
    from crucible.bench import model_gpu, outcome

    outcomes = model_gpu.run(tuple(mode), bool(against), compiled, rounds, say, name)
    typer.echo("\n\n".join(o.text() for o in outcomes))
    if json is not None:
        claim = (
            "packed prefill and sixteen requests decoding on a GPU, beside transformers in the same rounds"
        )
        facts = {"model": name} | ({"note": note} if note else {})
        _save(json, outcome.to_record("model-cuda", claim, outcomes, facts))


def _stages(name: str, modes: list[str], unfused: bool, rounds: int, json: Path | None, note: str) -> None:
    from crucible.bench import stages
    from crucible.model.model import Model

    profiles = []
    for mode in modes:
        say(f"load {name} {mode}")
        loaded = Model.load(name, "cuda", mode)
        for shape in stages.SHAPES:
            for fused in (True, False) if unfused else (True,):
                profiles.append(stages.profile(loaded, *shape, fused=fused, rounds=rounds))
    typer.echo(f"{name}; after each slash the intervals of a stage")
    typer.echo(stages.table(profiles))
    if json is not None:
        _save(json, stages.to_record(profiles, note))


def _save(path: Path, made) -> None:
    from dataclasses import replace

    from crucible.bench import outcome
    from crucible.evidence.environment import capture

    typer.echo(f"record: {outcome.save(path, [replace(made, environment=capture('cuda'))])}")
