"""fma32 rounds once: held to rational arithmetic, also among subnormals, ties and cancellations."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crucible.numerics.bits import assert_same_bits, same_bits
from crucible.numerics.fma import fma32
from crucible.numerics.scalar_exact import reciprocal_root, round_f32

F = np.float32
patterns = st.integers(0, 2**32 - 1).map(lambda b: np.array(b, np.uint32).view(F)[()]).filter(np.isfinite)
near = st.builds(lambda m, e: F(np.ldexp(float(m), e)), st.integers(-(2**24), 2**24), st.integers(-160, -100))


@settings(max_examples=600, deadline=None)
@given(*[st.one_of(patterns, near)] * 3)
def test_one_rounding_of_the_exact_value(a, b, c):
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if abs(exact) >= 2**127:
        return
    got = fma32(a, b, c)[()]
    if exact == 0:
        assert got == 0
    else:
        assert same_bits(np.array(round_f32(exact)), np.array(got))


def test_a_value_just_below_a_tie_is_not_rounded_twice():
    # a*b is 2^-24 less a hair of 2^-70: a sum in f64 loses the hair and then breaks the tie upwards.
    a, b, c = F(2.0**-24 * (1 + 2.0**-23)), F(1 - 2.0**-23), F(1 + 2.0**-23)
    twice = F(np.float64(a) * np.float64(b) + np.float64(c))
    assert twice == F(1 + 2.0**-22)
    assert fma32(a, b, c) == c


def test_signed_zeros_infinities_and_subnormals_are_kept():
    assert same_bits(fma32(F(0), F(0), F(-0.0)), F(0.0))
    assert same_bits(fma32(F(-0.0), F(0), F(-0.0)), F(-0.0))
    assert same_bits(fma32(F(1e-30), F(-1e-30), F(0)), F(-0.0))  # underflow keeps the sign
    assert fma32(F(np.inf), F(1), F(1)) == np.inf
    assert np.isnan(fma32(F(np.inf), F(0), F(1)))
    assert fma32(F(1e-20), F(1e-20), F(0)) == F(1e-40) != 0
    assert fma32(F(3e38), F(3), F(0)) == np.inf


def test_a_contracted_multiply_add_is_caught():
    rng = np.random.default_rng(3)
    a, b, c = rng.standard_normal((3, 1000)).astype(F)
    with pytest.raises(AssertionError, match="differing"):
        assert_same_bits(a * b + c, fma32(a, b, c))


def test_reciprocal_roots_are_the_real_numbers_rounded_once():
    assert reciprocal_root(64) == F(0.125)
    for d in range(32, 513, 32):
        got = Fraction(float(reciprocal_root(d)))
        low, high = (Fraction(float(np.nextafter(F(got), F(x)))) for x in (0, 1))
        # The real root lies strictly between the midpoints: compare squares, no root needed.
        assert ((low + got) / 2) ** 2 * d < 1 < ((got + high) / 2) ** 2 * d
    assert reciprocal_root(96) != F(1) / np.sqrt(F(96))
