"""Content-addressed cache of build products, safe under concurrent processes."""

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import platformdirs

from crucible.errors import UnavailableError


def cache_dir() -> Path:
    """The user cache folder of Crucible; `CRUCIBLE_CACHE` overrides it."""
    return Path(os.environ.get("CRUCIBLE_CACHE") or platformdirs.user_cache_dir("crucible"))


def key(parts: Iterable[str | bytes | Path]) -> str:
    """Digest of the parts in order; a Path stands for its name and content."""
    h = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.name.encode() + b"\0" + part.read_bytes() if isinstance(part, Path) else part
        data = data.encode() if isinstance(data, str) else data
        h.update(len(data).to_bytes(8, "little") + data)
    return h.hexdigest()


@contextlib.contextmanager
def locked(path: Path):
    """Hold an exclusive lock beside `path`; the kernel drops it when the holder dies.

    Raises UnavailableError where the folder cannot be made or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = open(path.with_name(path.name + ".lock"), "w")  # noqa: SIM115 - the `with` below closes it
    except OSError as error:
        raise unwritable(path.parent, error) from None
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def unwritable(folder: Path, error: OSError) -> UnavailableError:
    """The error for a folder of the cache that refuses a file."""
    why = error.strerror or error
    return UnavailableError(
        f"cannot write into the cache folder {folder} ({why}); set CRUCIBLE_CACHE to another"
    )


def readable(path: Path) -> None:
    """Let everyone read a file that was made as a private temporary one, as the user's other files."""
    os.chmod(path, path.stat().st_mode | 0o444)


def build_once(folder: str, name: str, build: Callable[[Path], None]) -> Path:
    """Path of the product `folder/name`, built by `build(temporary_path)` if it is not cached.

    Concurrent callers build once: the file appears by an atomic rename under a lock, so a reader
    never sees half a file, and an interrupted build leaves nothing behind.
    """
    final = cache_dir() / folder / name
    if os.path.exists(final):  # False, and not an error, where a folder may not be searched
        return final
    with locked(final):
        if not final.exists():
            fd, temporary = tempfile.mkstemp(dir=final.parent, suffix=final.suffix)
            os.close(fd)
            try:
                build(Path(temporary))
                readable(Path(temporary))
                os.replace(temporary, final)
            except OSError as error:
                raise unwritable(final.parent, error) from None
            finally:
                Path(temporary).unlink(missing_ok=True)
    return final
