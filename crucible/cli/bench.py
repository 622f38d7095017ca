"""`crucible bench`: side-by-side timings, interleaved on this machine, with medians and brackets."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from crucible.cli.bench_options import (
    EXAMPLE,
    Against,
    Json,
    ModelName,
    Modes,
    Note,
    PeersPython,
    Rounds,
    Threads,
    app,
    finish,
    save_counters,
    say,
    thread_count,
)


def register(root: typer.Typer) -> None:
    """Add the command group to `root`."""
    # They add their commands to `app`.
    from crucible.cli import bench_attention, bench_engine, bench_model, bench_service  # noqa: F401

    root.add_typer(app, name="bench")


@app.command(epilog="Example:\n\n  crucible bench linear --against torch --rows 1 --rows 256")
def linear(
    against: Against = None,
    rows: Annotated[
        list[int] | None,
        typer.Option(help="Rows T; repeatable, default 1, 16, 256 and 512 (cuda: 1024; square: its own)."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Shapes of smollm2 or synthetic-12x768, on cuda also square; repeatable."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    kind: Annotated[list[str] | None, typer.Option(help="f32 or int8 on cuda; repeatable.")] = None,
    tune: Annotated[
        bool, typer.Option(help="Measure every f32 kernel, rewrite the table of choice.")
    ] = False,
    counters: Annotated[
        Path | None,
        typer.Option(help="Read hardware counters of large layers with ncu into this file."),
    ] = None,
    rounds: Rounds = 7,
    threads: Threads = None,
    json: Json = None,
    note: Note = "",
) -> None:
    """Linear layers in f32 and int8, beside torch's f32 and bf16."""
    from crucible.bench import linear as bench
    from crucible.errors import InputError

    if device not in ("cpu", "cuda"):
        raise InputError(f"linear layers are timed on cpu or cuda, not on {device!r}")
    if device == "cpu" and (tune or kind or counters):
        raise InputError("--tune, --kind and --counters are for a GPU; add --device cuda")
    if counters:
        save_counters("linear", "crucible.bench.linear_workloads:workloads", counters)
        return
    unknown = set(against or ()) - set(bench.PEERS)
    if unknown:
        raise InputError(
            f"unknown peer {min(unknown)!r} for linear layers; choose from {', '.join(bench.PEERS)}"
        )
    if device == "cuda":
        _linear_cuda(model, rows, against, kind, tune, rounds, json, note)
        return
    count = thread_count(threads)
    chosen = tuple(rows or bench.ROWS)
    outcomes = bench.run(tuple(model or ()), chosen, tuple(against or ()), rounds, count, say)
    claim = "GFLOP/s of linear layers, quantisation of activations included"
    finish("linear", claim, outcomes, count, json, note, {})


def _linear_cuda(model, rows, against, kind, tune, rounds, json, note) -> None:
    from crucible.bench import linear_gpu, linear_tune
    from crucible.linear import gpu_choice

    if tune:
        typer.echo(f"table: {gpu_choice.save(linear_tune.tune(rounds, say))}")
        return
    kinds = tuple(kind or linear_gpu.KINDS)
    outcomes = linear_gpu.run(tuple(model or ()), tuple(rows or ()), tuple(against or ()), rounds, kinds, say)
    typer.echo(linear_gpu.summary(outcomes))
    if json is not None:
        from dataclasses import replace

        from crucible.bench import outcome
        from crucible.evidence.environment import capture

        claim = f"microseconds of linear layers, graph replay of {linear_gpu.LAUNCHES}, cold weights"
        facts = {"note": note} if note else {}
        record = outcome.to_record("linear-cuda", claim, outcomes, facts)
        typer.echo(f"record: {outcome.save(json, [replace(record, environment=capture('cuda'))])}")


def _tokens(task, length, steps, model, mode, against, rounds, threads, peers_python, json, note) -> None:
    from crucible.bench import tokens

    count = thread_count(threads)
    outcome = tokens.run(
        task, model, mode, against or (), length, steps, rounds, count, peers_python, say=say
    )
    facts = {"model": model, "length": length} | ({"steps": steps} if task == "decode" else {})
    finish(task, f"tokens per second of {task}", [outcome], count, json, note, facts)


@app.command(epilog=EXAMPLE)
def decode(
    length: Annotated[int, typer.Option(min=1, help="Prompt tokens before the steps.")] = 32,
    steps: Annotated[int, typer.Option(min=1, help="Greedy steps timed.")] = 64,
    model: ModelName = "smollm2",
    mode: Modes = ["f32", "int8"],  # noqa: B006 - typer copies it
    against: Against = None,
    rounds: Rounds = 5,
    threads: Threads = None,
    peers_python: PeersPython = sys.executable,
    json: Json = None,
    note: Note = "",
) -> None:
    """Tokens per second of one request's greedy decode, with peak memory."""
    _tokens("decode", length, steps, model, mode, against, rounds, threads, peers_python, json, note)


@app.command(epilog=EXAMPLE.replace("decode", "prefill"))
def prefill(
    length: Annotated[int, typer.Option(min=1, help="Prompt tokens.")] = 512,
    model: ModelName = "smollm2",
    mode: Modes = ["f32", "int8"],  # noqa: B006 - typer copies it
    against: Against = None,
    rounds: Rounds = 5,
    threads: Threads = None,
    peers_python: PeersPython = sys.executable,
    json: Json = None,
    note: Note = "",
) -> None:
    """Tokens per second of one prompt, from ids to the logits of its last token, with peak memory."""
    _tokens("prefill", length, 0, model, mode, against, rounds, threads, peers_python, json, note)


@app.command(epilog="Example:\n\n  crucible bench startup --rounds 3")
def startup(model: ModelName = "smollm2", rounds: Rounds = 5, json: Json = None, note: Note = "") -> None:
    """Seconds of an import, of the command line and of a model's first token, each in a fresh process."""
    from crucible.bench import startup as bench

    outcome = bench.run(model, rounds)
    claim = "wall seconds of a fresh process"
    finish("startup", claim, [outcome], thread_count(None), json, note, {"model": model})
