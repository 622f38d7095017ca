"""Scratch memory that outlives a call: one buffer a name, grown by need and never shrunk."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from crucible.device.base import Device
from crucible.errors import InputError

_MOST_VIEWS = 4096  # views are cheap to make again; shapes of ragged batches must not pile up


class Scratch:
    """Named buffers of one device, lent for the length of a step.

    A name means one buffer: who takes it again, in any shape, gets the same memory. A captured graph
    keeps `held()` alive, since its kernels write to the buffers of the time of its capture.
    """

    def __init__(self, device: Device):
        self._device = device
        self._buffers: dict[str, Any] = {}
        self._needs: dict[str, int] = {}
        self._views: dict[tuple, Any] = {}
        self._frozen = False
        self.growths = 0

    def take(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
        """Uninitialised C-contiguous array in the buffer `name`; InputError where a capture would grow it."""
        key = (name, shape, dtype)
        view = self._views.get(key)
        return self._make(name, shape, dtype, key) if view is None else view

    def _make(self, name: str, shape: tuple[int, ...], dtype: Any, key: tuple) -> Any:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            if self._frozen:
                held = 0 if buffer is None else buffer.size
                raise InputError(f"scratch {name} holds {held} bytes and needs {size} within a capture")
            # A quarter more than before, so that slowly growing shapes move it seldom.
            room = max(size, 0 if buffer is None else buffer.size * 5 // 4)
            self._buffers[name] = buffer = self._device.empty((-(-room // 256) * 256,), np.uint8)
            self._views = {k: v for k, v in self._views.items() if k[0] != name}
            self.growths += 1
        self._needs[name] = max(self._needs.get(name, 0), size)
        if len(self._views) >= _MOST_VIEWS:
            self._views.clear()
        view = self._views[key] = buffer[:size].view(dtype).reshape(shape)
        return view

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """While it lasts no buffer may grow: within a capture, memory must stay where it is."""
        before, self._frozen = self._frozen, True
        try:
            yield
        finally:
            self._frozen = before

    def held(self) -> tuple[Any, ...]:
        """Every buffer of this moment."""
        return tuple(self._buffers.values())

    @property
    def bytes(self) -> int:
        """Bytes that the buffers take."""
        return sum(buffer.size for buffer in self._buffers.values())

    @property
    def high_water(self) -> int:
        """Bytes that were really needed: the largest request of every name, together."""
        return sum(self._needs.values())
