"""Counter-based inputs: the same bits in NumPy and in kernels/inputs.h, and a sane distribution."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from crucible import device as devices
from crucible.device import host
from crucible.numerics import inputs
from crucible.numerics.bits import assert_same_bits

PROGRAM = """
#include "inputs.h"
#include <cstdint>
extern "C" void draw(uint64_t seed, uint64_t stream, uint64_t start, int64_t n, float low, float high,
                     float scale, uint32_t* words, float* uniform, float* normalish) {
  for (int64_t i = 0; i < n; i++) {
    words[i] = crucible_inputs::bits(seed, stream, start + i);
    uniform[i] = crucible_inputs::uniform(seed, stream, start + i, low, high);
    normalish[i] = crucible_inputs::normalish(seed, stream, start + i, scale);
  }
}
"""


@pytest.mark.parametrize("seed, stream, start", [(0, 0, 0), (7, 3, 5), (2**64 - 1, 2**40, 2**33)])
def test_the_header_and_numpy_give_the_same_bits(seed, stream, start):
    library = host.load(
        host.compile_shared("inputs-test", (host.kernels_dir() / "inputs.h",), generated=PROGRAM)
    )
    n, low, high, scale = 4096, np.float32(-87.3), np.float32(0.7), np.float32(0.02)
    words, uniform, normalish = np.zeros(n, np.uint32), np.zeros(n, np.float32), np.zeros(n, np.float32)
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (words, uniform, normalish)]
    integers = [ctypes.c_uint64(v) for v in (seed, stream, start)]
    floats = [ctypes.c_float(v) for v in (low, high, scale)]
    library.draw(*integers, ctypes.c_int64(n), *floats, *pointers)
    assert_same_bits(inputs.bits(seed, stream, n, start), words)
    assert_same_bits(inputs.uniform(seed, stream, (n,), low, high, start), uniform)
    assert_same_bits(inputs.normalish(seed, stream, (n,), scale, start), normalish)


def test_a_slice_is_made_without_the_rest_and_streams_are_unlike():
    whole = inputs.normalish(1, 2, (50, 20))
    assert_same_bits(whole.reshape(-1)[300:400], inputs.normalish(1, 2, 100, start=300))
    assert np.count_nonzero(inputs.bits(1, 2, 1000) == inputs.bits(1, 3, 1000)) < 3
    assert np.count_nonzero(inputs.bits(1, 2, 1000) == inputs.bits(2, 2, 1000)) < 3


def test_distributions_are_centred_and_scaled():
    n = 1 << 16
    u, z = inputs.uniform(4, 0, n), inputs.normalish(4, 1, n, 0.5)
    assert -1 <= u.min() < -0.999 and 0.999 < u.max() < 1
    assert abs(u.mean()) < 0.02 and abs(u.std() - 3**-0.5) < 0.01
    assert abs(z.mean()) < 0.01 and abs(z.std() - 0.5) < 0.01


def test_uniform_is_exact_for_a_power_of_two_span():
    words = inputs.bits(9, 0, 1000) >> np.uint32(8)
    assert_same_bits((words / 2.0**23 - 1).astype(np.float32), inputs.uniform(9, 0, 1000))


@pytest.mark.parametrize("name", ["simt", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_kernel_draws_the_same_bits(name):
    device = devices.get(name)
    n, (seed, stream, start) = 1000, (np.uint64(2**63 + 11), np.uint64(5), np.uint64(2**32 - 3))
    low, high, scale = np.float32(-3.1), np.float32(0.7), np.float32(0.02)
    out = [device.zeros(n, dtype) for dtype in (np.uint32, np.float32, np.float32)]
    kernel = device.kernel(Path(__file__).parent / "inputs_probe.cu", "inputs_probe")
    kernel.launch(-(-n // 128), 128, (seed, stream, start, np.int32(n), low, high, scale, *out))
    words, uniform, normalish = map(device.download, out)
    assert_same_bits(inputs.bits(seed, stream, n, start), words)
    assert_same_bits(inputs.uniform(seed, stream, n, low, high, start), uniform)
    assert_same_bits(inputs.normalish(seed, stream, n, scale, start), normalish)
