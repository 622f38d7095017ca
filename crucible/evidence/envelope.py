"""The machine envelope beside a measurement: CPU model, clocks and load; GPU clocks and power by NVML."""

import ctypes
import functools
import os
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as NVML sees it now: clocks in MHz, power in W, temperature in C, memory in bytes."""

    name: str
    driver: str
    cuda: str
    sm_clock: int
    memory_clock: int
    power: float
    temperature: int
    memory_total: int


@dataclass(frozen=True)
class Envelope:
    """The state of the machine at one moment: CPU clock in MHz (0 if unknown), load, and the GPU if any."""

    cpu: str
    cores: int
    cpu_clock: float
    load_1min: float
    gpu: Gpu | None


@functools.cache
def cpu_model() -> str:
    """The CPU's marketing name, else the architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")) and ":" in line:
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux: the generic name below is all there is
    return platform.processor() or platform.machine()


def _cpu_clock() -> float:
    """Mean of the cores' present clocks in MHz; 0.0 where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return 0.0
    clocks = [float(line.split(":")[1]) for line in lines if line.startswith("cpu MHz")]
    return round(sum(clocks) / len(clocks), 1) if clocks else 0.0


@functools.cache
def _nvml() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def gpu(index: int = 0) -> Gpu | None:
    """NVIDIA GPU number `index`, or None without a driver or a GPU; a value NVML withholds reads 0."""
    nvml, handle = _nvml(), ctypes.c_void_p()
    if nvml is None or nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
        return None

    def text(call, *arguments) -> str:
        buffer = ctypes.create_string_buffer(96)
        return buffer.value.decode() if call(*arguments, buffer, 96) == 0 else ""

    def number(call, *arguments) -> int:
        value = ctypes.c_uint(0)
        return value.value if call(handle, *arguments, ctypes.byref(value)) == 0 else 0

    version, memory = ctypes.c_int(0), _Memory()
    nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(version))
    nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    return Gpu(
        name=text(nvml.nvmlDeviceGetName, handle),
        driver=text(nvml.nvmlSystemGetDriverVersion),
        cuda=f"{version.value // 1000}.{version.value % 1000 // 10}" if version.value else "",
        sm_clock=number(nvml.nvmlDeviceGetClockInfo, 1),
        memory_clock=number(nvml.nvmlDeviceGetClockInfo, 2),
        power=number(nvml.nvmlDeviceGetPowerUsage) / 1000.0,
        temperature=number(nvml.nvmlDeviceGetTemperature, 0),
        memory_total=memory.total,
    )


def read() -> Envelope:
    """The envelope now."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return Envelope(cpu_model(), os.cpu_count() or 1, _cpu_clock(), round(load, 2), gpu())
