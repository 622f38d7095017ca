"""`crucible bench service`: what HTTP, streams and a second process cost over the bare engine."""

from typing import Annotated

import typer

from crucible.cli.bench_options import Json, Note, Rounds, app, keep, say

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
    from crucible.bench import service as bench
    from crucible.bench.engine import parse
    from crucible.cli.generate import load_model

    if shape is not None:
        parse(shape)
    loaded = load_model(model, device, mode)
    name = loaded.device.name
    found = bench.run(
        model, loaded, shape or bench.SHAPES.get(name, "16x32"), tokens, rounds, apart / 1000, say
    )
    for each in found:
        typer.echo(each.text())
    facts = {"model": loaded.name, "device": name, "tokens": tokens, "ms apart": apart}
    claim = "tokens a second and time to the first token through the service, beside the bare engine"
    keep("service" + "-apart" * bool(apart), claim, found, json, note, facts, name)
