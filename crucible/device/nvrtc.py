"""CUDA sources to CUBIN through NVRTC with our own flags, on any machine, a GPU or not.

CuPy's RawModule and RawKernel append -ftz=true after the caller's options, so sources never go
through them: the CUBIN is compiled here and only loaded by CuPy.
"""

import functools
import json
import re
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from crucible.device import cache
from crucible.device.cubin import parameter_sizes
from crucible.device.sources import closure, kernels_dir, locate
from crucible.errors import InputError, UnavailableError

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")

# Contract section 1: subnormals kept, correctly rounded division and square root, no contraction.
FLAGS = (
    *("--std=c++17", "--ptxas-options=-v"),
    *("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"),
)


@dataclass(frozen=True)
class Resources:
    """What one entry uses: registers and local bytes a thread, spills, and shared memory a block."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    local_bytes: int
    static_shared: int
    barriers: int

    @property
    def spill_bytes(self) -> int:
        return self.spill_store_bytes + self.spill_load_bytes


@dataclass(frozen=True)
class Cubin:
    """A compiled module: its file, the resources of each entry, and each entry's parameter sizes in bytes."""

    path: Path
    arch: str
    resources: dict[str, Resources]
    parameter_sizes: dict[str, tuple[int, ...]]


# A hit in NVRTC's own cache on disk leaves the log empty, and the resources in it are the point of ours.
_CACHE_SINCE = (12, 9)

# Two compilations at once lose what ptxas reports: a program's log comes out empty.
_ONE_AT_A_TIME = threading.Lock()


@functools.cache
def _binding():
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        raise UnavailableError(
            f"NVRTC is not available ({error}); install cupy-cuda13x and nvidia-cuda-nvrtc"
        ) from None
    return nvrtc


def version() -> tuple[int, int]:
    """Version of the NVRTC library that compiles here, for example (13, 0)."""
    return tuple(_binding().getVersion())


def flags(arch: str, defines: dict) -> tuple[str, ...]:
    """Every option that NVRTC gets, in order, except the include path and what keeps its cache out."""
    if not re.fullmatch(r"sm_\d+[af]?", arch):
        raise InputError(f"architecture {arch!r} is not of the form sm_90")
    macros = (f"-D{name}={value}" for name, value in sorted(defines.items()))
    return (*FLAGS, f"--gpu-architecture={arch}", *macros)


def cubin_key(source: Path, arch: str, defines: dict) -> str:
    """Cache key of a CUBIN: source, every included header, flags, arch and NVRTC version."""
    files = closure(source, (kernels_dir(),))
    return cache.key([f"nvrtc {version()}", *flags(arch, defines), *files])


def compile_cubin(stem: str | Path, arch: str, defines: dict | None = None) -> Cubin:
    """Compile kernels/<stem>.cu, or the .cu file at a path, for `arch` ("sm_90"); cached.

    Raises UnavailableError with the compiler's first message when the source does not compile.
    """
    source, defines = locate(stem), defines or {}
    name = f"{source.stem}-{arch}-{cubin_key(source, arch, defines)}.cubin"
    log: list[str] = []

    def build(out: Path) -> None:
        binary, text = _compile(source, flags(arch, defines))
        log.append(text)
        out.write_bytes(binary)

    path = cache.build_once("cubin", name, build)

    def keep_log(out: Path) -> None:
        # The log belongs to the CUBIN beside it; recompile where only the CUBIN survived.
        text = log[0] if log else _compile(source, flags(arch, defines))[1]
        found = parse_log(text)
        if unknown := parameter_sizes(path.read_bytes()).keys() - found:
            raise UnavailableError(
                f"NVRTC compiled {source.name} and did not report what {', '.join(sorted(unknown))} uses; "
                "run again, and if it stays, install another nvidia-cuda-nvrtc"
            )
        out.write_text(json.dumps({entry: asdict(r) for entry, r in found.items()}))

    described = cache.build_once("cubin", name.replace(".cubin", ".json"), keep_log)
    resources = {entry: Resources(**r) for entry, r in json.loads(described.read_text()).items()}
    return Cubin(path, arch, resources, parameter_sizes(path.read_bytes()))


def ptx(stem: str | Path, arch: str, defines: dict | None = None) -> str:
    """The PTX that NVRTC makes of a kernel file under the same flags, for reading; not cached."""
    source = locate(stem)
    return _compile(source, flags(arch, defines or {}), _binding().getPTX)[0].decode()


def _compile(source: Path, options: tuple[str, ...], product=None) -> tuple[bytes, str]:
    nvrtc = _binding()
    with _ONE_AT_A_TIME:
        return _compile_alone(nvrtc, source, options, product)


def _compile_alone(nvrtc, source: Path, options: tuple[str, ...], product) -> tuple[bytes, str]:
    program = nvrtc.createProgram(source.read_text(), str(source), (), ())
    try:
        includes = (f"-I{source.parent}", f"-I{kernels_dir()}")
        fresh = ("--no-cache",) if version() >= _CACHE_SINCE else ()
        nvrtc.compileProgram(program, (*options, *includes, *fresh))
        return (product or nvrtc.getCUBIN)(program), nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError as error:
        lines = nvrtc.getProgramLog(program).splitlines()
        first = next((line for line in lines if "error:" in line), str(error))
        raise UnavailableError(f"NVRTC could not compile {source.name}: {first.strip()}") from None
    finally:
        nvrtc.destroyProgram(program)


_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers|, (\d+) barriers?\b")
_SHARED = re.compile(r"(\d+)(?:\+(\d+))? bytes smem")


def parse_log(text: str) -> dict[str, Resources]:
    """Resources per entry out of `ptxas -v` output: the form before CUDA 13 and the one since."""
    found: dict[str, Resources] = {}
    entry, stack = None, (0, 0, 0)
    for line in text.splitlines():
        if match := _ENTRY.search(line):
            entry, stack = match[1], (0, 0, 0)
        elif match := _STACK.search(line):
            stack = tuple(int(n) for n in match.groups())
        elif (match := _USED.search(line)) and entry:
            barriers, shared = _BARRIERS.search(line), _SHARED.search(line)
            found[entry] = Resources(
                registers=int(match[1]),
                spill_store_bytes=stack[1],
                spill_load_bytes=stack[2],
                local_bytes=stack[0],
                static_shared=sum(int(n or 0) for n in shared.groups()) if shared else 0,
                barriers=int(next(n for n in barriers.groups() if n)) if barriers else 0,
            )
            entry = None
    return found
