"""Where the kernel sources live, and the closure of the headers that one source includes."""

import functools
import re
from pathlib import Path

from crucible.errors import InputError
from crucible.files import read_text

_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


@functools.cache
def kernels_dir() -> Path:
    """The folder of kernel sources: inside an installed wheel, else beside the package in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_kernels", package.parent / "kernels"):
        if folder.is_dir():
            return folder
    raise InputError(f"no kernel sources beside {package}; reinstall crucible")


def closure(source: Path, include_dirs: tuple[Path, ...] = ()) -> list[Path]:
    """`source` and every file it includes with quotes, transitively, in first-seen order.

    Angle-bracket includes belong to the toolchain and are covered by its version in the cache key.
    """
    seen: list[Path] = []
    queue = [Path(source).resolve()]
    while queue:
        path = queue.pop(0)
        if path in seen:
            continue
        seen.append(path)
        for name in _INCLUDE.findall(read_text(path)):
            candidates = [folder / name for folder in (path.parent, *include_dirs)]
            found = next((c.resolve() for c in candidates if c.is_file()), None)
            if found is not None:
                queue.append(found)
    return seen


def locate(stem: str | Path) -> Path:
    """The file of kernels/<stem>.cu, or `stem` itself where it is the path of a .cu file."""
    path = Path(stem)
    if path.suffix == ".cu":
        if not path.is_file():
            raise InputError(f"no kernel file at {path}")
        return path.resolve()
    path = kernels_dir() / f"{stem}.cu"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in kernels_dir().glob("*.cu")))
        raise InputError(f"no kernel {stem!r}; kernels/ has {known}")
    return path
