"""The device interface: three names, one contract.

`cpu` runs native C++ (kernels/cpu), `simt` runs the CUDA sources on the host through
kernels/simt, `cuda` runs them on the GPU. Arrays are NumPy on `cpu` and `simt`, CuPy on `cuda`.
"""

import functools
import importlib

import numpy as np

from crucible.errors import InputError

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


def get(name: str = "auto") -> Device:
    """The device called `name`: cpu, simt, cuda, or auto (cpu until the model runs on cuda).

    Raises InputError for an unknown name and UnavailableError when this machine lacks the device.
    """
    if not isinstance(name, str) or name not in (*NAMES, "auto"):
        raise InputError(f"unknown device {name!r}; choose one of {', '.join(NAMES)} or auto")
    return _get("cpu" if name == "auto" else name)


@functools.cache
def _get(name: str) -> Device:
    module = importlib.import_module(f"crucible.device.{name}")
    return module.create()
