"""The caller's floating-point state, its threads and its forks change no bit, and are left as they were."""

import ctypes
import multiprocessing
import platform

import numpy as np
import pytest

from crucible.attention.run import attention
from crucible.device import host
from crucible.device.cpu import CpuDevice
from crucible.errors import InputError
from crucible.linear.apply import linear, quantize_rows
from crucible.linear.weights import pack, quantize_weight
from crucible.numerics import inputs, scalar
from crucible.numerics.bits import assert_same_bits
from crucible.numerics.scalar_exact import reciprocal_root
from crucible.ops.norm import rmsnorm
from crucible.ops.rope import rope, rope_table

FLUSH, DENORMALS_ARE_ZERO = 0x8000, 0x40
DOWN, UP, TO_ZERO = 0x2000, 0x4000, 0x6000
SOURCE = """
#include <immintrin.h>
extern "C" unsigned get_state() { return _mm_getcsr(); }
extern "C" void set_state(unsigned state) { _mm_setcsr(state); }
"""
x86 = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="sets the x86 control register"
)


@pytest.fixture(scope="module")
def control():
    return ctypes.CDLL(str(host.compile_shared("mxcsr", (), generated=SOURCE)))


@x86
@pytest.mark.parametrize("state", [FLUSH | DENORMALS_ARE_ZERO, DOWN, UP, TO_ZERO])
def test_the_callers_state_changes_no_bit_and_survives(cpu, control, state):
    x = inputs.normalish(3, 0, (5, 320), 1e-22)
    w = inputs.normalish(3, 1, (40, 320), 1e-18)  # products and sums are subnormal
    weight, gain = pack(cpu, w, "f32"), inputs.normalish(3, 2, 320)
    q = inputs.normalish(3, 3, (1, 2 * 96))
    pools = [inputs.normalish(3, 4 + i, (2, 1, 16, 96), 1e-38) for i in range(2)]
    tables, desc = np.array([[1, 0]], np.int32), np.array([[0, 1, 20, 0]], np.int32)

    def run():
        return (
            linear(cpu, x, weight),
            rmsnorm(cpu, x, gain, np.float32(0)),
            attention(cpu, q, *pools, tables, desc, 0, 1, 96, "exact"),
        )

    expected = run()
    before = control.get_state()
    control.set_state(before | state)
    try:
        found, after = run(), control.get_state()
    finally:
        control.set_state(before)
    assert after == before | state
    for one, other in zip(expected, found, strict=True):
        assert_same_bits(one, other)
    assert np.count_nonzero(np.abs(expected[0].view(np.uint32) & 0x7FFFFFFF) < 0x800000)


@x86
@pytest.mark.parametrize("state", [DOWN, UP, TO_ZERO])
def test_the_scale_is_rounded_once_in_any_mode(control, state):
    expected = {d: reciprocal_root(d) for d in range(32, 288, 32)}
    before = control.get_state()
    control.set_state(before | state)
    try:
        found = {d: reciprocal_root(d) for d in expected}
    finally:
        control.set_state(before)
    assert expected == found


def _product(seed: int) -> bytes:
    device = CpuDevice()
    x, w = inputs.normalish(seed, 0, (7, 512)), inputs.normalish(seed, 1, (256, 512))
    return linear(device, x, pack(device, w, "f32")).tobytes()


def test_forked_children_work_and_agree():
    device = CpuDevice()
    threads = device.call("crucible_threads")
    device.call("crucible_set_threads", 4)
    try:
        expected = [_product(seed) for seed in range(8)]
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map_async(_product, range(8)).get(timeout=120) == expected
    finally:
        device.call("crucible_set_threads", threads)


@pytest.mark.parametrize("D", [2, 20, 34, 96])
def test_heads_of_any_even_size_rotate_like_the_oracle(cpu, D):
    x = inputs.normalish(4, 0, (3, 2 * D))
    cos, sin = rope_table(10000.0, D, np.arange(8))
    positions = np.array([0, 7, 3], np.int32)
    half = D // 2
    heads = x.reshape(3, 2, D)
    a, b = heads[..., :half], heads[..., half:]
    c, s = cos[positions][:, None], sin[positions][:, None]
    expected = np.concatenate([scalar.fma32(-b, s, a * c), scalar.fma32(a, s, b * c)], -1).reshape(x.shape)
    assert_same_bits(expected, rope(cpu, x, positions, cos, sin, D))
    with pytest.raises(InputError, match="positions run from 0 to 8; the table has rows 0 to 7"):
        rope(cpu, x, np.array([0, 8, 3], np.int32), cos, sin, D)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_int8_never_turns_what_is_not_finite_into_a_number(cpu, bad):
    x, w = inputs.normalish(5, 0, (3, 77)), inputs.normalish(5, 1, (20, 77))
    weight = pack(cpu, w, "int8")
    clean = linear(cpu, x, weight)
    for column in (0, 40, 76):
        wrong = x.copy()
        wrong[1, column] = bad
        assert np.isnan(quantize_rows(cpu, wrong)[1][1])
        y = linear(cpu, wrong, weight)
        assert np.isnan(y[1]).all()
        assert_same_bits(clean[[0, 2]], y[[0, 2]])
        broken = w.copy()
        broken[7, column] = bad
        with pytest.raises(InputError, match="row 7 of the weight holds NaN or infinity"):
            quantize_weight(cpu, broken)
