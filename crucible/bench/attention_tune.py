"""Rebuild the table that `auto` chooses by: every fast variant at every shape and geometry, on this GPU."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from crucible.attention import dispatch
from crucible.attention.fast import VARIANTS, sources
from crucible.attention.plan import plan_of
from crucible.attention.shapes import ALL, Segments, case
from crucible.bench.attention import measure, our_calls
from crucible.bench.attention_timers import Cupy
from crucible.device.nvrtc import compile_cubin

# Query heads, KV heads, head_dim: the benchmark's geometry and the corners of what the kernels cover.
GEOMETRIES = ((12, 3, 64), (9, 3, 64), (3, 3, 64), (24, 3, 64), (12, 3, 128), (9, 3, 128), (24, 3, 128))
# Shapes beside the benchmark's: few rows, and histories past what shared memory holds.
MORE: dict[str, Segments] = {
    "decode-4x256": ((255, 1),) * 4,
    "decode-8x64": ((63, 1),) * 8,
    "decode-2x8192": ((8191, 1),) * 2,
    "tail-4x4-at-1000": ((1000, 4),) * 4,
    "tail-16-at-512": ((512, 16),),
    "single-1536": ((0, 1536),),
    "history-64-at-4032": ((4032, 64),),
    "history-64-at-16320": ((16320, 64),),
    "history-256-at-3840": ((3840, 256),),
}
THINNED = 2  # geometries beside the first take every second shape


def _compile(arch: str, geometries: Sequence) -> None:
    """Fill the cache side by side: one after another the compiler would take minutes."""
    jobs = [job for Hq, Hkv, D in geometries for job in sources(Hq // Hkv, D)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda job: compile_cubin(job[0], arch, job[1]), jobs))


def tune(rounds: int = 3, say: Callable[[str], None] | None = None, geometries: Sequence = GEOMETRIES):
    """A dispatch table of this GPU: median graph-replay microseconds of the variants that run each shape."""
    from crucible import device as devices
    from crucible.evidence.environment import capture

    device, timer = devices.get("cuda"), Cupy()
    shapes = {**ALL, **MORE}
    _compile(device.arch, geometries)
    points = []
    for number, heads in enumerate(geometries):
        for name in list(shapes)[:: 1 if number == 0 else THINNED]:
            if say:
                say(f"{heads[0]}/{heads[1]}/{heads[2]} {name}")
            c = case(shapes[name], *heads)
            with timer.stream:
                calls, _ = our_calls(device, c, tuple(VARIANTS), timer)
            outcome = measure(name, calls, rounds, launches=20)
            us = {x.name: float(np.median(x.samples)) for x in outcome.contenders}
            shape = plan_of(device, c.packed.desc, c.Hkv)
            G, work = heads[0] // heads[1], shape.rows * heads[0]
            points.append(dispatch.Point(G, heads[2], work, shape.end, shape.mean, shape.longest_chunk, us))
    env = capture("cuda")
    provenance = {
        "device": env.device_name,
        "driver": env.driver,
        "taken_at": env.taken_at,
        "commit": env.commit + ("-dirty" if env.dirty else ""),
        "kernel_digest": env.kernel_digest,
        "method": f"graph replay of 20 launches, median of {rounds} alternating rounds, microseconds",
    }
    return dispatch.Table(provenance, tuple(points))
