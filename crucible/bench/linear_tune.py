"""Rebuild the table that an f32 layer's kernel is chosen by: every kernel at every shape, on this GPU."""

from collections.abc import Callable, Sequence

import numpy as np

from crucible.bench.attention_timers import Call, Cupy
from crucible.bench.linear import SHAPES, Shape
from crucible.bench.linear_gpu import Bank, Layer, our_calls
from crucible.device.nvrtc import compile_cubin
from crucible.linear import gpu_choice
from crucible.linear.gpu_f32 import Rows, Tile, source

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
STORAGES = ("f32", "bf16")
# Beside the layers of the benchmark's models: a square layer, and those of a model of 1.5 billion weights.
MORE = (
    Shape("square", "4096", 4096, 4096),
    Shape("large", "qkv", 2048, 1536),
    Shape("large", "gate_up", 17920, 1536),
    Shape("large", "down", 1536, 8960),
)
LAUNCHES = 20
MOST_ROWS_OF_ROWS = 64  # where kernels for few rows are still measured


def sources() -> list[tuple[str, dict[str, int]]]:
    """(stem, macros) of everything that a measurement launches."""
    found = [source(b, storage) for b in gpu_choice.KERNELS.values() for storage in STORAGES]
    return [*found, ("linear_fold", {})]


def _compile(arch: str, say: Callable[[str], None]) -> None:
    """Fill the cache before anything is timed."""
    jobs = sources()
    say(f"compiling {len(jobs)} kernels")
    for stem, macros in jobs:
        compile_cubin(stem, arch, macros)


def _worth(rows: int) -> list[str]:
    """Kernels that may be fastest for a number of rows."""
    names = []
    for name, build in gpu_choice.KERNELS.items():
        if (
            isinstance(build, Rows)
            and min(rows / 2, 16) <= build.extent[0] < 2 * rows <= 2 * MOST_ROWS_OF_ROWS
        ):
            names.append(name)
        if isinstance(build, Tile) and build.extent[0] <= 2 * rows:
            names.append(name)
    return names


def _medians(calls: Sequence[Call], rounds: int) -> dict[str, float]:
    """Median graph-replay microseconds a launch, by name."""
    replays = {call.name: call.library.capture(call.run, LAUNCHES) for call in calls}
    samples = {call.name: [] for call in calls}
    for number in range(-1, rounds):  # the first round is thrown away
        for call in calls if number % 2 else reversed(calls):
            taken = call.library.microseconds(replays[call.name]) / LAUNCHES
            if number >= 0:
                samples[call.name].append(taken)
    return {name: float(np.median(taken)) for name, taken in samples.items()}


def tune(rounds: int = 3, say: Callable[[str], None] = print) -> gpu_choice.Table:
    """A dispatch table of this GPU: median graph-replay microseconds of the kernels that run each shape."""
    from crucible import device as devices
    from crucible.evidence.environment import capture

    device, timer = devices.get("cuda"), Cupy()
    _compile(device.arch, say)
    points = []
    for shape in (*SHAPES, *MORE):
        with timer.stream:
            bank = Bank(device, shape.n, shape.k, STORAGES)
        for rows in (r for r in ROWS if r <= shape.most_rows):
            with timer.stream:
                layer = Layer(device, bank, rows)
            for storage in STORAGES:
                with timer.stream:
                    calls = our_calls(device, layer, timer, _worth(rows), (storage,))
                us = _medians(calls, rounds)
                points.append(gpu_choice.Point(rows, shape.n, shape.k, storage, us))
        say(f"{shape.model} {shape.layer}")
    env = capture("cuda")
    provenance = {
        "device": env.device_name,
        "driver": env.driver,
        "taken_at": env.taken_at,
        "commit": env.commit + ("-dirty" if env.dirty else ""),
        "kernel_digest": env.kernel_digest,
        "method": f"graph replay of {LAUNCHES} launches, median of {rounds} alternating rounds, microseconds",
    }
    return gpu_choice.Table(provenance, tuple(points))
