"""Entry point of `crucible`: collects the subcommands and turns errors into one line and exit code 2."""

import importlib
import sys

import typer

from crucible import __version__
from crucible.errors import CrucibleError

# One module per command under crucible/cli; each offers register(app). A command that a later
# stage adds is one more name here.
COMMANDS: tuple[str, ...] = (
    "conformance",
    "doctor",
    "fetch",
    "generate",
    "evaluate",
    "bench",
    "report",
    "gate",
)

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="LLM inference with one set of bits, and the notebooks that prove it.",
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"crucible {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """LLM inference with one set of bits."""


def main() -> None:
    """Run the command line; a CrucibleError becomes `error: <sentence>` and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that lacks a character gets its escape
            stream.reconfigure(errors="backslashreplace")
    for command in COMMANDS:
        importlib.import_module(f"crucible.cli.{command}").register(app)
    try:
        app()
    except CrucibleError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
