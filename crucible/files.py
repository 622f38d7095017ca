"""Files given from outside: regular ones only, and every failure to read one is one sentence."""

import mmap
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from crucible.errors import InputError


def brief(value: Any, limit: int = 80) -> str:
    """repr of a value from outside for an error's sentence: one line, cut in the middle."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = f"a {type(value).__name__} too long to print"
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-limit // 4 :]}"


def shown(path: Path | str) -> str:
    """A path for an error's sentence: as it is where it is short and printable."""
    text = str(path)
    return text if text.isprintable() and len(text) <= 300 else brief(text, 200)


def open_regular(path: Path | str) -> BinaryIO:
    """Open a regular file to read its bytes.

    Raises InputError for anything else: a folder, a device, or a FIFO, which would wait for a writer.
    """
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):
            # Not blocking, in case a FIFO takes the file's place between the two calls.
            handle = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
            mode = os.fstat(handle.fileno()).st_mode
            if stat.S_ISREG(mode):
                return handle
            handle.close()
    except OSError as error:
        raise InputError(f"cannot read {shown(path)}: {error.strerror or error}") from None
    except ValueError:  # a NUL or a lone surrogate
        raise InputError(f"cannot read {shown(path)}: no file can have that name") from None
    kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
    raise InputError(f"cannot read {shown(path)}: it is {kind}")


def check_writable(path: Path | str) -> None:
    """InputError where no file can be written at `path`; folders that are missing can be made."""
    path = Path(path).absolute()
    try:
        other = path.exists() and not path.is_file()
        above = next((parent for parent in path.parents if os.path.lexists(parent)), path)  # of /, itself
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {shown(path)}: {getattr(error, 'strerror', '') or error}") from None
    if other:
        raise InputError(f"cannot write {shown(path)}: it is not a regular file")
    if not above.is_dir():
        raise InputError(f"cannot write {shown(path)}: {shown(above)} is not a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {shown(path)}: no permission in {shown(above)}")


def read_text(path: Path | str) -> str:
    """The text of a regular UTF-8 file; InputError when it cannot be read or is not UTF-8."""
    try:
        with open_regular(path) as handle:
            return handle.read().decode("utf-8")
    except OSError as error:
        raise InputError(f"cannot read {shown(path)}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{shown(path)} is not UTF-8 text: byte {error.start}") from None


def write_whole(path: Path, text: str) -> None:
    """Write UTF-8 text by an atomic rename: what was there stays until the new text is whole. InputError."""
    check_writable(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"cannot write {shown(path)}: {error.strerror or error}") from None


def map_file(path: Path | str) -> memoryview:
    """The bytes of a regular file, mapped; InputError when it cannot be read or is empty.

    The view follows later writes to the file, so whatever outlives the loading must be copied.
    """
    with open_regular(path) as handle:
        try:
            return memoryview(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
        except ValueError:
            raise InputError(f"cannot read {shown(path)}: the file is empty") from None
        except OSError as error:
            raise InputError(f"cannot read {shown(path)}: {error.strerror or error}") from None
