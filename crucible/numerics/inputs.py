"""Counter-based test inputs, the same bits here and in kernels/inputs.h.

Element i of stream s under seed S is a pure function of (S, s, i): the SplitMix64 output function
(Steele, Lea, Flood 2014) applied twice, so any slice can be made anywhere without the rest.
"""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
# 1 / (standard deviation of a sum of four uniform 16-bit integers), rounded to f32 once.
_NORMALISH_UNIT = np.float32(1.0 / (65536.0 * (1.0 / 3.0) ** 0.5))


def _mix(x):
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def bits64(seed: int, stream: int, n: int, start: int = 0) -> np.ndarray:
    """uint64[n]: elements start .. start+n-1 of the stream."""
    one = np.uint64(1)
    key = np.array([int(seed) & (2**64 - 1)], np.uint64)
    key = _mix(key + _GOLDEN * (np.array([int(stream) & (2**64 - 1)], np.uint64) + one))
    index = np.arange(int(start), int(start) + n, dtype=np.uint64)
    return _mix(key + _GOLDEN * (index + one))


def bits(seed: int, stream: int, n: int, start: int = 0) -> np.ndarray:
    """uint32[n]: the high words of `bits64`."""
    return (bits64(seed, stream, n, start) >> np.uint64(32)).astype(np.uint32)


def uniform(
    seed: int, stream: int, shape, low: float = -1.0, high: float = 1.0, start: int = 0
) -> np.ndarray:
    """f32 of `shape` in [low, high]: (24-bit integer * 2^-24) * (high-low) + low, one rounding each.

    The first product is exact; with a power of two for high-low the second is exact too.
    """
    low, span = np.float32(low), np.float32(high) - np.float32(low)
    n = int(np.prod(shape, dtype=np.int64))
    fraction = (bits(seed, stream, n, start) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    return (fraction * span + low).reshape(shape)


def normalish(seed: int, stream: int, shape, scale: float = 1.0, start: int = 0) -> np.ndarray:
    """f32 of `shape`, near normal with standard deviation `scale`: a centred sum of four 16-bit uniforms.

    The integer sum is exact (it spans +-3.46 standard deviations); one f32 product scales it.
    """
    n = int(np.prod(shape, dtype=np.int64))
    word = bits64(seed, stream, n, start)
    total = np.zeros(n, np.int32)
    for shift in (0, 16, 32, 48):
        total += ((word >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int32)
    unit = np.float32(scale) * _NORMALISH_UNIT
    return ((total - np.int32(131070)).astype(np.float32) * unit).reshape(shape)
