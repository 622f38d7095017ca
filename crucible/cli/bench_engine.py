"""`crucible bench engine`: host work per step, and tokens per second of many requests at once."""

import os
from typing import Annotated

import typer

from crucible.cli.bench_options import (
    Against,
    Json,
    Modes,
    Note,
    Rounds,
    Threads,
    app,
    keep,
    say,
    thread_count,
)

EXAMPLE = "Example:\n\n  crucible bench engine --model smollm2 --mode int8 --shape 8x32 --json bench.json"


@app.command(epilog=EXAMPLE)
def engine(
    model: Annotated[str, typer.Option("--model", help="Name, GGUF file or folder.")] = "smollm2",
    mode: Modes = ["int8"],  # noqa: B006 - typer copies it
    device: Annotated[str, typer.Option(help="cpu, simt, cuda or auto.")] = "auto",
    shape: Annotated[
        list[str] | None, typer.Option(help="Requests x prompt tokens, such as 16x256; repeatable.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each request.")] = 64,
    overhead: Annotated[
        bool, typer.Option(help="Also time the host work of a step without the pass.")
    ] = True,
    against: Against = None,
    rounds: Rounds = 5,
    threads: Threads = None,
    json: Json = None,
    note: Note = "",
) -> None:
    """Host work of the engine a decode step, then tokens per second of requests together and of one alone."""
    from crucible.bench import engine as bench
    from crucible.bench import engine_overhead
    from crucible.bench.engines import ALIASES
    from crucible.cli.generate import load_model
    from crucible.errors import InputError

    peers = [ALIASES.get(peer, peer) for peer in against or ()]
    unknown = set(peers) - set(bench.PEERS)
    if unknown:
        raise InputError(f"unknown peer {min(unknown)!r} for the engine; choose {', '.join(bench.PEERS)}")
    if len(set(mode)) < len(mode):
        raise InputError(f"--mode {max(mode, key=mode.count)} is given twice; an engine runs once")
    if note and json is None:
        raise InputError("--note is a remark for the record; give --json FILE for one")
    for each in shape or ():
        bench.parse(each)
    count = thread_count(threads)
    if threads is not None:
        os.environ["CRUCIBLE_THREADS"] = str(count)  # read where a device is loaded
    loaded = [load_model(model, device, each) for each in mode]
    facts = {"model": loaded[0].name, "device": loaded[0].device.name, "tokens": tokens}
    shapes = shape or bench.SHAPES.get(loaded[0].device.name, bench.SHAPES["cpu"])
    bench.check(loaded[0], shapes, tokens)
    if overhead:
        outcome = engine_overhead.run(loaded[0], rounds, say)
        claim = "host microseconds of the engine a decode step, without the pass"
        _finish("engine overhead", claim, [outcome], count, json, note, facts)
    outcomes = bench.run(loaded, shapes, tokens, rounds, peers, True, count, say)
    claim = "generated tokens per second of concurrent requests, greedy"
    _finish("engine", claim, outcomes, count, json, note, facts)


def _finish(kind, claim, outcomes, threads, json, note, facts) -> None:
    """As bench_options.finish, with every outcome in full and the record's device as it was."""
    for each in outcomes:
        typer.echo(each.text())
    keep(kind, claim, outcomes, json, note, {"threads": threads, **facts}, facts["device"])
