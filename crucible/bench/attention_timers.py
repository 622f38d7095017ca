"""Graph replay and event timing for CuPy's and torch's launches, and the resources of our kernels."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Call:
    """A contender on the GPU: `run` enqueues one launch on the stream of the library that owns it."""

    name: str
    arithmetic: str
    run: Callable[[], object]
    ours: bool
    library: object  # a Cupy or Torch timer
    facts: dict = field(default_factory=dict)


class Recorder:
    """A device that notes its launches as (kernel, threads of a block, dynamic shared bytes)."""

    def __init__(self, device):
        self._device, self.launches = device, []

    def __getattr__(self, name):
        return getattr(self._device, name)

    def kernel(self, stem, entry=None, **defines):
        kernel, noted = self._device.kernel(stem, entry, **defines), self.launches

        class Noting:
            @staticmethod
            def launch(grid, block, args, shared=0, **options):
                kernel.launch(grid, block, args, shared, **options)
                noted.append((kernel, int(np.prod(block)), shared))

        return Noting


def resources(launches) -> dict[str, str]:
    """Registers, shared and local bytes and calculated blocks a multiprocessor of noted launches, as text."""
    from cupy.cuda import driver

    columns = {"registers": [], "static B": [], "dynamic B": [], "local B": [], "blocks/SM": []}
    for kernel, block, shared in launches:
        r = kernel.resources
        blocks = driver.occupancyMaxActiveBlocksPerMultiprocessor(kernel._function.kernel.ptr, block, shared)
        for name, value in zip(
            columns, (r.registers, r.static_shared, shared, r.local_bytes, blocks), strict=True
        ):
            columns[name].append(str(value))
    return {name: "+".join(values) for name, values in columns.items()}


class Cupy:
    """Graph capture and event timing on a CuPy stream."""

    def __init__(self):
        import cupy

        self.cuda = cupy.cuda
        self.stream = cupy.cuda.Stream(non_blocking=True)

    def capture(self, run, launches: int) -> Callable[[], None]:
        with self.stream:
            run()
            self.stream.begin_capture()
            for _ in range(launches):
                run()
            graph = self.stream.end_capture()
        self.stream.synchronize()
        return lambda: graph.launch(self.stream)

    def microseconds(self, work) -> float:
        start, stop = self.cuda.Event(), self.cuda.Event()
        with self.stream:
            start.record(self.stream)
            work()
            stop.record(self.stream)
        stop.synchronize()
        return 1000.0 * self.cuda.get_elapsed_time(start, stop)

    def synchronize(self):
        self.stream.synchronize()


class Torch:
    """The same on a torch stream."""

    def __init__(self):
        import torch

        self.torch = torch
        self.stream = torch.cuda.Stream()

    def capture(self, run, launches: int) -> Callable[[], None]:
        with self.torch.cuda.stream(self.stream):
            for _ in range(3):
                run()
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=self.stream):
            for _ in range(launches):
                run()

        def replay():
            with self.torch.cuda.stream(self.stream):
                graph.replay()

        return replay

    def microseconds(self, work) -> float:
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.torch.cuda.stream(self.stream):
            start.record()
            work()
            stop.record()
        stop.synchronize()
        return 1000.0 * start.elapsed_time(stop)

    def synchronize(self):
        self.stream.synchronize()
