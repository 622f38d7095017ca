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


def apart(**files: Path | None) -> None:
    """InputError where two options, given by name, would write the same file: one would be lost."""
    from crucible.errors import InputError
    from crucible.files import shown

    seen: dict[Path, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        other = seen.setdefault(path.resolve(), option)
        if other != option:
            raise InputError(f"--{other} and --{option} both name {shown(path)}; give each a file of its own")


Json = Annotated[Path | None, typer.Option("--json", callback=writable, help="Evidence file to write.")]
