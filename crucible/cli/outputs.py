"""Options that name a file to write: looked at before the work, so that no long run is lost at its end."""

from pathlib import Path
from typing import Annotated

import typer


def writable(path: Path | None) -> Path | None:
    """The path as given; InputError where no file can be written there."""
    from crucible.files import check_writable

    if path is not None:
        check_writable(path)
    return path


Json = Annotated[Path | None, typer.Option("--json", callback=writable, help="Evidence file to write.")]
