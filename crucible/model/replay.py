"""Record the device calls of one forward and run them again with only the data changed."""

from collections.abc import Callable
from typing import Any

from crucible.device import Device


class Recorder:
    """A device that runs every call and keeps it, with its arguments prepared, for `replay`.

    The launchers see an ordinary device. A recording is valid while the arrays stay where they are
    and no argument depends on the data: all that changes between steps must lie in the arrays.
    """

    def __init__(self, device: Device):
        self._device = device
        self.calls: list[Callable[[], Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def call(self, name: str, *args) -> Any:
        """Run device function `name` and keep the prepared call."""
        return self.record(self._device.bind(name, *args))

    def record(self, action: Callable[[], Any]) -> Any:
        """Run `action` and keep it."""
        self.calls.append(action)
        return action()


def assign(device: Device | Recorder, out: Any, values: Any) -> Any:
    """out[...] = values on the device, recorded where a recording runs; returns out."""

    def action() -> None:
        out[...] = values

    if isinstance(device, Recorder):
        device.record(action)
    else:
        action()
    return out
