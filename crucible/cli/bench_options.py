"""Options, helpers and the command group that every `crucible bench …` shares."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from crucible.cli.outputs import spared, writable

EXAMPLE = """
Example:

  crucible bench decode --against transformers --against llama.cpp --json bench.json
"""

app = typer.Typer(
    no_args_is_help=True, help="Time Crucible beside other engines (nothing here is a test).", epilog=EXAMPLE
)


def _evidence(path: Path | None) -> Path | None:
    """The path as given; InputError where no record can be written into it, now and not after the run."""
    from crucible.evidence.record import load

    if writable(path) is not None and path.exists():
        load(path)
    return path


Against = Annotated[list[str] | None, typer.Option(help="A peer to stand beside; repeatable.")]
Json = Annotated[
    Path | None,
    typer.Option(
        "--json", callback=_evidence, help="Evidence file to write into; other kinds of record in it stay."
    ),
]
Rounds = Annotated[int, typer.Option(min=1, help="Interleaved rounds; warm-up rounds are not counted.")]
Threads = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Threads of every engine; default: all processors.")
]
ModelName = Annotated[str, typer.Option("--model", help="Name, GGUF file or folder.")]
Note = Annotated[str, typer.Option(help="A remark for the record, such as what else ran on the machine.")]
Modes = Annotated[list[str], typer.Option("--mode", help="f32 or int8; repeatable, default both.")]
PeersPython = Annotated[
    str, typer.Option(help="Interpreter whose environment holds the peers (and crucible); default: this one.")
]


def thread_count(given: int | None) -> int:
    """Threads of every engine: as given, or those of the cpu device."""
    from crucible.device.cpu import default_threads

    return given or default_threads()


def say(text: str) -> None:
    """Progress, on stderr."""
    typer.echo(text, err=True)


def finish(
    kind: str, claim: str, outcomes: list, threads: int, json: Path | None, note: str, facts: dict
) -> None:
    """Print the outcomes as one table and end as `keep` does."""
    from crucible.bench import outcome

    typer.echo(outcome.matrix(outcomes) if len(outcomes) > 1 else outcomes[0].text())
    keep(kind, claim, outcomes, json, note, {"threads": threads, **facts})


def keep(
    kind: str,
    claim: str,
    outcomes: list,
    json: Path | None,
    note: str,
    facts: dict,
    device: str | None = None,
) -> None:
    """Write the record of outcomes, as of `device` where one is named; exit code 130 where Ctrl-C cut the
    rounds short, and then an earlier file is spared."""
    from crucible.bench import outcome
    from crucible.evidence.environment import capture

    stopped = any(each.stopped for each in outcomes)
    if json is not None:
        record = outcome.to_record(kind, claim, outcomes, facts | ({"note": note} if note else {}))
        if device is not None:
            record = replace(record, environment=capture(device))
        typer.echo(f"record: {outcome.save(spared(json, stopped), [record])}")
    if stopped:
        typer.echo("interrupted; the figures are those of the rounds that were complete", err=True)
        raise typer.Exit(130)


def save_counters(kind: str, target: str, path: Path) -> None:
    """Print the hardware counters of workloads (crucible.bench.counters) and write their record."""
    from crucible.bench import counters, outcome

    found = counters.read(target, say=say)
    typer.echo(counters.text(found))
    typer.echo(f"record: {outcome.save(path, [counters.to_record(kind, found)])}")
