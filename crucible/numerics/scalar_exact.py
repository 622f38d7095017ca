"""Real numbers rounded once to f32 by integer arithmetic: 1/sqrt(D), RoPE frequencies, cos and sin.

Nothing here calls a math library. A result is accepted only when both ends of its error interval
round to the same f32; otherwise the precision doubles.
"""

import functools
import math
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np


def round_f32(x: Fraction) -> np.float32:
    """The f32 nearest to a rational number, ties to even, subnormals kept."""
    if x == 0:
        return np.float32(0)
    magnitude = abs(x)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    shift = max(exponent - 23, -149)
    steps = round(magnitude / Fraction(2) ** shift)  # Fraction rounds half to even
    # steps * 2^shift has at most 24 significant bits, so each conversion below is exact in any rounding mode.
    value = np.float32(math.ldexp(steps, shift))
    return value if x > 0 else -value


def _decided(interval: Callable[[int], tuple[Fraction, Fraction]], bits: int) -> np.float32:
    for precision in (bits, 2 * bits, 4 * bits, 8 * bits):
        value, error = interval(precision)
        low, high = round_f32(value - error), round_f32(value + error)
        if low.tobytes() == high.tobytes():
            return low
    raise AssertionError("the value lies on a rounding boundary")


@functools.cache
def reciprocal_root(n: int) -> np.float32:
    """The real number 1/sqrt(n) rounded once to f32."""
    root = math.isqrt(n)
    if root * root == n:
        return round_f32(Fraction(1, root))

    def interval(bits):
        return Fraction(math.isqrt((1 << 2 * bits) // n), 1 << bits), Fraction(2, 1 << bits)

    return _decided(interval, 64)


def rope_frequencies(theta, head_dim: int) -> np.ndarray:
    """f32 [D/2]: theta^(-2i/D) rounded once; theta is the real number that the float holds, > 0."""

    def interval_for(i):
        def interval(bits):
            digits = Context(prec=bits // 3 + 10)
            log = digits.ln(Decimal(float(theta)))
            power = digits.exp(digits.divide(digits.multiply(log, Decimal(-2 * i)), Decimal(head_dim)))
            value = Fraction(power)
            return value, value / (1 << bits)

        return interval

    one = np.float32(1)
    return np.array([_decided(interval_for(i), 96) if i else one for i in range(head_dim // 2)], np.float32)


def half_pi(bits: int) -> int:
    """Fixed-point pi/2 with `bits` fraction bits, error below 2 units (Machin's formula)."""
    guard = 32

    def arctan_inverse(x: int) -> int:
        power = (1 << (bits + guard)) // x
        total, k, sign = 0, 1, 1
        while power:
            total += sign * (power // k)
            power //= x * x
            k, sign = k + 2, -sign
        return total

    return (2 * (4 * arctan_inverse(5) - arctan_inverse(239))) >> guard


def _sin_cos_fixed(r: int, bits: int) -> tuple[int, int]:
    """sin and cos of a fixed-point |r| < 1 by their series; each error is below 200 units."""
    square = (r * r) >> bits
    sine, cosine, term_s, term_c, k = r, 1 << bits, r, 1 << bits, 1
    while term_s or term_c:
        term_c = -((term_c * square) >> bits) // ((2 * k - 1) * (2 * k))
        term_s = -((term_s * square) >> bits) // ((2 * k) * (2 * k + 1))
        # Floor division walks a negative remnant to -1, then to 0 or 1: stop when only that is left.
        if abs(term_s) <= 1 and abs(term_c) <= 1:
            break
        sine, cosine, k = sine + term_s, cosine + term_c, k + 1
    return sine, cosine


def cos_sin(position: int, frequency) -> tuple[np.float32, np.float32]:
    """cos and sin of the exact product position * frequency, each rounded once to f32."""
    angle = Fraction(float(frequency)) * position
    if angle == 0:
        return np.float32(1), np.float32(0)

    def evaluate(bits):
        # Extra bits cover the size of the angle (the quotient times the error of pi/2).
        work = bits + max(0, int(abs(angle)).bit_length()) + 16
        quarter = half_pi(work)
        fixed = (angle.numerator << work) // angle.denominator
        quadrant = (2 * fixed + quarter) // (2 * quarter)
        sine, cosine = _sin_cos_fixed(fixed - quadrant * quarter, work)
        turned = ((cosine, sine), (-sine, cosine), (-cosine, -sine), (sine, -cosine))[quadrant % 4]
        error = Fraction(3 * abs(quadrant) + 500, 1 << work)
        return tuple(Fraction(v, 1 << work) for v in turned), error

    # A tiny angle needs its own magnitude in bits twice over before cos and sin are decided.
    small = 2 * max(0, angle.denominator.bit_length() - angle.numerator.bit_length())
    results = []
    for which in (0, 1):

        def interval(bits, which=which):
            values, error = evaluate(bits)
            return values[which], error

        results.append(_decided(interval, 96 + small))
    return tuple(results)
