"""Device `simt`: the CUDA sources compiled for the host, a block's threads as fibers (kernels/simt)."""

import ctypes
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np

from crucible.device import host, launch
from crucible.device.base import Device
from crucible.device.cpu import available_levels, default_threads
from crucible.device.flatten import bind_dynamic_shared, flatten
from crucible.device.sources import kernels_dir, locate
from crucible.errors import CrucibleError, InputError, UnavailableError

# As on the largest GPUs this project targets, so that a launch that fits here fits there.
SHARED_LIMIT = 227 * 1024

KINDS = (
    *("none", "deadlock", "divergent barrier", "mask mismatch", "inactive lane"),
    *("shared memory overrun", "spin", "trap", "misuse"),
)

_FLAGS = ("-fvisibility=hidden", "-fno-sanitize=undefined")  # zig turns UBSan on by itself
# Kernels that compile for longer than anybody runs them here: dozens of builds, milliseconds a launch.
# -O1 takes half of -O3's time to compile; every operation rounds the same.
_COLD, _BRIEF = "attention_fast_", ("-O1",)
_SANITIZE = ("-fsanitize=address", "-g", "-O1", "-fno-omit-frame-pointer")


class KernelFault(CrucibleError):
    """A kernel broke a rule of CUDA while it ran on simt: a deadlock, a divergent barrier, a dead lane read.

    Attributes: kernel (entry name), kind (one of KINDS), block and thread (x, y, z; the first that
    the report names). The outputs of the launch are incomplete; the kernel can be launched again.
    """

    def __init__(self, kernel: str, kind: str, block: tuple, thread: tuple, message: str):
        self.kernel, self.kind, self.block, self.thread = kernel, kind, block, thread
        super().__init__(f"kernel {kernel}, block ({block[0]},{block[1]},{block[2]}): {message}")


class _Report(ctypes.Structure):  # simt::Report
    _fields_ = (
        ("fault", ctypes.c_int),
        ("block", ctypes.c_uint * 3),
        ("thread", ctypes.c_uint * 3),
        ("message", ctypes.c_char * 2048),
    )


class Kernel:
    """One compiled kernel; `parameters` describes what launch() takes, `path` is the shared library."""

    def __init__(self, entry: str, path: Path):
        self.entry, self.path = entry, path
        try:
            library = host.load(path)
        except UnavailableError as error:  # the C library declares some of CUDA's names and defines none
            if unknown := re.search(r"undefined symbol: (\w+)", str(error)):
                raise UnavailableError(
                    f"kernel {entry} calls {unknown[1]}, which a CPU does not have; use --device cuda for it"
                ) from None
            raise
        library.simt_signature.restype = ctypes.c_char_p
        library.simt_launch.restype = None
        self._launch = library.simt_launch
        self.parameters = launch.parse_signature(library.simt_signature().decode())

    def launch(self, grid, block, args, shared: int = 0, early: bool = False) -> None:
        """Run every block to its end; grid and block are ints or up to three, `shared` is in bytes.

        `early` changes nothing here: the launch before it is done.

        `args` are C-contiguous NumPy arrays of the exact dtype or NumPy scalars. Raises InputError for
        arguments that do not fit the kernel and KernelFault for what goes wrong while it runs.
        """
        grid, block = launch.extent(grid, "grid"), launch.extent(block, "block")
        launch.check_shared(self.entry, shared, SHARED_LIMIT)
        launch.check_arguments(self.entry, self.parameters, args, lambda x: isinstance(x, np.ndarray))
        slots = (ctypes.c_void_p * max(len(args), 1))()
        kept = []  # what the slots point at, alive until the launch returns
        for i, arg in enumerate(args):
            if isinstance(arg, np.generic):
                kept.append(ctypes.create_string_buffer(arg.tobytes(), arg.nbytes))
            else:
                kept.append(ctypes.c_void_p(None if arg is None else arg.ctypes.data))
            slots[i] = ctypes.addressof(kept[-1])
        report = _Report()
        self._launch(
            slots,
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(*block),
            ctypes.c_size_t(shared),
            ctypes.c_int(default_threads()),
            ctypes.byref(report),
        )
        if report.fault:
            where = tuple(report.block), tuple(report.thread)
            raise KernelFault(
                self.entry, KINDS[report.fault], *where, report.message.decode(errors="replace")
            )


class SimtDevice(Device):
    """Host arrays, CUDA sources; `sanitize` builds every kernel with AddressSanitizer."""

    name = "simt"
    shared_limit = SHARED_LIMIT

    def __init__(self, sanitize: bool = False):
        self.sanitize = sanitize
        self._kernels: dict[tuple, Kernel] = {}

    def kernel(self, stem: str | Path, entry: str | None = None, **defines) -> Kernel:
        """The kernel `entry` (default: the file's stem) of kernels/<stem>.cu, or of the .cu file at a path.

        `defines` become -D macros. Raises InputError when there is no such file or entry and
        UnavailableError when it does not compile, with the compiler's first message.
        """
        memo = (str(stem), entry, tuple(sorted(defines.items())))
        known = self._kernels.get(memo)
        if known is not None and not memo[0].endswith(".cu"):
            return known
        source = locate(stem)
        if source.parent != kernels_dir() or memo not in self._kernels:  # a file outside may change any time
            self._kernels[memo] = Kernel(
                entry or source.stem, build(source, entry or source.stem, defines, self.sanitize)
            )
        return self._kernels[memo]


def create() -> SimtDevice:
    """The simt device; CRUCIBLE_SIMT_SANITIZE=1 makes it a sanitized one (see sanitizer_environment)."""
    return SimtDevice(sanitize=os.environ.get("CRUCIBLE_SIMT_SANITIZE") == "1")


def build(source: Path, entry: str, defines: dict, sanitize: bool = False) -> Path:
    """Shared library of one kernel, from the cache when its sources, flags and compiler are unchanged."""
    text = flatten(source, (kernels_dir(),))
    if not re.search(rf"__global__[^;{{}}]*\b{re.escape(entry)}\s*\(", text):
        raise InputError(f"{source.name} has no __global__ function {entry!r}")
    unit = "\n".join(
        (
            *(f"#define {name} {value}" for name, value in sorted(defines.items())),
            '#include "simt/simt.hpp"',
            bind_dynamic_shared(text),
            f"SIMT_EXPORT({entry})",
            "",
        )
    )
    flags = (*_FLAGS, *_fma_flags())
    if source.stem.startswith(_COLD) or source.parent != kernels_dir():
        flags = (*flags, *_BRIEF)
    if sanitize:
        _require_sanitizer()
        flags = (*flags, *_SANITIZE)
    headers = (kernels_dir() / "simt" / "simt.hpp",)
    return host.compile_shared(f"simt-{source.stem}-{entry}", headers, flags, folder="simt", generated=unit)


def _fma_flags() -> tuple[str, ...]:
    # Hardware fma where there is one; the C library's fmaf rounds the same, some thirty times slower.
    return ("-mfma", "-mavx2") if "avx2" in available_levels() else ()


def sanitizer_environment() -> dict[str, str]:
    """Environment for a child process in which a sanitized device works (libasan must be loaded first).

    In it `device.get("simt")` is sanitized. Raises UnavailableError where the compiler has no ASan.
    """
    command, _ = host.compiler()
    if "ziglang" in command or not shutil.which(command[0]):
        raise UnavailableError("the ziglang wheel has no AddressSanitizer; install g++ or clang++")
    names = ("libasan.so", f"libclang_rt.asan-{platform.machine()}.so")
    for name in names:
        asked = subprocess.run([*command, f"-print-file-name={name}"], capture_output=True, text=True)
        found = asked.stdout.strip()
        if os.path.isabs(found) and os.path.exists(found):
            return {
                "LD_PRELOAD": os.path.realpath(found),
                "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99:detect_stack_use_after_return=0",
                "CRUCIBLE_SIMT_SANITIZE": "1",
            }
    raise UnavailableError(f"{command[0]} has no AddressSanitizer library; install libasan")


def _require_sanitizer() -> None:
    if not hasattr(ctypes.CDLL(None), "__asan_init"):
        raise UnavailableError(
            "a sanitized kernel needs AddressSanitizer loaded first; start Python with "
            "crucible.device.simt.sanitizer_environment() in its environment"
        )
