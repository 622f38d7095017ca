"""Host C++: find a compiler, compile a shared library once, load it with ctypes."""

import concurrent.futures
import ctypes
import functools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from crucible.device import cache
from crucible.device.sources import closure, kernels_dir
from crucible.errors import UnavailableError

# No contraction and no fast-math: every operation in the sources rounds exactly as written.
BASE_FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-pthread"),
    *("-ffp-contract=off", "-fno-fast-math", "-fno-math-errno", "-fno-trapping-math"),
)


@functools.cache
def compiler() -> tuple[tuple[str, ...], str]:
    """The C++17 compiler command and its version line.

    $CXX where it is set, and nothing else then: who names a compiler means it. Else g++, clang++, then
    `python -m ziglang c++` from the ziglang wheel. Raises UnavailableError when none works.
    """
    named = os.environ.get("CXX", "").strip()
    if named:
        try:
            command = tuple(shlex.split(named))
            shown = subprocess.run([*command, "--version"], capture_output=True, text=True)
        except (OSError, ValueError):  # no such program, or an open quote
            shown = None
        if shown is None or shown.returncode != 0 or not shown.stdout.strip():
            raise UnavailableError(f"CXX={named!r} is no working C++ compiler; unset it, or name another")
        return command, shown.stdout.strip().splitlines()[0]
    candidates = [(name,) for name in ("g++", "clang++") if shutil.which(name)]
    candidates.append((sys.executable, "-m", "ziglang", "c++"))
    for command in candidates:
        try:
            shown = subprocess.run(
                [*command, "--version"],
                **{"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"},
            )
        except OSError:
            continue
        if shown.returncode == 0:
            return command, (shown.stdout.strip().splitlines() or ["no version"])[0]
    raise UnavailableError(
        "no C++17 compiler found (tried g++, clang++, the ziglang wheel); "
        "install g++ or run: pip install ziglang"
    )


def _run(command: list[str], stem: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        lines = [line for line in said if "error:" in line] or said or [f"exit code {done.returncode}"]
        raise UnavailableError(f"{command[0]} could not compile {stem}: {lines[0][:500]}")


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
        with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
            units = [s for s in sources if s.suffix in (".cpp", ".cc")]
            if generated is not None:
                units.append(Path(scratch, "generated.cpp"))
                units[-1].write_text(generated)
            objects = [Path(scratch, f"{i}-{unit.stem}.o") for i, unit in enumerate(units)]

            def compile_one(unit: Path, out: Path) -> None:
                _run([*command, *flags, f"-I{include}", "-c", "-o", str(out), str(unit)], stem)

            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
                list(workers.map(compile_one, units, objects))
            _run([*command, *flags, "-shared", "-o", str(out), *map(str, objects)], stem)
        # Not loaded to see: it may be for another machine, or need a sanitizer in place first.
        if not _is_library(out):
            raise UnavailableError(
                f"{' '.join(command)} made no library of {stem}; set CXX to a C++17 compiler"
            )

    return cache.build_once(folder, f"{stem}-{digest}.so", build)


def _is_library(path: Path) -> bool:
    """Whether the file starts as an ELF or a 64-bit Mach-O file does."""
    with open(path, "rb") as handle:
        return handle.read(4) in (b"\x7fELF", b"\xcf\xfa\xed\xfe")


def load(path: Path) -> ctypes.CDLL:
    """Load a compiled library (kept for the life of the process); UnavailableError when that fails."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        why = " ".join(str(error).split())
        raise UnavailableError(f"cannot load {path} ({why}); delete it to have it built again") from None
