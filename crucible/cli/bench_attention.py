"""`crucible bench attention`: our variants beside torch's, on the GPU or on the processor."""

from pathlib import Path
from typing import Annotated

import typer

from crucible.cli.bench_options import Json, Threads, app, finish, save_counters, say, thread_count

HEADS = "12/3/64"


@app.command(epilog="Example:\n\n  crucible bench attention --device cuda --shape 4x256 --shape 2x512")
def attention(
    context: typer.Context,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cpu",
    shape: Annotated[
        list[str] | None, typer.Option(help="A shape; repeatable, default all 25 (cpu: two of them).")
    ] = None,
    variant: Annotated[
        list[str] | None, typer.Option(help="A variant of ours; repeatable, default reference, auto.")
    ] = None,
    heads: Annotated[str, typer.Option(help="Query heads/KV heads/head_dim.")] = HEADS,
    flex: Annotated[list[str] | None, typer.Option(help="A shape for FlexAttention, which compiles.")] = None,
    peers: Annotated[bool, typer.Option(help="Time torch's attentions too.")] = True,
    full: Annotated[
        bool, typer.Option(help="On cuda: the 25 shapes, other geometries, decode and the ablation.")
    ] = False,
    part: Annotated[list[str] | None, typer.Option(help="A part of --full; repeatable.")] = None,
    counters: Annotated[
        Path | None, typer.Option(help="Read hardware counters of the main kernels with ncu into this file.")
    ] = None,
    tune: Annotated[bool, typer.Option(help="Measure every variant and rewrite auto's table.")] = False,
    table: Annotated[Path | None, typer.Option(help="Where --tune writes; default: in the package.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Trials; one more is taken and thrown away.")] = 5,
    threads: Threads = None,
    json: Json = None,
) -> None:
    """Attention over paged K/V: graph replay and eager launches, or calls on the processor."""
    from crucible.attention import shapes
    from crucible.bench import attention_cpu
    from crucible.errors import InputError

    if device not in ("cuda", "cpu"):
        raise InputError(f"attention is timed on cuda or cpu, not on {device!r}")
    _refuse_idle(context, device, tune, full, counters is not None)
    if tune:
        _tune(table, rounds)
        return
    if full or counters:
        if full:
            _full(rounds, peers, part or (), json)
        if counters:
            save_counters("attention", "crucible.bench.attention_workloads:workloads", counters)
        return
    if device == "cpu":
        count = thread_count(threads)
        chosen = shapes.chosen(shape or attention_cpu.SHAPES)
        outcomes = attention_cpu.run(chosen, rounds, count, say)
        finish("attention-cpu", "milliseconds of attention calls", outcomes, count, json, "", {})
        return
    from crucible.bench import attention as bench

    outcomes = bench.run(
        shapes.chosen(shape or ()),
        tuple(variant or bench.VARIANTS),
        rounds,
        peers,
        tuple(flex or ()),
        _geometry(heads),
        say,
    )
    typer.echo(bench.summary(outcomes))
    if json is not None:
        typer.echo(f"record: {_record(outcomes, heads, json)}")


# What each kind of run reads besides --device, and the flag that asks for it.
READ = {
    "--tune": ("tune", "table", "rounds"),
    "--full": ("full", "part", "rounds", "peers", "json"),
    "--counters": ("counters",),
    "cuda": ("shape", "variant", "heads", "flex", "peers", "rounds", "json"),
    "cpu": ("shape", "rounds", "threads", "json"),
}
OTHER = {"cuda": "cpu", "cpu": "cuda"}


def _refuse_idle(context: typer.Context, device: str, tune: bool, full: bool, counters: bool) -> None:
    """InputError for an option that this run would not read."""
    from crucible.errors import InputError

    flags = ["--tune"] if tune else ["--full"] * full + ["--counters"] * counters
    if flags and device != "cuda":
        raise InputError(f"{flags[0]} measures a GPU; add --device cuda")
    runs = flags or [device]
    for option, value in context.params.items():
        given = context.get_parameter_source(option).name == "COMMANDLINE"
        off = value is False and option in ("tune", "full")
        if not given or off or option == "device" or any(option in READ[run] for run in runs):
            continue
        name = "--no-peers" if value is False else f"--{option}"
        owner = next(run for run, read in READ.items() if option in read)
        if flags:
            raise InputError(f"{name} does nothing with {' and '.join(flags)}; leave out one of them")
        if owner in OTHER or option == "peers":
            raise InputError(f"{name} does nothing on {device}; leave it out or use --device {OTHER[device]}")
        raise InputError(f"{name} does nothing without {owner}; add {owner} or leave {name} out")


def _record(outcomes: list, heads: str, path: Path) -> Path:
    from dataclasses import replace

    from crucible.bench import outcome
    from crucible.evidence.environment import capture

    claim = "microseconds of attention launches, graph replay of 50"
    record = outcome.to_record("attention", claim, outcomes, {"heads": heads})
    return outcome.save(path, [replace(record, environment=capture("cuda"))])


def _full(rounds: int, peers: bool, parts, json: Path | None) -> None:
    from crucible.bench import attention_full, outcome

    full = attention_full.run(rounds, peers, parts, say=say)
    typer.echo(attention_full.text(full))
    if json is not None:
        typer.echo(f"record: {outcome.save(json, attention_full.records(full))}")


def _geometry(text: str) -> tuple[int, int, int]:
    from crucible.errors import InputError

    parts = text.split("/")
    if len(parts) != 3 or not all(p.isdigit() and int(p) for p in parts):
        raise InputError(f"heads {text!r} must be query heads/KV heads/head_dim, for example 12/3/64")
    return tuple(int(p) for p in parts)


def _tune(table: Path | None, rounds: int) -> None:
    from crucible.attention import dispatch
    from crucible.bench import attention_tune

    path = dispatch.save(attention_tune.tune(rounds, say), table or dispatch.TABLE)
    typer.echo(f"table: {path}")
