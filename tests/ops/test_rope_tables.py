"""RoPE tables are correctly rounded: held to mpmath, to big integers and to the stored vectors."""

from pathlib import Path

import mpmath
import numpy as np
import pytest

from crucible.errors import InputError
from crucible.numerics import scalar_exact
from crucible.numerics.bits import assert_same_bits
from crucible.ops import rope_tables
from crucible.ops.rope_tables import rope_frequencies, rope_table

VECTORS = Path(__file__).parent.parent / "vectors"


def to_f32(value) -> np.float32:
    """One rounding of an mpf to f32, by its own means: 24-bit mpmath arithmetic (normal range only)."""
    with mpmath.workprec(24):
        return np.float32(float(+value))


@pytest.mark.parametrize("theta", [10000.0, 100000.0, 500000.0, 1000000.0])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_frequencies_are_the_real_powers_rounded_once(theta, head_dim):
    with mpmath.workprec(200):
        powers = [mpmath.mpf(theta) ** (mpmath.mpf(-2 * i) / head_dim) for i in range(head_dim // 2)]
    expected = np.array([to_f32(p) for p in powers])
    assert_same_bits(expected, rope_frequencies(theta, head_dim))


@pytest.mark.parametrize("theta, head_dim", [(10000.0, 64), (100000.0, 128)])
def test_random_entries_to_two_to_the_twenty_agree_with_big_numbers(theta, head_dim):
    rng = np.random.default_rng(5)
    positions = np.concatenate([rng.integers(0, 1 << 20, 40), [0, 1, 1 << 20, (1 << 29) - 1]])
    cos, sin = rope_table(theta, head_dim, positions)
    columns = rng.integers(0, head_dim // 2, (positions.size, 6))
    frequencies = rope_frequencies(theta, head_dim)
    with mpmath.workprec(300):
        for row, column in ((r, c) for r in range(positions.size) for c in columns[r]):
            angle = mpmath.mpf(float(frequencies[column])) * int(positions[row])
            assert to_f32(mpmath.cos(angle)) == cos[row, column]
            assert to_f32(mpmath.sin(angle)) == sin[row, column]


def test_the_integer_fallback_agrees_with_the_fast_path(monkeypatch):
    positions = np.arange(0, 2000, 37)
    fast = rope_table(10000.0, 64, positions)
    monkeypatch.setattr(rope_tables, "_RELATIVE_ERROR", 1.0)  # decides nothing
    slow = rope_table(10000.0, 64, positions)
    assert_same_bits(fast[0], slow[0])
    assert_same_bits(fast[1], slow[1])


def test_a_value_on_a_rounding_boundary_is_sent_to_big_integers():
    # 3 * f has 26 bits here: the angle is a midpoint of two f32, and its sine lies a hair below.
    frequency = np.float32(2.0**-40) * np.float32(1 + 2.0**-22 + 2.0**-23)
    angle = 3.0 * float(frequency)
    assert float(np.float32(angle)) != angle
    sine, _ = rope_tables._sin_cos(np.array([[angle]]))
    sin = scalar_exact.cos_sin(3, frequency)[1]
    with mpmath.workprec(400):
        assert to_f32(mpmath.sin(mpmath.mpf(angle))) == sin
    midpoint = 2.0**-40 * (1 + 2.0**-24)
    assert rope_tables._round(np.array([midpoint]))[1].all()
    assert sine[0, 0] == angle


def test_tables_match_the_vectors():
    z = np.load(VECTORS / "rope.npz")
    for i in range(4):
        theta, head_dim = z[f"theta_{i}"][()], int(z[f"D_{i}"])
        assert_same_bits(z[f"f_{i}"], rope_frequencies(theta, head_dim))
        cos, sin = rope_table(theta, head_dim, z["positions"])
        assert_same_bits(z[f"cos_{i}"], cos)
        assert_same_bits(z[f"sin_{i}"], sin)


def test_a_row_depends_on_its_position_alone():
    cos, sin = rope_table(10000.0, 64, np.arange(300))
    some = np.array([299, 0, 17, 17])
    again = rope_table(10000.0, 64, some)
    assert_same_bits(cos[some], again[0])
    assert_same_bits(sin[some], again[1])


def test_an_f32_evaluation_of_the_frequencies_is_caught():
    head_dim = 64
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    careless = np.float32(1) / np.float32(100000.0) ** exponents
    assert np.count_nonzero(careless != rope_frequencies(100000.0, head_dim)) > 0


@pytest.mark.parametrize(
    "theta, head_dim, positions, named",
    [
        (0.0, 64, [0], "RoPE base 0.0"),
        (0.5, 64, [0], "at least 1"),
        (5e-324, 64, [0], "at least 1"),
        (float("nan"), 64, [0], "RoPE base nan"),
        (1e4, 63, [0], "head_dim 63"),
        (1e4, 64, [-1], "positions -1"),
        (1e4, 64, [1 << 29], "positions 536870912"),
        (1e4, 64, [0.5], "float64"),
    ],
)
def test_bad_arguments_are_named(theta, head_dim, positions, named):
    with pytest.raises(InputError, match=named):
        rope_table(theta, head_dim, np.array(positions))
