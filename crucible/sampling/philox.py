"""Philox4x32-10 words and the draws made of them (contract section 8)."""

import numpy as np

from crucible.device.checks import expect
from crucible.errors import InputError
from crucible.numerics.checks import whole

DRAW_LIMIT = 1 << 32


def philox(device, counter, key):
    """counter uint32 [n][4], key uint32 [n][2] -> words uint32 [n][4]."""
    expect("counter", counter, np.uint32, (None, 4))
    expect("key", key, np.uint32, (counter.shape[0], 2))
    out = device.empty(counter.shape, np.uint32)
    n = counter.shape[0]
    if device.name == "cpu":
        device.call("crucible_philox", counter, key, out, n)
    elif n:
        kernel = device.kernel("sampling_parts", "philox")
        kernel.launch(-(-n // 256), 256, (counter, key, out, np.int32(n)))
    return out


def check_draw(draw: int) -> int:
    """The draw number as int; InputError unless it fits 32 bits."""
    draw = whole("draw number", draw)
    if not 0 <= draw < DRAW_LIMIT:
        raise InputError(f"draw number {draw} must fit 32 bits: 0 to {DRAW_LIMIT - 1}")
    return draw


def uniform(device, seed: int, draw: int) -> float:
    """The draw number `draw` of a request with this 64-bit seed: a multiple of 2^-53 in [0, 1)."""
    seed = whole("seed", seed, 0, (1 << 64) - 1)
    counter = np.array([[check_draw(draw), 0, 0, 0]], np.uint32)
    key = np.array([[seed & 0xFFFFFFFF, seed >> 32]], np.uint32)
    words = device.download(philox(device, device.upload(counter), device.upload(key)))[0].tolist()
    return float(((words[0] << 32) | words[1]) >> 11) * 2.0**-53
