"""Where a result was made: versions, commit, device, driver, kernel sources and contract version."""

import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from crucible import __version__
from crucible.device.sources import kernels_dir
from crucible.errors import CrucibleError
from crucible.evidence.envelope import cpu_model, gpu

LIBRARIES = ("numpy", "torch", "cupy-cuda13x", "nvidia-cuda-nvrtc", "tokenizers", "gguf")


@dataclass(frozen=True)
class Environment:
    """The machine and the software of one result; empty text means that this machine has no such thing."""

    crucible: str
    contract_version: int
    kernel_digest: str
    commit: str
    dirty: bool
    device: str
    device_name: str
    vector_level: str
    driver: str
    cuda_driver: str
    compiler: str
    python: str
    platform: str
    taken_at: str
    libraries: Mapping[str, str] = field(default_factory=dict)


@functools.cache
def kernel_digest() -> str:
    """blake2b-16 over every kernel source (relative path and bytes, sorted by path), in hex."""
    h = hashlib.blake2b(digest_size=16)
    root = kernels_dir()
    for path in sorted(root.rglob("*")):
        if path.suffix in (".cu", ".cuh", ".h", ".hpp", ".cpp", ".cc"):
            for part in (path.relative_to(root).as_posix().encode(), path.read_bytes()):
                h.update(len(part).to_bytes(8, "little") + part)
    return h.hexdigest()


def git_state(folder: Path | None = None) -> tuple[str, bool]:
    """(commit, dirty) of the checkout that holds the package; ("", False) for an installed wheel.

    `CRUCIBLE_COMMIT` names the commit of a tree that was copied without its .git; a `-dirty` suffix counts.
    """
    named = os.environ.get("CRUCIBLE_COMMIT", "")
    if named:
        return named.removesuffix("-dirty"), named.endswith("-dirty")
    folder = folder or Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return "", False
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        # A record that is being written lies in outputs/ and says nothing about the code.
        changed = ("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)outputs")
        dirty = bool(_git(folder, *changed))
    except (OSError, subprocess.CalledProcessError):
        return "", False
    return commit, dirty


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def library_versions(names: tuple[str, ...] = LIBRARIES) -> dict[str, str]:
    """Installed versions by distribution name, without importing any of them; missing ones are left out."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _compiler_version() -> str:
    from crucible.device.host import compiler

    try:
        return compiler()[1]
    except CrucibleError:
        return ""


def _vector_level() -> str:
    from crucible.device import cpu

    try:
        return cpu.chosen_level()
    except CrucibleError:
        return ""


def capture(device: str = "cpu") -> Environment:
    """The environment of a result that `device` (cpu, simt, cuda, or several as "cpu, simt") made now."""
    from crucible.numerics.contract import CONTRACT_VERSION

    commit, dirty = git_state()
    card = gpu() if "cuda" in device else None
    return Environment(
        crucible=__version__,
        contract_version=int(CONTRACT_VERSION),
        kernel_digest=kernel_digest(),
        commit=commit,
        dirty=dirty,
        device=device,
        device_name=card.name if card else cpu_model(),
        vector_level=_vector_level(),
        driver=card.driver if card else "",
        cuda_driver=card.cuda if card else "",
        compiler=_compiler_version(),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
        libraries=library_versions(),
    )
