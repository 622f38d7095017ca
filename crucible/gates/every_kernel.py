"""Every CUDA kernel once, on small ragged shapes, each exact one held to the reference's bits.

`python -m crucible.gates.every_kernel` is what the sanitizers watch (crucible.gates.sanitizers).
"""

from collections.abc import Iterator

import numpy as np

from crucible import device as devices
from crucible.attention.plan import plan_of
from crucible.attention.run import run
from crucible.attention.variants import VARIANTS
from crucible.bench.attention_shapes import LAYER, Case, case
from crucible.errors import UnsupportedError
from crucible.gates.every_int8_kernel import int8_launches
from crucible.gates.every_linear_kernel import linear_launches
from crucible.gates.every_small_kernel import block_launches, sampling_launches
from crucible.numerics.bits import assert_same_bits
from crucible.numerics.contract import PAGE_SIZE
from crucible.ops.kv_store import store_kv
from crucible.ops.rope import rope, rope_table

# G, D and (rows before, rows): edges of pages, tiles and the 64- and 256-key groups, and a decode row.
SHAPES = (
    (4, 64, ((0, 17), (33, 5), (0, 1), (70, 20), (255, 2))),
    (3, 64, ((0, 9), (25, 16), (63, 1), (300, 1))),
    (3, 64, ((0, 9), (25, 16), (63, 1), (100, 2))),
    (8, 128, ((0, 20), (129, 3))),
)


def launches(name: str = "cuda") -> Iterator[str]:
    """Launch kernel after kernel on a device, yielding what ran; AssertionError if exact bits differ."""
    device = devices.get(name)
    for G, D, segments in SHAPES:
        c = case(segments, 2 * G, 2, D)
        arrays = [device.upload(x) for x in (c.q, c.kpool, c.vpool, c.tables, c.packed.desc)]
        plan = plan_of(device, c.packed.desc, 2)
        own = [device.upload(_of_the_rows(c, pool)) for pool in (c.kpool, c.vpool)]
        expected = None
        for variant, entry in VARIANTS.items():
            if device.name not in entry.launchers:
                continue
            try:
                out = device.zeros(c.q.shape)
                done = run(device, *arrays, LAYER, 2, D, variant, out, plan=plan, k=own[0], v=own[1])
            except UnsupportedError:
                continue
            result = device.download(done.out)
            expected = result if variant == "reference" else expected
            if entry.exact:
                assert_same_bits(expected, result, variant)
            yield f"{variant} G={G} D={D}"
        cos, sin = (device.upload(t) for t in rope_table(10000.0, D, np.arange(512)))
        rope(device, arrays[0], device.upload(c.packed.positions), cos, sin, D)
        store_kv(device, *own, *arrays[1:], LAYER)
        yield f"rope and kv_store D={D}"
    yield from linear_launches(device)
    yield from int8_launches(device)
    yield from block_launches(device)
    yield from sampling_launches(device)


def _of_the_rows(c: Case, pool: np.ndarray) -> np.ndarray:
    """K or V of the launch's own rows, f32 [T][Hkv*D], as the pool holds them."""
    positions = c.packed.positions
    tables = c.packed.desc[c.packed.row_segment, 3]
    pages = c.tables[tables, positions // PAGE_SIZE]
    return np.ascontiguousarray(pool[pages, LAYER, positions % PAGE_SIZE])


if __name__ == "__main__":
    print(f"{sum(1 for _ in launches())} launches, exact bits equal")
