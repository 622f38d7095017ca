"""RoPE frequencies and cos/sin tables, correctly rounded without the platform's libm (contract section 7)."""

import functools

import numpy as np

from crucible.errors import InputError
from crucible.numerics import scalar_exact

# Positions below this make position * f[i] exact in f64 (24 bits times 29 bits).
POSITION_LIMIT = 1 << 29

# Error bound of _sin_cos: 4 roundings and a truncation stay below 2^-50 of the value, and the reduction
# below 2^-93; both are taken with room to spare, and what they leave undecided goes to big integers.
_RELATIVE_ERROR = 2.0**-48
_ABSOLUTE_ERROR = 2.0**-90

_SIN = tuple((-1.0) ** n / np.prod(np.arange(1.0, 2 * n + 2)) for n in range(9, 0, -1))  # r^19 .. r^3
_COS = tuple((-1.0) ** n / np.prod(np.arange(1.0, 2 * n + 1)) for n in range(10, 1, -1))  # r^20 .. r^4


@functools.cache
def _half_pi_parts() -> tuple[float, ...]:
    # pi/2 in three parts of 24 bits, so that a part times an integer below 2^29 is exact, and a rest.
    bits, value = 128, scalar_exact.half_pi(128)
    parts = []
    for kept in (23, 47, 71):
        part = value >> (bits - kept) << (bits - kept)
        parts.append(float(part) * 2.0**-bits)
        value -= part
    return (*parts, float(value) * 2.0**-bits)


def rope_frequencies(theta: float, head_dim: int) -> np.ndarray:
    """f32 [D/2]: the real theta^(-2i/D) rounded once to f32.

    theta is taken as the number that the float holds. InputError unless theta is finite and at least
    1 (below it f exceeds 1, and an angle what the tables are exact for) and D is even.
    """
    if not (np.isfinite(theta) and theta >= 1):
        raise InputError(f"RoPE base {theta} must be finite and at least 1")
    if head_dim < 2 or head_dim % 2:
        raise InputError(f"head_dim {head_dim} must be even and at least 2 to rotate pairs")
    return _frequencies(float(theta), int(head_dim)).copy()


@functools.cache
def _frequencies(theta: float, head_dim: int) -> np.ndarray:
    return scalar_exact.rope_frequencies(theta, head_dim)


def rope_table(theta: float, head_dim: int, positions) -> tuple[np.ndarray, np.ndarray]:
    """(cos, sin), each f32 [P][D/2]: of the exact product position * f[i], correctly rounded.

    positions: P integers in [0, 2^29). A row depends on its position alone.
    """
    positions = np.asarray(positions)
    if positions.ndim != 1 or positions.dtype.kind not in "iu":
        raise InputError(
            f"positions of dtype {positions.dtype}, shape {positions.shape} must be integers [P]"
        )
    if positions.size and not (positions.min() >= 0 and positions.max() < POSITION_LIMIT):
        low, high = positions.min(), positions.max()
        raise InputError(f"positions {low}..{high} must lie in 0..{POSITION_LIMIT - 1}")
    frequencies = rope_frequencies(theta, head_dim)
    angle = positions.astype(np.float64)[:, None] * frequencies.astype(np.float64)
    sine, cosine = _sin_cos(angle)
    cos, cos_open = _round(cosine)
    sin, sin_open = _round(sine)
    sin_open &= angle != 0  # sin 0 is +0 exactly
    sin[angle == 0] = 0
    for row, column in np.argwhere(cos_open | sin_open).tolist():
        exact = scalar_exact.cos_sin(int(positions[row]), frequencies[column])
        cos[row, column], sin[row, column] = exact
    return cos, sin


def _two_sum(a, b):
    total = a + b
    rest = total - a
    return total, (a - (total - rest)) + (b - rest)


def _sin_cos(angle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """sin and cos of f64 angles in [0, 2^29] within the error bound above."""
    *exact_parts, rest = _half_pi_parts()
    quadrant = np.rint(angle * (1.0 / (exact_parts[0] + exact_parts[1])))
    high, low = angle, 0.0
    for part in exact_parts:
        high, error = _two_sum(high, -(quadrant * part))
        low = low + error
    high, low = _two_sum(high, low - quadrant * rest)
    square = high * high
    sine = np.full_like(high, _SIN[0])
    for coefficient in _SIN[1:]:
        sine = sine * square + coefficient
    cosine = np.full_like(high, _COS[0])
    for coefficient in _COS[1:]:
        cosine = cosine * square + coefficient
    half = 0.5 * square
    sine = high + (high * square * sine + low * (1.0 - half))
    cosine = (1.0 - half) + (square * square * cosine - high * low)
    turn = quadrant.astype(np.int64) & 3
    swapped, sine_negative = (turn & 1) == 1, turn >= 2
    cosine_negative = (turn == 1) | (turn == 2)
    new_sine = np.where(swapped, cosine, sine)
    new_cosine = np.where(swapped, sine, cosine)
    return np.where(sine_negative, -new_sine, new_sine), np.where(cosine_negative, -new_cosine, new_cosine)


def _round(value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """f32 of each value, and where the error interval crosses a rounding boundary."""
    error = np.abs(value) * _RELATIVE_ERROR + _ABSOLUTE_ERROR
    low, high = (value - error).astype(np.float32), (value + error).astype(np.float32)
    return low, low.view(np.uint32) != high.view(np.uint32)
