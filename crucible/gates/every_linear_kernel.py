"""Every kernel of the f32 linear layer once, on small ragged shapes, held to the reference's bits."""

from collections.abc import Iterator

import numpy as np

from crucible.linear.gpu_choice import KERNELS
from crucible.linear.gpu_f32 import linear_f32
from crucible.linear.weights import pack_stored
from crucible.numerics import inputs
from crucible.numerics.bits import assert_same_bits

# Rows, outputs, inputs: edges of tiles, of stages and of blocks of 256, and a last block of one k.
SHAPES = ((3, 20, 64), (17, 50, 257), (40, 72, 576))


def linear_launches(device) -> Iterator[str]:
    """Launch kernel after kernel on a device, yielding what ran; AssertionError where bits differ."""
    for storage in ("f32", "bf16", "q8_0", "q4_1"):
        for rows, n, k in SHAPES:
            if k % 32 and storage.startswith("q"):
                continue
            weight = pack_stored(device, device.upload(_raw(storage, n, k)), storage, k)
            x, out = device.upload(inputs.normalish(31, 0, (rows, k))), device.zeros((rows, n))
            add = device.upload(inputs.normalish(31, 1, (rows, n)))
            expected = None
            for name in KERNELS if weight.storage == storage else ("reference",):
                linear_f32(device, x, weight, out, add=add, kernel=name)
                result = device.download(out).copy()
                expected = result if name == "reference" else expected
                assert_same_bits(expected, result, f"linear {name}")
                yield f"linear {name} {storage} {rows}x{k}x{n}"


def _raw(storage: str, n: int, k: int) -> np.ndarray:
    """Bytes of a layer in a storage; the scales of quantized blocks are ones."""
    w = inputs.normalish(31, 2, (n, k))
    if storage == "f32":
        return w.view(np.uint8)
    if storage == "bf16":
        return (w.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(np.uint8)
    size, head = (34, 1) if storage == "q8_0" else (20, 2)
    raw = inputs.bits(31, 3, n * (k // 32) * size).astype(np.uint8).reshape(n, k // 32, size)
    raw[..., : 2 * head] = np.ones(head, np.float16).view(np.uint8)
    return raw.reshape(n, -1)
