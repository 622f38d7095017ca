"""kv_store.cu and the cpu's scatter put every row where its page table says and touch nothing else."""

import numpy as np
import pytest

from crucible.device import get
from crucible.errors import InputError
from crucible.numerics.bits import assert_same_bits
from crucible.ops.kv_store import store_kv

LAYERS, LAYER, KV_DIM, STRIDE = 3, 1, 192, 4
DESC = np.array([(0, 20, 3, 1), (20, 1, 31, 0), (21, 17, 0, 2)], np.int32)


def made(padding=0):
    rng = np.random.default_rng(11)
    tables = rng.permutation(16)[:12].astype(np.int32).reshape(3, STRIDE)
    k, v = rng.standard_normal((2, 38 + padding, KV_DIM)).astype(np.float32)
    pools = rng.standard_normal((2, 16, LAYERS, 16, KV_DIM)).astype(np.float32)
    return k, v, *pools, tables


def expected(k, v, kpool, vpool, tables):
    kpool, vpool = kpool.copy(), vpool.copy()
    for start, length, absolute, table in DESC:
        for i in range(length):
            place = tables[table, (absolute + i) >> 4], LAYER, (absolute + i) & 15
            kpool[place], vpool[place] = k[start + i], v[start + i]
    return kpool, vpool


def stored(device, k, v, kpool, vpool, tables):
    arrays = [device.upload(a.copy()) for a in (k, v, kpool, vpool, tables)]
    store_kv(device, *arrays, device.upload(DESC), LAYER)
    return [device.download(a) for a in arrays[2:4]]


@pytest.mark.parametrize("padding", [0, 5])
def test_rows_land_in_their_pages_and_nothing_else_moves(device, padding):
    case = made(padding)
    for want, have in zip(expected(*case), stored(device, *case), strict=True):
        assert_same_bits(want, have)


def test_the_cpu_stores_the_same_bits(cpu):
    case = made()
    for want, have in zip(expected(*case), stored(cpu, *case), strict=True):
        assert_same_bits(want, have)


def test_malformed_calls_are_refused_by_name():
    k, v, kpool, vpool, tables = made()
    with pytest.raises(InputError, match="layer 3 is outside"):
        store_kv(get("simt"), k, v, kpool, vpool, tables, DESC, 3)
    with pytest.raises(InputError, match="kpool has shape"):
        store_kv(get("simt"), k[:, :64].copy(), v[:, :64].copy(), kpool, vpool, tables, DESC, 0)
