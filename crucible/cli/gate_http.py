"""`crucible gate http`: answers recorded from one build, replayed against another."""

from pathlib import Path
from typing import Annotated, Any

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
    api_key: Annotated[
        str | None, typer.Option(help="Key of the running service; default: CRUCIBLE_API_KEY.")
    ] = None,
    build: Annotated[
        Path | None, typer.Option(help="Start this build: a virtual environment, its python, or a checkout.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Default: the recording's, else smollm2.")] = None,
    mode: Annotated[
        str | None, typer.Option(help="f32 or int8; default: the recording's, else int8.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto (default); moves no bit.")] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, max=512, help="Native requests to record; 12.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens a request, when recording; 24.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=(1 << 63) - 1, help="Of prompts and draws, when recording; 20260908."),
    ] = None,
    json: Json = None,
) -> None:
    """Record what a service answers on every face, or hold another build to such a recording.

    Tokens, texts, log-probabilities, digests and random state must be equal; ids, times and names of builds
    are left out. Exit code 0: recorded, or all equal; 1: an answer differs, or the service has another
    model, mode or contract than the recording.
    """
    import contextlib
    import os

    from tqdm import tqdm

    from crucible.cli.signals import term_is_interrupt
    from crucible.gates import http_facts, http_recording
    from crucible.gates import http_oracle as oracle
    from crucible.gates.http_record import to_record
    from crucible.service.load import client
    from crucible.service.load.target import target

    refuse(
        record=record,
        against=against,
        url=url,
        api_key=api_key,
        build=build,
        model=model,
        mode=mode,
        device=device,
        requests=requests,
        max_tokens=max_tokens,
        seed=seed,
        json=json,
    )
    facts, expected = http_recording.load(against) if against else ({}, [])
    with term_is_interrupt(), contextlib.ExitStack() as stack:
        if url is not None:
            key = os.environ.get("CRUCIBLE_API_KEY") if api_key is None else api_key
            to, known = target(url, api_key=key), {"build": http_facts.UNKNOWN}
        else:
            to, known = _started(stack, facts, build, model, mode, device or "auto")
        said = known | client.wait(http_facts.served(to))
        made = {
            "requests": requests or 12,
            "max_tokens": max_tokens or 24,
            "seed": 20260908 if seed is None else seed,
        }
        asked = expected or oracle.requests(str(said["model"]), *made.values())
        bar = stack.enter_context(tqdm(total=len(asked), unit="answer", disable=None, leave=False))
        found = []
        for one in asked:
            found.append(client.wait(oracle.answer(to, one)))
            bar.update()
    if record is not None:
        http_recording.check_answers(to.url, found)
        path = http_recording.save(record, said | made, found)
        typer.echo(f"recorded {len(found)} answers of {said['model']}: {path}")
        return
    differing = [d for d in map(oracle.compare, expected, found) if d is not None]
    unlike = http_facts.unlike(facts, said, http_facts.HELD)
    told = http_facts.unlike(facts, said, http_facts.TOLD)
    lines = [f"{len(found)} answers, {len(differing)} differ", *map(str, differing[:10])]
    lines += [f"not the same service: {what}" for what in unlike] + [f"note: {what}" for what in told]
    made = to_record(facts, found, differing, str(said.get("device", "cpu")), said, unlike, told)
    _finish(not (differing or unlike), lines, [made], json, False)


def refuse(**given: Any) -> None:
    """InputError for options that do not go together, so that none is read and left unused."""
    from crucible.errors import InputError

    named = {name for name, value in given.items() if value is not None}
    if len(named & {"record", "against"}) != 1:
        raise InputError("give --record FILE to make a recording or --against FILE to be held to one")
    if "api_key" in named and "url" not in named:
        raise InputError("--api-key is for a running service; add --url, or leave it out")
    for name, others, why in (
        ("url", ("build", "model", "mode", "device"), "names a running service, which has its own"),
        ("against", ("requests", "max_tokens", "seed"), "sends the requests of the recording"),
        ("record", ("json",), "writes a recording and no evidence"),
    ):
        if name in named and (unused := [f"--{o.replace('_', '-')}" for o in others if o in named]):
            raise InputError(f"--{name} {why}; leave out {' and '.join(unused)}")


def _started(stack, facts: dict, build: Path | None, model, mode, device: str) -> tuple:
    """(target, facts that are known of it) of a service that `stack` ends."""
    from crucible.cli.fetch import fetch_if_known
    from crucible.errors import InputError
    from crucible.gates import http_facts
    from crucible.service.started import Side, arguments, build_at

    name = model or str(facts.get("started with") or facts.get("model") or "smollm2")
    way = mode or str(facts.get("mode") or ("" if facts else "int8"))
    if not way:
        raise InputError("the recording does not say its mode, f32 or int8; give it with --mode")
    from crucible import device as devices

    fetch_if_known(name)
    on = devices.get(device).name
    side = Side("http", build_at(build), arguments(name, way, on, ("--log-level", "error")))
    to = stack.enter_context(side.running()).target
    return to, http_facts.started(name, way, on, build)
