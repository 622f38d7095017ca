"""The cpu device: kernels/cpu compiled at first use for a vector level, called through ctypes."""

import ctypes
import functools
import os
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np

from crucible.device import host
from crucible.device.base import Device
from crucible.device.sources import kernels_dir
from crucible.errors import InputError, UnavailableError
from crucible.files import brief

# Flags and macro of each level, best first. Every level gives the same bits.
LEVELS: dict[str, tuple[str, ...]] = {
    "avx512": (
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma"),
        *("-mprefer-vector-width=512", "-DCRUCIBLE_AVX512"),
    ),
    "avx2": ("-mavx2", "-mfma", "-DCRUCIBLE_AVX2"),
    "neon": ("-DCRUCIBLE_NEON",),
    "plain": ("-O2",),
}
_NEEDS = {"avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma"}, "avx2": {"avx2", "fma"}}


@functools.cache
def _cpu_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    line = next((x for x in text.splitlines() if x.startswith(("flags", "Features"))), ":")
    return frozenset(line.split(":", 1)[1].split())


def available_levels() -> list[str]:
    """Vector levels that this processor can run, best first."""
    machine, flags = platform.machine().lower(), _cpu_flags()
    return [
        level
        for level in LEVELS
        if level == "plain"
        or (level == "neon" and machine in ("aarch64", "arm64"))
        or (level in _NEEDS and machine in ("x86_64", "amd64") and _NEEDS[level] <= flags)
    ]


def chosen_level() -> str:
    """The level in force: `CRUCIBLE_VECTOR_LEVEL` if set, else the best available one."""
    forced, available = os.environ.get("CRUCIBLE_VECTOR_LEVEL"), available_levels()
    if not forced:
        return available[0]
    if forced not in LEVELS:
        raise InputError(f"CRUCIBLE_VECTOR_LEVEL={forced!r} is unknown; choose one of {', '.join(LEVELS)}")
    if forced not in available:
        raise UnavailableError(
            f"this processor cannot run vector level {forced}; it has {', '.join(available)}"
        )
    return forced


def default_threads() -> int:
    """Threads of the cpu device: `CRUCIBLE_THREADS` if set, else the processors this process may use."""
    value = os.environ.get("CRUCIBLE_THREADS")
    if value is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not (value.isascii() and value.isdigit() and len(value) <= 9 and 1 <= int(value) <= 1024):
        raise InputError(f"CRUCIBLE_THREADS={brief(value)} must be a whole number from 1 to 1024")
    return int(value)


def build(level: str) -> Path:
    """Path of the compiled library for a vector level (compiled once, then cached)."""
    sources = tuple(sorted((kernels_dir() / "cpu").glob("*.cpp")))
    return host.compile_shared(f"cpu-{level}", sources, LEVELS[level])


@functools.cache
def library(level: str) -> ctypes.CDLL:
    """The loaded library for a vector level; every function returns int64 or nothing."""
    lib = host.load(build(level))
    lib.crucible_set_threads(ctypes.c_int64(default_threads()))
    return lib


def _marshal(value):
    """ctypes argument for one value of the C interface; arrays must be C-contiguous."""
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous:
            raise InputError(
                f"array of shape {value.shape} is not C-contiguous; pass np.ascontiguousarray(x)"
            )
        return ctypes.c_void_p(value.ctypes.data)
    if value is None:
        return ctypes.c_void_p(None)
    if isinstance(value, np.float32):
        return ctypes.c_float.from_buffer_copy(value.tobytes())  # by bits: a cast may flush a subnormal
    if isinstance(value, np.uint64):
        return ctypes.c_uint64(int(value))
    if isinstance(value, (float, np.float64)):
        return ctypes.c_double(value)
    if isinstance(value, (int, np.integer)):
        if not -(1 << 63) <= value < 1 << 63:
            raise InputError("an integer argument of a cpu kernel does not fit 64 bits; pass a smaller one")
        return ctypes.c_int64(int(value))
    raise InputError(f"cannot pass {type(value).__name__} to a cpu kernel")


class CpuDevice(Device):
    """Native C++ of the contract at one vector level; arrays are NumPy."""

    name = "cpu"

    def __init__(self, level: str | None = None):
        self.level = level or chosen_level()
        self._library = library(self.level)

    def call(self, name: str, *args) -> int:
        """Call C function `name`; ndarray -> pointer, int -> int64_t, np.float32 -> float,
        float -> double, np.uint64 -> uint64_t, None -> null. Returns its int64 result, if any."""
        function = getattr(self._library, name)
        function.restype = ctypes.c_int64
        return function(*map(_marshal, args))

    def bind(self, name: str, *args) -> Callable[[], int]:
        """The same call with its arguments prepared once; the arrays must outlive the result."""
        function = getattr(self._library, name)
        function.restype = ctypes.c_int64
        prepared = tuple(map(_marshal, args))
        keep = [a for a in args if isinstance(a, np.ndarray)]

        def bound(_keep=keep) -> int:
            return function(*prepared)

        return bound


def create() -> CpuDevice:
    """The cpu device at the chosen vector level."""
    return CpuDevice()
