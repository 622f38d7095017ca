"""`crucible load`: requests over HTTP against a running service, and the times that a client sees."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from crucible.cli.outputs import Json, apart, spared, writable

EXAMPLE = """
Examples:

  crucible load --shape 4x256 --bursts 5

  crucible load --arrivals poisson --rate 4 --count 100 --lengths 33,535 --raw samples.json.gz

  crucible load --shape 1x256 --bursts 10 --check-against openai
"""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command(epilog=EXAMPLE)
    def load(
        url: Annotated[str, typer.Option(help="http://HOST:PORT of the service.")] = "http://127.0.0.1:8000",
        face: Annotated[str | None, typer.Option(help="native (default) or openai (completions).")] = None,
        shape: Annotated[
            str | None, typer.Option(help="Closed bursts, REQUESTSxTOKENS, sent at once; 4x64.")
        ] = None,
        bursts: Annotated[
            int | None, typer.Option(min=1, help="Timed bursts, one after the other; 3.")
        ] = None,
        arrivals: Annotated[
            str | None, typer.Option(help="fixed or poisson: open arrivals instead of bursts.")
        ] = None,
        rate: Annotated[float | None, typer.Option(help="Arrivals a second; 1.")] = None,
        count: Annotated[int | None, typer.Option(min=1, help="Arrivals; 20.")] = None,
        lengths: Annotated[str | None, typer.Option(help="Prompt tokens of arrivals, in turn; 64.")] = None,
        max_tokens: Annotated[int, typer.Option(min=1, help="Tokens that each request generates.")] = 64,
        warmups: Annotated[int, typer.Option(min=0, help="Bursts (or requests) before, kept apart.")] = 1,
        seed: Annotated[int, typer.Option(help="Of prompts and Poisson times.")] = 1,
        model: Annotated[
            str, typer.Option(help="Model name for --face openai; default: the service's first.")
        ] = "",
        api_key: Annotated[
            str | None, typer.Option(envvar="CRUCIBLE_API_KEY", help="Key of the service.")
        ] = None,
        allow_remote: Annotated[
            bool, typer.Option("--allow-remote", help="Send to a machine other than this one.")
        ] = False,
        check_against: Annotated[
            str | None,
            typer.Option(help="openai: hold this client to the official SDK's completions stream."),
        ] = None,
        raw: Annotated[
            Path | None, typer.Option(callback=writable, help="Raw samples to write, gzip JSON.")
        ] = None,
        json: Json = None,
    ) -> None:
        """Send closed bursts or open arrivals and print TTFT, gaps and tokens a second by stated formulas.

        Exit code 1: a request failed, or the two clients of --check-against differ by more than 3 %; 130:
        interrupted (what was done is printed and written).
        """
        import asyncio

        from crucible.errors import InputError
        from crucible.service.load import plan as plans
        from crucible.service.load.check import PEERS
        from crucible.service.load.faces import find
        from crucible.service.load.target import target

        find(face or "native")
        apart(raw=raw, json=json)
        if check_against is not None and check_against not in PEERS:
            raise InputError(f"unknown client {check_against!r} to check against; choose {', '.join(PEERS)}")
        refuse_unused(
            arrivals,
            check_against,
            face,
            model,
            shape=shape,
            bursts=bursts,
            rate=rate,
            count=count,
            lengths=lengths,
        )
        shape, bursts = "4x64" if shape is None else shape, bursts or 3
        plan = (
            plans.closed(shape, bursts, max_tokens, warmups, seed)
            if arrivals is None
            else plans.arriving(
                arrivals,
                1.0 if rate is None else rate,
                count or 20,
                plans.parse("64" if lengths is None else lengths),
                max_tokens,
                warmups,
                seed,
            )
        )
        to = target(url, allow_remote, face=face or "native", model=model, api_key=api_key)
        to, context = asyncio.run(plans.known(to, needed=face == "openai" or check_against is not None))
        plan.check(context)
        if check_against is not None:
            other = plans.closed(shape, bursts, max_tokens, warmups, seed, begin=plan.count)
            raise typer.Exit(_check(to, plan, other, raw, json))
        raise typer.Exit(_load(to, plan, raw, json))


def refuse_unused(
    arrivals: str | None, check_against: str | None, face: str | None, model: str, **of_a_way: object
) -> None:
    """InputError for an option that what was asked for does not read."""
    from crucible.errors import InputError

    if check_against is not None and arrivals is not None:
        raise InputError("--check-against compares bursts; leave out --arrivals")
    if check_against is not None and face == "native":
        raise InputError("--check-against compares clients on the openai face; leave out --face native")
    if model and face != "openai" and check_against is None:
        raise InputError("the native face names no model; leave out --model, or take --face openai")
    bursts = ("shape", "bursts")
    unread = [
        n for n, given in of_a_way.items() if given is not None and (n in bursts) == (arrivals is not None)
    ]
    if unread:
        what = "of bursts and not of --arrivals" if arrivals is not None else "of arrivals; give --arrivals"
        named = " and ".join(f"--{name}" for name in unread)
        raise InputError(f"{named}: {what}, or leave {'it' if len(unread) == 1 else 'them'} out")


def _load(to: Any, plan: Any, raw: Path | None, json: Path | None) -> int:
    import asyncio

    from crucible.evidence import record
    from crucible.evidence.watch import Watch
    from crucible.service.load import samples, summary
    from crucible.service.load.client import Log

    log, stopped = Log(), False
    with _bar(plan.requests) as bar, Watch() as watch:
        log.heard = lambda sample: bar.update()
        try:
            asyncio.run(plan.run(to, log))
        except KeyboardInterrupt:
            if not log.samples:
                raise
            stopped = True
    typer.echo(f"{plan.name} at {to.url}, {to.face} face")
    for line in summary.lines(log.samples):
        typer.echo(line)
    machine = {name: str(b) for name, b in watch.envelope.brackets().items()}
    shown = "; ".join(f"{name} {b}" for name, b in machine.items())
    typer.echo(f"the machine (others are all but this client): {shown}")
    raw, json = (path and spared(path, stopped) for path in (raw, json))
    if raw is not None:
        typer.echo(f"raw samples: {samples.save(raw, log.samples, {'plan': plan.name, 'face': to.face})}")
    if json is not None:
        facts = {"face": to.face, "interrupted": stopped} | {f"envelope, {n}": b for n, b in machine.items()}
        made = summary.to_record(plan.name, log.samples, raw, facts, "cpu")
        typer.echo(f"record: {record.save(json, [made])}")
    if stopped:
        typer.echo("interrupted; the figures are those of the requests that had ended", err=True)
        return 130
    return int(any(not sample.good for sample in log.samples))


def _check(to: Any, plan: Any, other: Any, raw: Path | None, json: Path | None) -> int:
    import asyncio

    from crucible.evidence import record
    from crucible.service.load import check, samples

    found = check.begin(plan)
    with _bar(2 * plan.requests) as bar:
        try:
            asyncio.run(check.run(found, to, plan, other, bar.update))
        except KeyboardInterrupt:
            found = found.cut()
            if not found.ours:
                raise
    typer.echo(found.text())
    raw, json = (path and spared(path, found.stopped) for path in (raw, json))
    if raw is not None:
        taken = [sample for burst in (*found.ours, *found.theirs) for sample in burst]
        typer.echo(f"raw samples: {samples.save(raw, taken, {'plan': plan.name})}")
    if json is not None:
        typer.echo(f"record: {record.save(json, [found.to_record()])}")
    return 130 if found.stopped else int(not found.agrees)


def _bar(total: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, unit="request", leave=False, disable=None, file=sys.stderr)
