"""Small arrays of a step sent to the device as one block: a layout, page-locked host memory, one copy."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from crucible.device.base import Device

_ALIGN = 64
_MOST_VIEWS = 64
_SLOTS = 2  # the host fills one block while the copy of the other may still be on its way


@dataclass(frozen=True)
class Layout:
    """Where named arrays lie in a block of `nbytes`: (name, dtype, shape, offset) each."""

    fields: tuple[tuple[Any, np.dtype, tuple[int, ...], int], ...]
    nbytes: int

    @classmethod
    def of(cls, fields: Sequence[tuple[Any, Any, tuple[int, ...]]]) -> "Layout":
        """The layout of (name, dtype, shape) in order; arrays start at multiples of 64 bytes."""
        placed, at = [], 0
        for name, dtype, shape in fields:
            dtype = np.dtype(dtype)
            placed.append((name, dtype, tuple(shape), at))
            at += -(-math.prod(shape) * dtype.itemsize // _ALIGN) * _ALIGN
        return cls(tuple(placed), at)

    def views(self, block: Any) -> dict[Any, Any]:
        """The arrays in a uint8 block of at least `nbytes`, on the host or on the device."""
        return {
            name: block[at : at + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
            for name, dtype, shape, at in self.fields
        }


class _Views:
    """The arrays of layouts in blocks: the same ones when the same two come again."""

    def __init__(self):
        self._held: dict[int, tuple[Layout, Any, dict]] = {}

    def of(self, layout: Layout, block: Any) -> dict[Any, Any]:
        """As Layout.views."""
        held = self._held.get(id(layout))
        if held is None or held[0] is not layout or held[1] is not block:
            if len(self._held) >= _MOST_VIEWS:
                self._held.clear()
            held = self._held[id(layout)] = layout, block, layout.views(block)
        return held[2]


@dataclass
class _Slot:
    """A block of host memory: the copy that is under way from it, and its arrays."""

    memory: Any = None
    copied: Any = None
    views: _Views = field(default_factory=_Views)


class Staging:
    """Sends blocks to one device; the host memory and the default target are kept between steps."""

    def __init__(self, device: Device):
        self._device = device
        self._slots = [_Slot() for _ in range(_SLOTS)]
        self._next = 0
        self._target: Any = None
        self._views = _Views()

    def target(self, nbytes: int) -> Any:
        """The shared device block, grown to hold `nbytes`."""
        if self._target is None or self._target.size < nbytes:
            self._target, self._views = self._device.empty((max(nbytes, 1 << 16),), np.uint8), _Views()
        return self._target

    def views(self, layout: Layout, target: Any) -> dict[Any, Any]:
        """The arrays of a layout in `target`; the same ones when the same two come again."""
        return self._views.of(layout, target)

    def send(self, layout: Layout, values: Mapping[Any, np.ndarray], target: Any) -> None:
        """Enqueue one copy of all arrays of the layout into `target` (uint8, at least its bytes)."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % _SLOTS
        if slot.copied is not None:
            slot.copied.wait()
        if slot.memory is None or slot.memory.size < layout.nbytes:
            slot.memory, slot.views = self._device.host_empty(max(layout.nbytes, 1 << 16)), _Views()
        for name, view in slot.views.of(layout, slot.memory).items():
            view[...] = values[name]
        self._device.copy_in(target[: layout.nbytes], slot.memory[: layout.nbytes])
        slot.copied = self._device.event()
