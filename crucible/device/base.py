"""The device interface: three names, one contract.

`cpu` runs native C++ (kernels/cpu), `simt` runs the CUDA sources on the host through
kernels/simt, `cuda` runs them on the GPU. Arrays are NumPy on `cpu` and `simt`, CuPy on `cuda`.
"""

import ctypes
import functools
import importlib
import sys

import numpy as np

from crucible.errors import InputError, UnavailableError

NAMES = ("cpu", "simt", "cuda")


class Device:
    """Buffers of one device; subclasses add the way to run a kernel.

    Host-memory devices (`cpu`, `simt`) use these methods as they stand.
    """

    name: str = ""

    def empty(self, shape, dtype=np.float32):
        """Uninitialised array of `shape`; contents are arbitrary, so write before reading."""
        return np.empty(shape, dtype)

    def zeros(self, shape, dtype=np.float32):
        """Array of `shape` filled with +0."""
        return np.zeros(shape, dtype)

    def upload(self, array):
        """C-contiguous copy or view of a NumPy array in device memory, same dtype and shape."""
        return np.ascontiguousarray(array)

    def download(self, array) -> np.ndarray:
        """The array as NumPy on the host; waits for pending work on it."""
        return np.asarray(array)

    def synchronize(self) -> None:
        """Wait for all work of this device; a no-op where launches are synchronous."""

    def host_empty(self, nbytes: int) -> np.ndarray:
        """Uninitialised host bytes that copies to and from the device may run beside the host."""
        return np.empty(nbytes, np.uint8)

    def copy_in(self, target, source: np.ndarray) -> None:
        """Enqueue target[...] = source; both uint8 [n], source from `host_empty` and kept till it is done."""
        target[...] = source

    def copy_out(self, target: np.ndarray, source) -> None:
        """Enqueue target[...] = source; both uint8 [n], target from `host_empty`."""
        target[...] = source

    def event(self) -> "Event":
        """What waits for the work enqueued so far."""
        return Event()


class Event:
    """A point in the work of a device; here all work before it is done already."""

    def wait(self) -> None:
        """Return when the work before the event is done."""


def get(name: str = "auto") -> Device:
    """The device called `name`: cpu, simt, cuda, or auto: cuda where it is usable, else cpu.

    Raises InputError for an unknown name and UnavailableError when this machine lacks the device.
    """
    if not isinstance(name, str) or name not in (*NAMES, "auto"):
        raise InputError(f"unknown device {name!r}; choose one of {', '.join(NAMES)} or auto")
    return _get(default_name() if name == "auto" else name)


@functools.cache
def default_name() -> str:
    """What auto means on this machine: cuda with a usable GPU and CuPy, else cpu."""
    if not _driver_sees_a_gpu():  # spares a machine without one the import of CuPy
        return "cpu"
    try:
        _get("cuda")
    except UnavailableError:
        return "cpu"
    return "cuda"


def _driver_sees_a_gpu() -> bool:
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        count = ctypes.c_int(0)
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except (OSError, AttributeError):
        return False


@functools.cache
def _get(name: str) -> Device:
    module = importlib.import_module(f"crucible.device.{name}")
    return module.create()
