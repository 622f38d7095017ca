"""A user's kernel as an attention variant: a .cu file with the arguments of attention_reference.cu."""

import hashlib
import os
from pathlib import Path

from crucible.attention import reference
from crucible.attention.base import Problem, Variant
from crucible.attention.variants import VARIANTS
from crucible.errors import InputError, NoKernelError
from crucible.files import shown

DEVICES = ("simt", "cuda")


def is_file(name: str) -> bool:
    """`name` is file.cu or file.cu:entry, not a variant's."""
    return name.partition(":")[0].endswith(".cu")


def split(name: str) -> tuple[Path, str | None]:
    """(file, entry) of file.cu[:entry]; no entry means the file's stem. InputError without such a file."""
    path, _, entry = name.partition(":")
    found = Path(path).expanduser()
    if not os.path.isfile(found):  # False too for a name that no file can have
        raise InputError(f"no kernel file at {shown(path)}; give the path of a .cu file")
    return found, entry or None


def launch(device, p: Problem, path: Path, entry: str | None) -> None:
    """Run the kernel as attention_reference.cu is run: a block of 256 threads for a row and head."""
    if p.q is None:  # a rehearsal, which only asks for work items
        return
    kernel = device.kernel(path, entry)
    kernel.launch((p.T, p.Hq), 256, reference.arguments(p), shared=4 * (p.capacity + p.D))


def digest(name: str) -> str:
    """sha256 of the file's bytes."""
    return hashlib.sha256(split(name)[0].read_bytes()).hexdigest()


def install(name: str, device) -> str:
    """Register the file's kernel in this process; the variant's name, which is `name`.

    What it computes is the user's affair: the contract promises nothing of a service that runs it.
    InputError without the file, NoKernelError where `device` runs no CUDA source.
    """
    path, entry = split(name)
    if device.name not in DEVICES:
        raise NoKernelError(f"attention {path.name}", device.name, "simt")

    def run(device, p: Problem) -> None:
        launch(device, p, path, entry)

    summary = f"a user's kernel, {path.name}"
    VARIANTS[name] = Variant(summary, False, dict.fromkeys(DEVICES, run), reference.covers, user=True)
    return name
