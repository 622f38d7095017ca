"""Devices: compile and cache, kernels by name, buffers. `device.get(name)` is the way in."""

from crucible.device.base import Device, get

__all__ = ["Device", "get"]
