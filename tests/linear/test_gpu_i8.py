"""The int8 linear layer on simt and cuda: bits of the cpu device for any shape, and its producers'."""

import functools

import numpy as np
import pytest

from crucible.device import get
from crucible.linear import gpu_i8
from crucible.linear.apply import linear, linear_quantized, linear_sums, quantize_rows
from crucible.linear.gpu_i8_kernels import KERNELS, runs
from crucible.linear.weights import pack, quantize_weight
from crucible.numerics import inputs
from crucible.numerics.bits import assert_same_bits
from crucible.ops.norm import rmsnorm
from crucible.ops.pointwise import swiglu

F = np.float32
SHAPES = [(1, 1, 1), (1, 5, 64), (2, 33, 255), (3, 16, 257), (9, 48, 130), (17, 70, 96), (33, 20, 64)]


@pytest.fixture(params=["simt", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return get(request.param)


@pytest.fixture
def cpu():
    return get("cpu")


def data(rows, n, k):
    return inputs.normalish(11, 0, (rows, k)), inputs.normalish(11, 1, (n, k)), inputs.normalish(11, 2, n)


def digits_of(device, q):
    """The int16 [T][K] that a device's quantized rows stand for, and whether their padding is zero."""
    hi, lo = (device.download(q.digits)[:, :, d].astype(np.int32) for d in (0, 1))
    both = (256 * hi + lo).transpose(1, 3, 0, 2, 4)  # [group][line][slice][core][16]
    whole = both.reshape(both.shape[0] * 8, -1)
    padding = whole.copy()
    padding[: q.rows, : q.k] = 0
    return whole[: q.rows, : q.k].astype(np.int16), not padding.any()


@pytest.mark.parametrize("rows, n, k", SHAPES)
def test_every_stage_has_the_bits_of_the_cpu(device, cpu, rows, n, k):
    x, w, bias = data(rows, n, k)
    if rows > 1:
        x[1] = 0
    if n > 1:
        w[1] = 0
    q, scale = quantize_weight(cpu, w)
    made = quantize_weight(device, device.upload(w))
    assert_same_bits(q, device.download(made[0]))
    assert_same_bits(scale, device.download(made[1]))
    weight, expected = pack(device, device.upload(w), "int8", device.upload(bias)), pack(cpu, w, "int8", bias)
    rows_q, top = quantize_rows(device, device.upload(x))
    cpu_q, cpu_top = quantize_rows(cpu, x)
    values, padded = digits_of(device, rows_q)
    assert padded
    assert_same_bits(cpu_q, values)
    assert_same_bits(cpu_top, device.download(top))
    assert_same_bits(linear_sums(cpu, cpu_q, expected), device.download(linear_sums(device, rows_q, weight)))
    y = linear(cpu, x, expected)
    assert_same_bits(y, device.download(linear(device, device.upload(x), weight)))
    assert_same_bits(y, device.download(linear_quantized(device, rows_q, top, weight)))


@pytest.mark.parametrize("rows, k", [(1, 64), (3, 100), (9, 576), (2, 2100)])
def test_fused_producers_equal_their_steps(device, cpu, rows, k):
    x, norm = inputs.normalish(5, 0, (rows, k)), inputs.normalish(5, 1, k)
    y = device.empty((rows, k))
    normed = rmsnorm(cpu, x, norm, F(1e-5))
    q, top = gpu_i8.rmsnorm_quantize(device, device.upload(x), device.upload(norm), F(1e-5), out=y)
    check(device, cpu, normed, q, top)
    assert_same_bits(normed, device.download(y))
    both = inputs.normalish(5, 2, (rows, 2 * k), F(3))
    gated = swiglu(cpu, both[:, :k], both[:, k:])
    check(device, cpu, gated, *gpu_i8.swiglu_quantize(device, device.upload(both), k))


@pytest.mark.parametrize("name", [name for name in KERNELS if name != "reference"])
def test_every_kernel_has_the_bits_of_the_reference(device, name):
    if not runs(device, name):
        pytest.skip("a kernel of another GPU")
    for rows, n, k in ((3, 5, 64), (19, 70, 200), (67, 136, 330)):
        x, w, bias = data(rows, n, k)
        weight = pack(device, device.upload(w), "int8", device.upload(bias))
        q, top = quantize_rows(device, device.upload(x))
        add = device.upload(inputs.normalish(11, 3, (rows, n)))
        run = functools.partial(gpu_i8.linear_quantized, device, q, top, weight)
        for added in (None, add):
            expected = device.download(run(kernel="reference", add=added))
            assert_same_bits(expected, device.download(run(kernel=name, add=added)))
        run(kernel=name, add=add, out=add)  # the residual in its own place
        assert_same_bits(expected, device.download(add))


def check(device, cpu, x, q, top):
    """The quantized rows are those of x on the cpu."""
    expected, expected_top = quantize_rows(cpu, x)
    values, padded = digits_of(device, q)
    assert padded
    assert_same_bits(expected, values)
    assert_same_bits(expected_top, device.download(top))
