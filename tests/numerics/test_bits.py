"""Comparison by bits: what is equal, how far apart, what is refused."""

import warnings

import numpy as np
import pytest

from crucible.errors import InputError
from crucible.numerics import bits
from crucible.numerics.digest import digest

F = np.float32


def test_zeros_of_both_signs_differ_and_all_nans_agree():
    assert not bits.same_bits(F([0.0]), F([-0.0]))
    quiet, other = np.array([0x7FC00000, 0xFFC00123], np.uint32).view(F)
    assert bits.same_bits(F([quiet]), F([other]))
    assert not bits.same_bits(F([quiet]), F([1.0]))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_distance_counts_representable_steps_across_zero(dtype):
    a = np.array([1, -1, 0, -0.0], dtype)
    up = np.nextafter(a, np.array(np.inf, dtype))
    assert bits.ulp_distance(a[:2], up[:2]).tolist() == [1, 1]
    tiny = np.finfo(dtype).smallest_subnormal
    assert bits.ulp_distance(np.array([-tiny], dtype), np.array([tiny], dtype)).tolist() == [3]
    assert bits.ulp_distance(np.array([0.0], dtype), np.array([-0.0], dtype)).tolist() == [1]
    widest = bits.ulp_distance(np.array([-np.inf], dtype), np.array([np.inf], dtype))
    assert 0 < int(widest[0]) < bits.NAN_DISTANCE
    with warnings.catch_warnings():  # scalars warn where arrays do not
        warnings.simplefilter("error")
        assert bits.ulp_distance(dtype(-np.inf), dtype(np.inf)) == widest[0]
    nan = np.array([np.nan], dtype)
    assert bits.ulp_distance(nan, np.array([1], dtype)).tolist() == [bits.NAN_DISTANCE]
    assert bits.ulp_distance(nan, nan).tolist() == [0]


def test_first_divergence_names_index_values_patterns_and_distance():
    expected = np.ones((3, 4), F)
    actual = expected.copy()
    actual[1, 2] = np.nextafter(F(1), F(2))
    actual[2, 0] = 5
    found = bits.first_divergence(expected, actual)
    assert found.index == (1, 2) and found.ulps == 1
    assert (found.expected_bits, found.actual_bits) == ("0x3f800000", "0x3f800001")
    assert "[1,2]" in str(found) and "1 ulp" in str(found)
    result = bits.compare(expected, actual)
    assert (result.elements, result.differing, result.finite, result.zero) == (12, 2, 12, 0)
    assert bits.first_divergence(expected, expected) is None


def test_scalars_empty_arrays_and_integers_compare():
    assert bits.compare(F(1), F(1)).elements == 1
    assert bits.first_divergence(F(1), F(2)).index == ()
    assert bits.compare(np.zeros((0, 3), F), np.zeros((0, 3), F)).elements == 0
    found = bits.first_divergence(np.array([1, -1], np.int8), np.array([1, 1], np.int8))
    assert (found.index, found.ulps, found.expected_bits) == ((1,), 2, "0xff")


def test_unlike_arrays_are_refused():
    with pytest.raises(InputError, match="dtype float64"):
        bits.compare(np.zeros(1, F), np.zeros(1))
    with pytest.raises(InputError, match=r"shape \(2,\)"):
        bits.compare(np.zeros(1, F), np.zeros(2, F))
    with pytest.raises(InputError, match="no bit view"):
        bits.as_bits(np.zeros(1, complex))


def test_assertion_refuses_nothing_nan_and_all_zero_before_equality():
    for array, match in ((np.zeros(0, F), "nothing"), (F([np.nan, 1]), "NaN"), (np.zeros(4, F), "zero")):
        with pytest.raises(AssertionError, match=match):
            bits.assert_same_bits(array, array, "q")
    bits.assert_same_bits(F([np.nan]), F([np.nan]), allow_nan=True)
    bits.assert_same_bits(np.zeros(4, F), np.zeros(4, F), allow_zero=True)
    with pytest.raises(AssertionError, match=r"q: 2 elements, 1 differing, first at \[1\]"):
        bits.assert_same_bits(F([1, 2]), F([1, 3]), "q")


def test_digest_is_of_values_in_c_order_and_of_f32_alone():
    x = np.arange(12, dtype=F).reshape(3, 4)
    assert digest(x) == digest(np.asfortranarray(x)) == digest(x.astype(">f4").astype("<f4"))
    assert digest(x) != digest(x.T) and len(digest(x)) == 32
    assert digest(F([])) == "cae66941d9efbd404e4d88758ea67670"  # BLAKE2b-128 of nothing
    with pytest.raises(InputError, match="float64"):
        digest(np.zeros(3))
