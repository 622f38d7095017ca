"""A sequence of launches recorded once and run again with only the data changed."""

from collections.abc import Callable
from typing import Any, Protocol

from crucible.device.base import Device


class Graph(Protocol):
    """Recorded launches; `launch` enqueues them all on the current stream."""

    def launch(self) -> None: ...


class _Recorder:
    """A device whose kernels are noted instead of launched."""

    def __init__(self, device: Device):
        self._device = device
        self.launches: list[tuple] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def kernel(self, stem: str, entry: str | None = None, **defines: Any) -> "_Noting":
        return _Noting(self._device.kernel(stem, entry, **defines), self.launches)


class _Noting:
    def __init__(self, kernel: Any, launches: list[tuple]):
        self._kernel, self._launches = kernel, launches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def launch(self, grid, block, args, shared: int = 0, early: bool = False) -> None:
        # Only a device without graphs of its own is recorded here, and none of those starts launches early.
        self._launches.append((self._kernel, grid, block, tuple(args), shared))


class Recorded:
    """Launches noted on the host, for a device without graphs of its own."""

    def __init__(self, launches: list[tuple]):
        self._launches = launches

    def launch(self) -> None:
        for kernel, grid, block, args, shared in self._launches:
            kernel.launch(grid, block, args, shared)


def capture(device: Device, run: Callable[[Any], Any]) -> Graph:
    """The launches of `run(device)`, none of which runs now, as a graph.

    A CUDA graph on cuda; elsewhere a list of launches, which obeys the same rule: arrays stay where
    they are, and whatever changes between launches lies in them. `run` has run before, so that
    kernels are compiled and scratch memory has its size.
    """
    if device.name == "cuda":
        return device.capture(lambda: run(device))
    recorder = _Recorder(device)
    run(recorder)
    return Recorded(recorder.launches)
