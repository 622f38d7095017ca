"""What a notebook left before stands aside while it runs again, and comes back where that run does not end.

A file is moved, never copied, so at every moment a result lies in its place or aside; a process that is
killed leaves it aside, and the next one puts it back.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crucible.errors import InputError
from crucible.files import shown

ASIDE = ".earlier"  # in the run's folder; what lies in it belongs at the same path outside
_DROPPED = ".earlier.dropped"


def places(stem: str) -> tuple[str, str]:
    """Paths, from the run's folder, of a notebook's records and of its executed copy."""
    return f"evidence/{stem}.json", f"notebooks/{stem}.ipynb"


def put_aside(folder: Path, stem: str) -> None:
    """Move a notebook's records and its executed copy out of the way of its new run."""
    for name in places(stem):
        if (folder / name).exists():
            (folder / ASIDE / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(folder / name, folder / ASIDE / name)


def put_back(folder: Path) -> None:
    """Move everything that stands aside to its place, over what a run that did not end has left there."""
    for path in sorted((folder / ASIDE).rglob("*")):
        if path.is_file():
            place = folder / path.relative_to(folder / ASIDE)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, place)
    shutil.rmtree(folder / ASIDE, ignore_errors=True)
    shutil.rmtree(folder / _DROPPED, ignore_errors=True)


def drop(folder: Path) -> None:
    """Delete what stands aside: the new run has ended. One rename, so none of it can come back."""
    if (folder / ASIDE).exists():
        os.replace(folder / ASIDE, folder / _DROPPED)
    shutil.rmtree(folder / _DROPPED, ignore_errors=True)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder, until the process ends at the latest; InputError where another one holds it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(
            f"another crucible report is running in {shown(folder)}; wait for its end or choose another --out"
        ) from None
    except OSError:  # a file system without locks: two reports in one folder are then the user's to avoid
        pass
    try:
        yield
    finally:
        os.close(handle)
