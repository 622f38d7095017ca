"""`crucible chat`: talk to a model in the terminal, or run a saved chat again and compare its answers."""

import importlib.util
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

EXAMPLE = """
Examples:

  crucible chat --model smollm2 --mode int8

  crucible chat --url http://127.0.0.1:8000

  crucible chat --replay chat-20260908-101500.json
"""


def _terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _need(*packages: str) -> None:
    """UnavailableError for the first package that is not installed."""
    from crucible.errors import UnavailableError

    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise UnavailableError(f"the chat needs {package}; run: pip install 'crucible[chat]'")


def _sampling(**given) -> Any:
    """A Sampling of the options that were given."""
    from crucible.service.tui.source import Sampling

    return Sampling(**{name: value for name, value in given.items() if value is not None})


def _source(url: str | None, api_key: str | None, model: str | None, mode: str | None, device: str | None):
    """The source that the options name; refused here where it cannot be had."""
    from crucible.errors import InputError

    if url is not None:
        for option, value in (("--model", model), ("--mode", mode), ("--device", device)):
            if value is not None:
                raise InputError(f"{option} {value} does nothing with --url; leave one of the two out")
        from crucible.service.tui.remote import RemoteSource

        return RemoteSource(url, api_key)
    from crucible.cli.fetch import fetch_if_known
    from crucible.service.tui.local import LocalSource

    source = LocalSource(model or "smollm2", mode or "int8", device or "auto")
    fetch_if_known(source.name)
    source.check()
    return source


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command(epilog=EXAMPLE)
    def chat(
        url: Annotated[str | None, typer.Option(help="A running service, in place of an own engine.")] = None,
        api_key: Annotated[
            str | None,
            typer.Option(envvar="CRUCIBLE_API_KEY", show_envvar=True, help="Key for the service."),
        ] = None,
        model: Annotated[
            str | None, typer.Option(help="A known name, a .gguf file or a folder; default smollm2.")
        ] = None,
        mode: Annotated[str | None, typer.Option(help="int8 (the default) or f32.")] = None,
        device: Annotated[str | None, typer.Option(help="cpu, cuda or auto (the default).")] = None,
        system: Annotated[str | None, typer.Option(help="System message.")] = None,
        temperature: Annotated[float | None, typer.Option(help="0 is greedy; default 0.7.")] = None,
        top_k: Annotated[int | None, typer.Option(help="Keep this many ranks; default 0, all.")] = None,
        top_p: Annotated[float | None, typer.Option(help="Keep this much probability; default 0.95.")] = None,
        seed: Annotated[int | None, typer.Option(help="One seed for every answer; default: drawn.")] = None,
        max_tokens: Annotated[int | None, typer.Option(help="Of one answer at most; default 256.")] = None,
        sampler: Annotated[str | None, typer.Option(help="inverse-cdf (default) or gumbel-id.")] = None,
        load: Annotated[Path | None, typer.Option(help="Go on with a saved chat.")] = None,
        replay: Annotated[
            Path | None, typer.Option(help="Run every answer of a saved chat again and compare.")
        ] = None,
        save: Annotated[
            Path | None, typer.Option(help="Where Ctrl-S writes; default chat-DATE.json.")
        ] = None,
        theme: Annotated[str, typer.Option(help="dark or light.")] = "dark",
    ) -> None:
        """Chat in the terminal with a running service or an engine of this process.

        Every answer shows its seed, and Ctrl-R runs it again and compares tokens, text and how it ended.
        --replay does that with a whole saved chat, also without a terminal: a line per answer, exit code 1 if
        one differs. An answer that was stopped is compared as a beginning; another model or fingerprint is
        told, and its answers are compared all the same.
        """
        import asyncio

        from crucible.errors import InputError
        from crucible.files import check_writable
        from crucible.service.tui.transcript import load as read

        terminal = _terminal()
        if not terminal and replay is None:
            raise InputError(
                "a chat needs a terminal, and stdin or stdout is none; for one answer use: "
                "crucible generate --chat --prompt TEXT"
            )
        if load is not None and replay is not None:
            raise InputError("--load and --replay both name a saved chat; give one of them")
        if theme not in ("dark", "light"):
            raise InputError(f"theme {theme!r} is unknown; choose dark or light")
        if save is not None:
            check_writable(save)
        _need(*(["textual"] if terminal else []), *(["httpx"] if url else []))
        sampling = _sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            max_tokens=max_tokens,
            sampler=sampler,
        )
        if system is not None and any("\ud800" <= c <= "\udfff" for c in system):  # bytes of argv
            raise InputError("the system message is not UTF-8 text; give it in UTF-8")
        saved = load or replay
        transcript = read(saved) if saved else None
        source = _source(url, api_key, model, mode, device)
        if terminal:
            from crucible.service.tui.run import on_screen

            work = on_screen(source, sampling, system, transcript, replay is not None, theme, save)
        else:
            from crucible.service.tui.run import replayed

            work = replayed(source, transcript, print)
        raise typer.Exit(0 if asyncio.run(work) else 1)
