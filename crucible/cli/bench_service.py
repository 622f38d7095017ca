"""`crucible bench service`: what HTTP, streams and a second process cost over the bare engine."""

import dataclasses
from typing import Annotated

import typer

from crucible.cli.bench_options import Json, Note, Rounds, app, say
from crucible.cli.outputs import spared

EXAMPLE = "Example:\n\n  crucible bench service --model smollm2 --mode int8 --json bench.json"


@app.command(epilog=EXAMPLE)
def service(
    model: Annotated[str, typer.Option("--model", help="Name, GGUF file or folder.")] = "smollm2",
    mode: Annotated[str, typer.Option(help="f32 or int8.")] = "int8",
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    shape: Annotated[
        str | None, typer.Option(help="Streams x prompt tokens; default 16x32 on cpu, 16x16 on cuda.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each stream.")] = 64,
    apart: Annotated[
        float,
        typer.Option(
            min=0, max=60_000, help="Milliseconds from one stream's beginning to the next; 0: all at once."
        ),
    ] = 0.0,
    rounds: Rounds = 5,
    json: Json = None,
    note: Note = "",
) -> None:
    """Tokens a second and time to the first token of streams over HTTP, beside the bare engine in process."""
    from crucible.bench import outcome
    from crucible.bench import service as bench
    from crucible.bench.engine import parse
    from crucible.cli.generate import load_model
    from crucible.evidence.environment import capture

    if shape is not None:
        parse(shape)
    loaded = load_model(model, device, mode)
    name = loaded.device.name
    found = bench.run(
        model, loaded, shape or bench.SHAPES.get(name, "16x32"), tokens, rounds, apart / 1000, say
    )
    for each in found:
        typer.echo(each.text())
    if json is not None:
        facts = {"model": loaded.name, "device": name, "tokens": tokens, "ms apart": apart}
        facts |= {"note": note} if note else {}
        claim = "tokens a second and time to the first token through the service, beside the bare engine"
        record = outcome.to_record("service" + "-apart" * bool(apart), claim, found, facts)
        record = dataclasses.replace(record, environment=capture(name))
        typer.echo(f"record: {outcome.save(spared(json, found[0].stopped), [record])}")
    if found[0].stopped:
        typer.echo("interrupted; the figures are those of the rounds that were complete", err=True)
        raise typer.Exit(130)
