"""Host C++: find a compiler, compile a shared library once, load it with ctypes."""

import ctypes
import functools
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from crucible.device import cache
from crucible.device.sources import closure, kernels_dir
from crucible.errors import UnavailableError

# No contraction and no fast-math: every operation in the sources rounds exactly as written.
BASE_FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread"),
    *("-ffp-contract=off", "-fno-fast-math", "-fno-math-errno", "-fno-trapping-math"),
)


@functools.cache
def compiler() -> tuple[tuple[str, ...], str]:
    """The C++17 compiler command and its version line.

    Tried in order: $CXX, g++, clang++, then `python -m ziglang c++` from the ziglang wheel.
    Raises UnavailableError when none works.
    """
    candidates = []
    if os.environ.get("CXX"):
        candidates.append(tuple(shlex.split(os.environ["CXX"])))
    candidates += [(name,) for name in ("g++", "clang++") if shutil.which(name)]
    candidates.append((sys.executable, "-m", "ziglang", "c++"))
    for command in candidates:
        try:
            shown = subprocess.run([*command, "--version"], capture_output=True, text=True)
        except OSError:
            continue
        if shown.returncode == 0:
            return command, shown.stdout.strip().splitlines()[0]
    raise UnavailableError(
        "no C++17 compiler found (tried $CXX, g++, clang++, the ziglang wheel); "
        "install g++ or run: pip install ziglang"
    )


def compile_shared(
    stem: str,
    sources: tuple[Path, ...],
    flags: tuple[str, ...] = (),
    folder: str = "host",
    generated: str | None = None,
) -> Path:
    """Shared library made of `sources`, cached by content of every included file, flags and compiler.

    `generated` is an extra translation unit given as text. Raises UnavailableError with the
    compiler's first message when it fails.
    """
    command, version = compiler()
    include = kernels_dir()
    files = [f for source in sources for f in closure(source, (include,))]
    flags = (*BASE_FLAGS, *flags)
    digest = cache.key([version, " ".join(command), " ".join(flags), generated or "", *files])

    def build(out: Path) -> None:
        units = [str(s) for s in sources if s.suffix in (".cpp", ".cc")]
        extra = None
        if generated is not None:
            extra = out.with_suffix(".gen.cpp")
            extra.write_text(generated)
            units.append(str(extra))
        try:
            done = subprocess.run(
                [*command, *flags, f"-I{include}", "-o", str(out), *units],
                capture_output=True,
                text=True,
            )
        finally:
            if extra is not None:
                extra.unlink(missing_ok=True)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr[:500]]
            raise UnavailableError(f"{command[0]} could not compile {stem}: {lines[0].strip()}")

    return cache.build_once(folder, f"{stem}-{digest}.so", build)


def load(path: Path) -> ctypes.CDLL:
    """Load a compiled library (kept for the life of the process)."""
    return ctypes.CDLL(str(path))
