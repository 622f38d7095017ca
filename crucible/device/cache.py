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


def _lock(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


@contextlib.contextmanager
def locked(path: Path):
    """Hold an exclusive lock beside `path`, a file that is yielded; the kernel drops it when the holder dies.

    Raises UnavailableError where the folder cannot be made or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = open(_lock(path), "ab")  # noqa: SIM115 - the `with` below closes it
    except OSError as error:
        raise unwritable(path.parent, error) from None
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle


def unwritable(folder: Path, error: OSError) -> UnavailableError:
    """The error for a folder of the cache that refuses a file."""
    why = error.strerror or error
    return UnavailableError(
        f"cannot write into the cache folder {folder} ({why}); set CRUCIBLE_CACHE to another"
    )


def readable(path: Path) -> None:
    """Let everyone read a file that was made as a private temporary one, as the user's other files."""
    os.chmod(path, path.stat().st_mode | 0o444)


def _digest(path: Path) -> bytes:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest().encode()


def _sound(final: Path) -> bool:
    """Whether the product is there with the bytes that were published: its lock file keeps their digest.

    A cut or altered library would end the process, or give other bits.
    """
    try:
        return os.path.isfile(final) and _lock(final).read_bytes() == _digest(final)
    except OSError:  # the folder may not be searched
        return False


def build_once(folder: str, name: str, build: Callable[[Path], None]) -> Path:
    """Path of the product `folder/name`, built by `build(temporary_path)` if it is not cached.

    Concurrent callers build once: the file appears by an atomic rename under a lock, so a reader
    never sees half a file, and an interrupted build leaves nothing behind. A product that is no
    longer as it was built is built again. Raises UnavailableError for a build that makes nothing.
    """
    final = cache_dir() / folder / name
    if _sound(final):
        return final
    with locked(final) as lock:
        if not _sound(final):
            try:
                fd, temporary = tempfile.mkstemp(dir=final.parent, suffix=final.suffix)
            except OSError as error:
                raise unwritable(final.parent, error) from None
            os.close(fd)
            try:
                build(Path(temporary))
                if not os.path.getsize(temporary):
                    raise UnavailableError(f"building {name} gave an empty file; check the compiler (CXX)")
                readable(Path(temporary))
                digest = _digest(Path(temporary))
                os.replace(temporary, final)
                lock.truncate(0)  # a crash before the write leaves a product that is built again
                lock.write(digest)
            except OSError as error:
                raise unwritable(final.parent, error) from None
            finally:
                Path(temporary).unlink(missing_ok=True)
    return final
