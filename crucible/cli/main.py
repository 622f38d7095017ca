"""Entry point of `crucible`: collects the subcommands and turns errors into one line and exit code 2."""

import importlib
import os
import sys

import typer
from typer.core import TyperGroup

from crucible import __version__
from crucible.errors import CrucibleError

# One module per command under crucible/cli; each offers register(app). A command that a later
# stage adds is one more name here.
COMMANDS: tuple[str, ...] = (
    "conformance",
    "doctor",
    "fetch",
    "generate",
    "serve",
    "chat",
    "load",
    "ab",
    "sweep",
    "evaluate",
    "bench",
    "report",
    "gate",
    "diagnose",
)

EXAMPLE = """
Examples:

  crucible generate --prompt "The capital of France is" --max-tokens 20

  crucible conformance tests/vectors

  crucible doctor
"""


class _Root(TyperGroup):
    """Says that a Ctrl-C was heard, in any command: typer by itself ends in silence."""

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=_Root,
    epilog=EXAMPLE,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="LLM inference with one set of bits, and the notebooks that prove it.",
)


# Every variable that Crucible reads; README.md says what each does.
VARIABLES = (
    "CRUCIBLE_API_KEY",
    "CRUCIBLE_CACHE",
    "CRUCIBLE_COMMIT",
    "CRUCIBLE_PREFILL_ATTN",
    "CRUCIBLE_SIMT_SANITIZE",
    "CRUCIBLE_THREADS",
    "CRUCIBLE_VECTOR_LEVEL",
)


def unknown_variables() -> list[str]:
    """Names in the environment that begin with CRUCIBLE_ and that nothing reads: a slip of the pen."""
    return sorted(name for name in os.environ if name.startswith("CRUCIBLE_") and name not in VARIABLES)


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
    try:
        for name in unknown_variables():
            print(f"warning: {name} is no variable that Crucible reads; see README.md", file=sys.stderr)
        for command in COMMANDS:
            importlib.import_module(f"crucible.cli.{command}").register(app)
        app()
    except CrucibleError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
