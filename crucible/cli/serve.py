"""`crucible serve`: one engine behind HTTP, until it is told to stop."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = """
Example:

  crucible serve --model smollm2 --mode int8

  curl -s http://127.0.0.1:8000/v1/generate \\
    --json '{"prompt": "The capital of France is"}'
"""
_LEVELS = ("debug", "info", "warning", "error")


class _Told(SystemExit):
    """A signal to stop."""


@contextlib.contextmanager
def _stops_early() -> Iterator[None]:
    """A signal that comes before the service listens to signals ends the command as told."""

    def stop(number, frame):
        raise _Told

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except _Told:
        _say("stopped before the model was loaded")
        raise typer.Exit(0) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command(epilog=EXAMPLE)
    @_stops_early()
    def serve(
        model: Annotated[str, typer.Option(help="A known name, a .gguf file or a folder.")] = "smollm2",
        mode: Annotated[str, typer.Option(help="f32 or int8 (8-bit weights, 16-bit activations).")] = "f32",
        device: Annotated[str, typer.Option(help="cpu, cuda or auto: cuda where there is a GPU.")] = "auto",
        host: Annotated[str, typer.Option(help="Address to listen on; the default is this machine only.")] = (
            "127.0.0.1"
        ),
        port: Annotated[
            int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
        ] = 8000,
        port_file: Annotated[
            Path | None, typer.Option(help="File that gets the port once requests are taken.")
        ] = None,
        attention: Annotated[
            str | None,
            typer.Option(
                help="An exact variant (the reference runs, and the log says so, where it does not cover a "
                "step); default: CRUCIBLE_PREFILL_ATTN, else auto. Or file.cu:entry, your own kernel on "
                "simt or cuda, whose tokens nobody promises."
            ),
        ] = None,
        api_key: Annotated[
            str | None,
            typer.Option(
                envvar="CRUCIBLE_API_KEY", help="Key that every request must bring.", show_envvar=True
            ),
        ] = None,
        queue: Annotated[int, typer.Option(min=1, help="Requests that wait at most; more get a 429.")] = 64,
        prefill_budget: Annotated[int, typer.Option(min=1, help="Prompt rows a step.")] = 1024,
        chunk_cap: Annotated[
            int | None, typer.Option(min=1, help="Prompt rows of one request a step; default: no cap.")
        ] = None,
        decode_batch: Annotated[int, typer.Option(min=1, help="Requests that run at once.")] = 64,
        pages: Annotated[int, typer.Option(min=1, help="Pages of the K/V cache, 16 positions each.")] = 1024,
        prefix_sharing: Annotated[
            bool,
            typer.Option("--prefix-sharing/--no-prefix-sharing", help="Share pages of equal beginnings."),
        ] = True,
        restart: Annotated[bool, typer.Option("--restart", help="Replace an engine that dies.")] = False,
        drain_seconds: Annotated[
            float, typer.Option(min=0, help="Time that running replies have after a signal to stop.")
        ] = 30.0,
        log_level: Annotated[
            str, typer.Option(help="debug, info, warning or error; JSON lines on stderr.")
        ] = "info",
    ) -> None:
        """Serve a model over HTTP; prints one line with the URL when requests are taken.

        SIGTERM or Ctrl-C: nothing new is taken, running replies end, pages are counted; once more stops at
        once. A model that still loads is given up. Exit code 0: stopped as told; 1: the engine died; 2: it
        could not start; 130 or 143: stopped at once.
        """
        import logging

        from crucible.attention import user
        from crucible.cli.fetch import fetch_if_known
        from crucible.engine.scheduler import Limits
        from crucible.errors import InputError
        from crucible.files import check_writable
        from crucible.model.card import Card
        from crucible.model.model import open_checkpoint
        from crucible.model.weights import MODES
        from crucible.service.hosts import is_loopback

        if log_level not in _LEVELS:
            raise InputError(f"unknown --log-level {log_level!r}; choose one of {', '.join(_LEVELS)}")
        if mode not in MODES:
            raise InputError(f"unknown mode {mode!r}; choose one of {', '.join(MODES)}")
        if api_key is not None and not api_key.strip():
            raise InputError(
                "the API key is empty; give one of some length, or leave it out to let everybody in"
            )
        if api_key is not None and not all("!" <= character <= "~" for character in api_key):
            raise InputError(
                "the API key holds a space or a character outside ASCII, which clients send in different "
                "ways; use letters, digits and signs"
            )
        if port_file is not None:
            check_writable(port_file)
        variant = exact_variant(attention)
        serving = _service()
        limits = Limits(queue, prefill_budget, chunk_cap, decode_batch, pages)
        with serving.bind(host, port) as listening:
            if port_file is not None:
                port_file.unlink(missing_ok=True)  # the port of an earlier run: nobody may take it for ours
            if api_key is None and not is_loopback(host):
                _say(f"warning: everybody who reaches {host} may use this service; set --api-key")
            fetch_if_known(model)
            card = Card.of(open_checkpoint(model), mode)
            if user.is_file(variant):
                card.foreign = user.digest(variant)
                _say(f"warning: attention is {variant}, a user's: no token of this service is promised")
            plan = serving.Plan(
                load=serving.Load(model, device, mode, limits, prefix_sharing, variant),
                settings=serving.Settings(public_name(model), api_key),
                restart=serving.Restart() if restart else None,
                drain=drain_seconds,
            )
            url = serving.url_of(host, listening.getsockname()[1])
            serving.logs.configure(level=getattr(logging, log_level.upper()))
            raise typer.Exit(_run(serving, card, plan, listening, url, port_file))


def exact_variant(name: str | None) -> str:
    """The variant asked for, or that of the environment, or a user's file; UnsupportedError for others that
    are not exact."""
    from crucible.attention import user
    from crucible.attention.variants import AUTO, VARIANTS, default, find
    from crucible.errors import UnsupportedError

    if name is not None and user.is_file(name):
        path, entry = user.split(name)
        return f"{path.resolve()}:{entry or path.stem}"
    variant = default() if name is None else find(name)
    if variant != AUTO and not VARIANTS[variant].exact:
        raise UnsupportedError(
            f"attention variant {variant} does not keep the contract's bits; serve an exact one, or auto"
        )
    return variant


def public_name(model: str) -> str:
    """The name that clients give: a known name, or that of the file or folder."""
    return Path(model).resolve().stem if Path(model).is_file() else Path(model).name


def _service():
    """crucible.service.serve, or UnavailableError with what to install."""
    from crucible.errors import UnavailableError

    try:
        from crucible.service import serve
    except ModuleNotFoundError as error:
        raise UnavailableError(
            f"the service needs {error.name}; run: {sys.executable} -m pip install 'crucible[service]'"
        ) from None
    return serve


def _run(serving, card, plan, listening, url: str, port_file: Path | None) -> int:
    from tqdm import tqdm

    if not sys.stderr.isatty():  # where no bar is drawn
        _say(f"loading {plan.load.model} {plan.load.mode}; a first start compiles kernels and takes longer")
    bar = tqdm(desc=f"load {plan.load.model}", unit="block", leave=False, disable=None)

    def progress(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    def ready(device: str) -> None:
        bar.close()
        if port_file is not None:
            port_file.parent.mkdir(parents=True, exist_ok=True)
            part = port_file.with_name(port_file.name + ".part")
            part.write_text(f"{listening.getsockname()[1]}\n")
            part.replace(port_file)  # whoever waits for the file finds it whole
        print(f"serving {plan.settings.model} {plan.load.mode} on {device} at {url}", flush=True)

    try:
        return serving.run(card, plan, listening, ready, _say, progress)
    finally:
        bar.close()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
