"""`crucible gate http`: answers recorded from one build, replayed against another."""

from pathlib import Path
from typing import Annotated

import typer

from crucible.cli.gate import _finish, app
from crucible.cli.outputs import Json, writable

EXAMPLE = """
Examples:

  crucible gate http --record answers.json.gz

  crucible gate http --against answers.json.gz --build ../crucible-of-last-week
"""


@app.command(epilog=EXAMPLE)
def http(
    record: Annotated[
        Path | None, typer.Option(callback=writable, help="File that gets the answers.")
    ] = None,
    against: Annotated[Path | None, typer.Option(help="Recorded answers to be held to.")] = None,
    url: Annotated[str | None, typer.Option(help="A running service; default: one is started.")] = None,
    build: Annotated[
        Path | None, typer.Option(help="Start this build: a virtual environment, its python, or a checkout.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Default: the recording's, else smollm2.")] = None,
    mode: Annotated[
        str | None, typer.Option(help="f32 or int8; default: the recording's, else int8.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto; moves no bit.")] = "auto",
    requests: Annotated[int, typer.Option(min=1, max=512, help="Native requests to record.")] = 12,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens a request, when recording.")] = 24,
    seed: Annotated[int, typer.Option(help="Of prompts and draws, when recording.")] = 20260908,
    json: Json = None,
) -> None:
    """Record what a service answers on every face, or hold another build to such a recording.

    Tokens, texts, log-probabilities, digests and random state must be equal; ids, times and names of builds
    are left out. Exit code 0: recorded, or all equal; 1: an answer differs.
    """
    import contextlib

    from tqdm import tqdm

    from crucible.bench.ab_sides import Side, arguments, build_at
    from crucible.cli.fetch import fetch_if_known
    from crucible.errors import InputError
    from crucible.gates import http_oracle as oracle
    from crucible.gates.http_record import to_record
    from crucible.service.load import client
    from crucible.service.load.target import target

    if (record is None) == (against is None):
        raise InputError("give --record FILE to make a recording or --against FILE to be held to one")
    if url is not None and build is not None:
        raise InputError("--url names a running service and --build one to start; give one of them")
    facts, expected = oracle.load(against) if against else ({}, [])
    name = model or str(facts.get("model") or "smollm2")
    way = mode or str(facts.get("mode") or "int8")
    if url is None:
        fetch_if_known(name)
    with contextlib.ExitStack() as stack:
        if url is None:
            more = ("--log-level", "error")
            side = Side("http", build_at(build), arguments(name, way, device, more))
            to = stack.enter_context(side.running()).target
        else:
            to = target(url)
        asked = expected or oracle.requests(client.wait(oracle.model_name(to)), requests, max_tokens, seed)
        bar = stack.enter_context(tqdm(total=len(asked), unit="answer", disable=None, leave=False))
        found = []
        for one in asked:
            found.append(client.wait(oracle.answer(to, one)))
            bar.update()
    if record is not None:
        said = {"model": name, "mode": way, "seed": seed, **oracle.build_facts(build)}
        typer.echo(f"recorded {len(found)} answers: {oracle.save(record, said, found)}")
        return
    differing = [d for d in map(oracle.compare, expected, found) if d is not None]
    made = to_record(facts, found, differing, device, {"model": name, "mode": way})
    lines = [f"{len(found)} answers, {len(differing)} differ", *map(str, differing[:10])]
    _finish(not differing, lines, [made], json, False)
