"""Linear layers on the cpu device, at every vector level: bits of the oracle for any shape and split."""

import numpy as np
import pytest

from crucible.errors import InputError
from crucible.linear.apply import (
    linear,
    linear_quantized,
    linear_sums,
    quantize_rows,
    rmsnorm_linear,
    swiglu_linear,
)
from crucible.linear.weights import pack, pack_int8, quantize_weight
from crucible.numerics import inputs, scalar
from crucible.numerics.bits import assert_same_bits, same_bits
from crucible.ops.norm import rmsnorm
from crucible.ops.pointwise import residual, swiglu

F = np.float32
SHAPES = [
    (1, 1, 1),
    (1, 5, 64),
    (2, 33, 255),
    (3, 16, 256),
    (5, 17, 257),
    (7, 48, 576),
    (13, 40, 513),
    (33, 20, 96),
]


def data(rows, n, k):
    return inputs.normalish(11, 0, (rows, k)), inputs.normalish(11, 1, (n, k)), inputs.normalish(11, 2, n)


@pytest.mark.parametrize("rows, n, k", SHAPES)
def test_f32_agrees_for_ragged_shapes(cpu, rows, n, k):
    x, w, bias = data(rows, n, k)
    assert_same_bits(scalar.linear_f32(x, w), linear(cpu, x, pack(cpu, w, "f32")))
    assert_same_bits(scalar.linear_f32(x, w, bias), linear(cpu, x, pack(cpu, w, "f32", bias)))


@pytest.mark.parametrize("rows, n, k", SHAPES)
def test_int8_agrees_for_ragged_shapes(cpu, rows, n, k):
    x, w, bias = data(rows, n, k)
    if rows > 1:
        x[1] = 0
    if n > 1:
        w[1] = 0
    q, scale = scalar.quantize_weight(w)
    made = quantize_weight(cpu, w)
    assert_same_bits(q, made[0])
    assert_same_bits(scale, made[1])
    rows_q, top = quantize_rows(cpu, x)
    for expected, actual in zip(scalar.quantize_rows(x), (rows_q, top), strict=True):
        assert_same_bits(expected, actual)
    weight = pack(cpu, w, "int8", bias)
    assert_same_bits(scalar.linear_i8_sums(rows_q, q), linear_sums(cpu, rows_q, weight))
    expected = scalar.linear_i8(x, q, scale, bias)
    assert_same_bits(expected, linear(cpu, x, weight))
    assert_same_bits(expected, linear_quantized(cpu, rows_q, top, pack_int8(cpu, q, scale, bias)))


@pytest.mark.parametrize("kind", ["f32", "int8"])
def test_a_row_keeps_its_bits_in_any_batch(cpu, kind):
    x, w, _ = data(41, 50, 320)
    weight = pack(cpu, w, kind)
    whole = linear(cpu, x, weight)
    for start, stop in ((0, 1), (3, 5), (7, 20), (40, 41)):
        assert_same_bits(whole[start:stop], linear(cpu, x[start:stop].copy(), weight))


@pytest.mark.parametrize("rows", [*range(1, 15), 25, 197])
def test_every_number_of_rows_gives_exact_int8_sums(cpu, rows):
    n, k = 70, 1031  # ragged panels, three blocks and an odd input
    x = inputs.normalish(12, 0, (rows, k))
    x[::3] = np.where(x[::3] < 0, F(-1), F(1))  # rows of the largest integers
    w = inputs.normalish(12, 1, (n, k))
    w[::2] = np.where(w[::2] < 0, F(-1), F(1))
    rows_q, weights_q = quantize_rows(cpu, x)[0], quantize_weight(cpu, w)[0]
    assert_same_bits(scalar.linear_i8_sums(rows_q, weights_q), linear_sums(cpu, rows_q, pack(cpu, w, "int8")))


@pytest.mark.parametrize("kind", ["f32", "int8"])
@pytest.mark.parametrize("rows", [1, 9])
def test_a_layer_that_adds_gives_the_bits_of_layer_and_residual(cpu, kind, rows):
    x, w, bias = data(rows, 50, 320)
    weight, given = pack(cpu, w, kind, bias), inputs.normalish(13, 0, (rows, 50))
    expected = residual(cpu, given, linear(cpu, x, weight))
    assert_same_bits(expected, linear(cpu, x, weight, add=given))
    assert linear(cpu, x, weight, out=given, add=given) is given
    assert_same_bits(expected, given)


@pytest.mark.parametrize("rows, k", [(1, 576), (9, 600), (7, 33)])
def test_rows_quantized_where_they_are_made_have_the_bits_of_the_steps(cpu, rows, k):
    x, w, bias = data(rows, 50, k)
    x[-1] = 0
    norm, both = inputs.normalish(14, 0, k), inputs.normalish(14, 1, (rows, 2 * k), 4)
    weight, given = pack(cpu, w, "int8", bias), inputs.normalish(14, 2, (rows, 50))
    normed = linear(cpu, rmsnorm(cpu, x, norm, F(1e-5)), weight)
    assert_same_bits(normed, rmsnorm_linear(cpu, x, norm, F(1e-5), weight))
    gated = linear(cpu, swiglu(cpu, both[:, :k], both[:, k:]), weight, add=given)
    assert_same_bits(gated, swiglu_linear(cpu, both, weight, out=given, add=given))


def test_extreme_int8_sums_are_exact(cpu):
    k = 1536
    x, w = np.ones((2, k), F), np.ones((3, k), F)
    x[1], w[1] = -1, -1
    weight = pack(cpu, w, "int8")
    sums = linear_sums(cpu, quantize_rows(cpu, x)[0], weight)
    assert sums[0].tolist() == [32512 * 127 * k, -32512 * 127 * k, 32512 * 127 * k] and sums[0, 0] > 2**31


def test_tiny_rows_take_the_contracts_floor(cpu):
    x = np.full((3, 64), 2.0**-101, F)
    x[1] = 2.0**-100
    w = np.full((2, 64), 2.0**-120, F)
    w[1] = 2.0**-119 * 127
    bias = F([1, -1])
    for expected, actual in zip(scalar.quantize_weight(w), quantize_weight(cpu, w), strict=True):
        assert_same_bits(expected, actual)
    _, top = quantize_rows(cpu, x)
    assert top.tolist() == [0, 2.0**-100, 0]
    y = linear(cpu, x, pack(cpu, w, "int8", bias))
    assert_same_bits(scalar.linear_i8(x, *scalar.quantize_weight(w), bias), y)
    assert (y[0] == bias).all()


def test_zero_padding_of_k_is_caught(cpu):
    x, w = np.full((1, 64), 1e-30, F), np.full((1, 64), -1e-30, F)
    right = linear(cpu, x, pack(cpu, w, "f32"))
    assert_same_bits(F([[-0.0]]), right, allow_zero=True)
    padded = [np.pad(a, ((0, 0), (0, 64))) for a in (x, w)]
    assert not same_bits(right, linear(cpu, padded[0], pack(cpu, padded[1], "f32")))


def test_a_split_or_contracted_or_flushed_sum_is_caught(cpu):
    x, w, bias = data(2, 24, 512)
    right = linear(cpu, x, pack(cpu, w, "f32"))
    one_chain = np.zeros((2, 24), F)
    two_roundings = np.zeros((2, 24), F)
    for k in range(512):
        one_chain = scalar.fma32(x[:, k : k + 1], w[:, k][None], one_chain)
        two_roundings = two_roundings + x[:, k : k + 1] * w[:, k][None]
    assert not same_bits(right, one_chain) and not same_bits(right, two_roundings)
    halves = [scalar.linear_f32(x[:, a : a + 128], w[:, a : a + 128]) for a in range(0, 512, 128)]
    assert not same_bits(right, (halves[0] + halves[1]) + (halves[2] + halves[3]))
    with_bias = linear(cpu, x, pack(cpu, w, "f32", bias))
    first = scalar.linear_f32(np.hstack([np.ones((2, 1), F), x]), np.hstack([bias[:, None], w]))
    assert not same_bits(with_bias, first)  # a bias added first
    small = linear(cpu, x * F(1e-20), pack(cpu, w * F(1e-20), "f32"))
    assert (np.abs(small) < np.finfo(F).tiny).all() and (small != 0).any()


def test_tensor_float_32_inputs_are_caught(cpu):
    x, w, _ = data(2, 24, 256)
    right = linear(cpu, x, pack(cpu, w, "f32"))
    rounded = [((a.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(F) for a in (x, w)]
    assert not same_bits(right, linear(cpu, rounded[0], pack(cpu, rounded[1], "f32")))


def test_wrong_weights_and_rows_are_refused(cpu):
    w = np.ones((4, 8), F)
    weight = pack(cpu, w, "f32")
    with pytest.raises(InputError, match=r"x has shape \(2, 7\)"):
        linear(cpu, np.ones((2, 7), F), weight)
    with pytest.raises(InputError, match="kind 'int4'"):
        pack(cpu, w, "int4")
    with pytest.raises(InputError, match=r"bias has shape \(3,\)"):
        pack(cpu, w, "f32", np.ones(3, F))
    with pytest.raises(InputError, match="at least one"):
        pack(cpu, np.ones((0, 8), F), "f32")
