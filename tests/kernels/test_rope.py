"""rope.cu and the cpu's RoPE give the contract's bits, in place or not, for every head and position."""

import numpy as np
import pytest

from crucible.device import get
from crucible.errors import InputError
from crucible.numerics import scalar
from crucible.numerics.bits import assert_same_bits
from crucible.ops.rope import rope, rope_table

from .conftest import VECTORS

Z = dict(np.load(VECTORS / "rope.npz"))


@pytest.mark.parametrize("i", range(4))
def test_every_vector_matches_bit_for_bit(device, i):
    rows = np.arange(6, dtype=np.int32)  # the vectors' tables hold one row for each of their positions
    arrays = [device.upload(a) for a in (Z[f"x_{i}"], rows, Z[f"cos_{i}"], Z[f"sin_{i}"])]
    assert_same_bits(Z[f"y_{i}"], device.download(rope(device, *arrays, Z[f"D_{i}"])))


def made(rows=37, heads=5, D=96):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((rows, heads * D)).astype(np.float32)
    positions = rng.integers(0, 200, rows).astype(np.int32)
    return x, positions, *rope_table(10000.0, D, np.arange(200)), D


def test_positions_pick_their_table_row(device):
    x, positions, cos, sin, D = made()
    expected = scalar.rope(x.reshape(37, 5, D), cos[positions], sin[positions]).reshape(x.shape)
    arrays = [device.upload(a) for a in (x, positions, cos, sin)]
    assert_same_bits(expected, device.download(rope(device, *arrays, D)))
    in_place = device.upload(x.copy())
    assert rope(device, in_place, *arrays[1:], D, out=in_place) is in_place
    assert_same_bits(expected, device.download(in_place))


def test_the_cpu_gives_the_same_bits(cpu):
    x, positions, cos, sin, D = made()
    assert_same_bits(rope(get("simt"), x, positions, cos, sin, D), rope(cpu, x, positions, cos, sin, D))


def test_no_rows_are_no_launch(device):
    x, positions, cos, sin, D = made()
    arrays = [device.upload(a) for a in (x[:0], positions[:0], cos, sin)]
    assert rope(device, *arrays, D).shape == (0, 5 * D)


def test_malformed_calls_are_refused_by_name():
    x, positions, cos, sin, D = made()
    simt = get("simt")
    with pytest.raises(InputError, match="head_dim 7"):
        rope(simt, x, positions, cos, sin, 7)
    with pytest.raises(InputError, match="positions has dtype int64"):
        rope(simt, x, positions.astype(np.int64), cos, sin, D)
    with pytest.raises(InputError, match="cos has shape"):
        rope(simt, x, positions, cos[:, :-1], sin, D)
