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


def spared(path: Path, interrupted: bool) -> Path:
    """Where a run writes that was to write `path`: an earlier file gives way to a whole run alone."""
    if not (interrupted and path.exists()):
        return path
    name, *suffixes = path.name.split(".")
    return path.with_name(".".join([name, "interrupted", *suffixes]))


def keep(path: Path, records: list, interrupted: bool) -> None:
    """Save the evidence of a run and say where; one that came to no record leaves an earlier file alone."""
    from crucible.evidence.record import save

    if records:
        typer.echo(f"record: {save(spared(path, interrupted), records)}")
    else:
        typer.echo(f"no record: nothing was measured yet; {path} is left as it was", err=True)


Json = Annotated[Path | None, typer.Option("--json", callback=writable, help="Evidence file to write.")]
