"""An f32 layer kept in the storage it came in has the bits of one widened first, on every vector level."""

import numpy as np
import pytest

from crucible.device import get
from crucible.errors import InputError
from crucible.linear.apply import linear
from crucible.linear.weights import STORAGES, pack_stored
from crucible.numerics import inputs, scalar
from crucible.numerics.bits import assert_same_bits

F = np.float32
N = 50  # not a multiple of the panel of 16


def stored(storage: str, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Counter-based bytes of a layer and the f32 weights they stand for, widened by a plain loop."""
    if storage in ("f32", "bf16"):
        w = inputs.normalish(5, 1, (n, k))
        if storage == "f32":
            return w.view(np.uint8), w
        upper = (w.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return upper.view(np.uint8), (upper.astype(np.uint32) << np.uint32(16)).view(F)
    _, block, size = STORAGES[storage]
    raw = inputs.bits(5, 2, n * (k // block) * size).astype(np.uint8).reshape(n, k // block, size)
    scales = inputs.normalish(5, 3, (n, k // block, 2), 0.1).astype(np.float16)
    scales[0, 0] = 6e-8, -6e-8  # subnormal halves
    w = np.empty((n, k // block, 32), F)
    if storage == "q8_0":
        raw[..., :2] = scales[..., :1].copy().view(np.uint8)
        w[:] = scales[..., :1].astype(F) * raw[..., 2:].view(np.int8).astype(F)
    else:
        raw[..., :4] = scales.view(np.uint8)
        q = np.concatenate([raw[..., 4:] & 15, raw[..., 4:] >> 4], axis=-1).astype(F)
        w[:] = scales[..., :1].astype(F) * q + scales[..., 1:].astype(F)
    return raw.reshape(n, -1), w.reshape(n, k)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 13, 100])
@pytest.mark.parametrize("storage", STORAGES)
def test_widening_in_flight_has_the_bits_of_widening_first(cpu, storage, rows):
    k = 352  # one whole block of 256 and part of another
    raw, w = stored(storage, N, k)
    x, bias = inputs.normalish(5, 0, (rows, k)), inputs.normalish(5, 4, N)
    assert_same_bits(scalar.linear_f32(x, w, bias), linear(cpu, x, pack_stored(cpu, raw, storage, k, bias)))


@pytest.mark.parametrize("name", ["simt", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("storage", STORAGES)
def test_packing_for_the_cuda_kernels_widens_exactly(name, storage):
    device, k = get(name), 352
    raw, w = stored(storage, N, k)
    x, bias = inputs.normalish(5, 0, (3, k)), inputs.normalish(5, 4, N)
    weight = pack_stored(device, device.upload(raw), storage, k, device.upload(bias))
    assert_same_bits(scalar.linear_f32(x, w, bias), device.download(linear(device, device.upload(x), weight)))
    assert weight.storage == ("bf16" if storage == "bf16" else "f32")


def test_blocks_that_do_not_fill_a_row_are_refused(cpu):
    with pytest.raises(InputError, match="multiple of 32 inputs, not 40"):
        pack_stored(cpu, np.zeros((2, 20), np.uint8), "q4_1", 40)
    with pytest.raises(InputError, match="storage 'q5_0' is unknown"):
        pack_stored(cpu, np.zeros((2, 22), np.uint8), "q5_0", 32)
