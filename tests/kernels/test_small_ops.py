"""The small kernels of a forward pass give the cpu's bits at ragged shapes, in place or not."""

import numpy as np
import pytest

from crucible.device import get
from crucible.errors import InputError
from crucible.numerics import inputs, scalar
from crucible.numerics.bits import assert_same_bits, same_bits
from crucible.ops import pointwise, sums
from crucible.ops.embedding import StoredTable, embed, gather_rows
from crucible.ops.norm import rmsnorm
from crucible.ops.rope_store import rope_store
from crucible.ops.rope_tables import rope_table

CPU = get("cpu")
F = np.float32


def made(stream: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    return inputs.normalish(41, stream, shape, scale)


def same(device, operation, *arrays, **options) -> np.ndarray:
    """operation on the device has the cpu's bits; returns them."""
    expected = operation(CPU, *arrays, **options)
    actual = device.download(operation(device, *map(device.upload, arrays), **options))
    assert_same_bits(expected, actual)
    return actual


def stored_rows(storage: str, vocab: int, n: int) -> np.ndarray:
    size = {"f32": 4 * n, "bf16": 2 * n, "q8_0": n // 32 * 34, "q4_1": n // 32 * 20}[storage]
    rows = (inputs.bits(42, 0, vocab * size) >> np.uint32(7)).astype(np.uint8).reshape(vocab, size)
    if storage == "f32":
        rows = made(1, vocab, n).view(np.uint8)
    if storage == "bf16":
        rows.reshape(vocab, n, 2)[:, :, 1] &= 0x3F  # finite
    if storage in ("q8_0", "q4_1"):  # scales: finite halves, some subnormal
        blocks = rows.reshape(vocab, n // 32, -1)
        blocks[:, :, 1] &= 0x8F
        blocks[:, :, 3 if storage == "q4_1" else 1] &= 0x8B
    return rows


@pytest.mark.parametrize("n", [32, 576, 1056])
@pytest.mark.parametrize("storage", ["f32", "bf16", "q8_0", "q4_1"])
def test_an_embedding_row_widens_as_on_the_cpu(device, storage, n):
    rows = stored_rows(storage, 19, n)
    ids = np.array([3, 0, 18, 3, 7], np.int32)
    expected = embed(CPU, StoredTable(storage, rows, n), ids)
    actual = embed(device, StoredTable(storage, device.upload(rows), n), device.upload(ids))
    assert_same_bits(expected, device.download(actual), storage)


def test_f16_rows_widen_exactly(device):
    halves = np.arange(1 << 16, dtype=np.uint16)
    halves = halves[np.isfinite(halves.view(np.float16))].reshape(-1, 1024)
    out = device.empty(halves.shape)
    table = StoredTable("f16", device.upload(halves.view(np.uint8)), 1024)
    out = embed(device, table, device.upload(np.arange(halves.shape[0], dtype=np.int32)))
    assert_same_bits(halves.view(np.float16).astype(F), device.download(out))


def test_int8_rows_are_dequantized_and_f32_rows_copied(device):
    q = (inputs.bits(43, 0, 11 * 100).astype(np.int64) % 255 - 127).astype(np.int8).reshape(11, 100)
    scale, ids = made(2, 11, scale=0.01), np.array([10, 0, 10], np.int32)
    expected = embed(CPU, (q, scale), ids)
    actual = embed(device, (device.upload(q), device.upload(scale)), device.upload(ids))
    assert_same_bits(expected, device.download(actual))
    table = made(3, 11, 1025)
    assert_same_bits(table[ids], same(device, embed, table, ids))
    assert_same_bits(table[ids], same(device, gather_rows, table, ids))


def test_an_unknown_id_is_refused_or_gives_a_row_of_nan(device):
    table, ids = device.upload(made(3, 5, 8)), device.upload(np.array([1, 5, -1], np.int32))
    if device.name == "cuda":
        rows = device.download(embed(device, table, ids))
        assert np.isfinite(rows[0]).all() and np.isnan(rows[1:]).all()
        return
    with pytest.raises(InputError, match=r"token id 5 at row 1 is outside the vocabulary 0\.\.4"):
        embed(device, table, ids)
    with pytest.raises(InputError, match=r"row 5 at row 1 is outside the rows 0\.\.4"):
        gather_rows(device, table, ids)


@pytest.mark.parametrize("n", [1, 31, 64, 255, 257, 576, 768, 2048, 2049, 4100])
def test_rmsnorm_keeps_the_order_of_sumsq256(device, n):
    x, w = made(4, 3, n, scale=3.0), made(5, n)
    expected = same(device, rmsnorm, x, w, eps=F(1e-5))
    if n == 4100:  # a plain sum in index order is another number
        total = F(0)
        for v in x[0]:
            total = F(total + F(v * v))
        r = F(1) / np.sqrt(F(total / F(n)) + F(1e-5))
        assert not same_bits(expected[0], (x[0] * r) * w)


def test_rmsnorm_in_place_and_of_tiny_rows(device):
    x, w = made(6, 5, 96), made(7, 96)
    x[1], x[2] = 0, F(1e-39)
    expected = rmsnorm(CPU, x, w, F(1e-6))
    mine = device.upload(x.copy())
    assert rmsnorm(device, mine, device.upload(w), F(1e-6), out=mine) is mine
    assert_same_bits(expected, device.download(mine))
    same(device, rmsnorm, x[2:3].copy(), w, eps=F(0))


@pytest.mark.parametrize(("rows", "n"), [(1, 1), (3, 65), (2, 1536), (70, 2052), (70, 2049)])
def test_swiglu_of_two_halves(device, rows, n):
    both = made(8, rows, 2 * n, scale=8.0)
    expected = pointwise.swiglu(CPU, both[:, :n], both[:, n:])
    mine = device.upload(both)
    assert_same_bits(expected, device.download(pointwise.swiglu(device, mine[:, :n], mine[:, n:])))
    gate, up = (device.upload(a) for a in (both[:, :n], both[:, n:]))
    gate = device.upload(device.download(gate).copy())
    assert pointwise.swiglu(device, gate, up, out=gate) is gate
    assert_same_bits(expected, device.download(gate))


def test_swiglu_of_extreme_gates(device):
    gate = F([[0.0, -0.0, 87.0, -87.0, 88.5, -88.5, 1e-40, -1e-40, 3e38, -3e38]])
    same(device, pointwise.swiglu, gate, np.ones_like(gate))
    same(device, pointwise.sigmoid, gate)
    same(device, pointwise.exp, -np.abs(gate))


def test_residual_and_the_trees(device):
    x, y = made(9, 7, 1001), made(10, 7, 1001, scale=1e-3)
    same(device, pointwise.residual, x, y)
    offsets = np.array([0, 0, 1, 31, 300, 2000, 7007], np.int32)
    for operation in (sums.sum256, sums.sumsq256):
        same(device, operation, x.reshape(-1), offsets)
    same(device, sums.tree32, x.reshape(-1)[: 32 * 13].reshape(13, 32))


PAGES, LAYERS, LAYER, STRIDE = 12, 2, 1, 3
DESC = np.array([(0, 5, 14, 2), (5, 1, 31, 0), (6, 17, 0, 1)], np.int32)  # row 23 belongs to none


def rope_case(Hq: int, Hkv: int, D: int, rows: int = 24):
    qkv = made(11, rows, (Hq + 2 * Hkv) * D)
    positions = np.concatenate([np.arange(14, 19), [31], np.arange(17), [0] * (rows - 23)]).astype(np.int32)
    tables = np.array([7, 2, 9, 0, 11, 4, 3, 10, 1], np.int32).reshape(3, STRIDE)
    pools = [made(12 + i, PAGES, LAYERS, 16, Hkv * D) for i in range(2)]
    return qkv, positions, *rope_table(10000.0, D, np.arange(40)), *pools, tables, DESC


def run_rope_store(device, case, Hq, Hkv, D, own=True, norms=False):
    arrays = [device.upload(a.copy()) for a in case]
    q_out = device.zeros((case[0].shape[0], Hq * D))
    kv = [device.zeros((case[0].shape[0], Hkv * D)) for _ in range(2)] if own else [None, None]
    options = {}
    if norms:
        options = {"q_norm": device.upload(made(14, D)), "k_norm": device.upload(made(15, D)), "eps": F(1e-6)}
    rope_store(device, *arrays, LAYER, Hq, Hkv, D, q_out, *kv, **options)
    return [device.download(a) for a in (q_out, *arrays[4:6], *(kv if own else ()))]


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize(("Hq", "Hkv", "D"), [(9, 3, 64), (2, 1, 32), (3, 3, 96), (8, 1, 128), (1, 1, 288)])
def test_rope_store_is_norm_rope_and_store(device, Hq, Hkv, D, norms):
    case = rope_case(Hq, Hkv, D)
    expected = run_rope_store(CPU, case, Hq, Hkv, D, norms=norms)
    for want, have in zip(expected, run_rope_store(device, case, Hq, Hkv, D, norms=norms), strict=True):
        assert_same_bits(want, have)
    without = run_rope_store(device, case, Hq, Hkv, D, own=False, norms=norms)
    for want, have in zip(expected[:3], without, strict=True):
        assert_same_bits(want, have)


def test_rope_store_rotates_by_the_oracle_and_writes_only_its_slots(device):
    Hq, Hkv, D = 3, 1, 64
    case = rope_case(Hq, Hkv, D)
    qkv, positions, cos, sin, kpool, vpool, tables, _ = case
    q, new_k, new_v, *_ = run_rope_store(device, case, Hq, Hkv, D)
    heads = qkv.reshape(24, 5, D)
    turned = scalar.rope(heads[:, :4], cos[positions], sin[positions])
    assert_same_bits(turned[:, :3].reshape(24, -1), q)
    want_k, want_v = kpool.copy(), vpool.copy()
    for start, length, absolute, table in DESC:
        for i in range(length):
            place = tables[table, (absolute + i) >> 4], LAYER, (absolute + i) & 15
            want_k[place], want_v[place] = turned[start + i, 3], heads[start + i, 4]
    assert_same_bits(want_k, new_k)
    assert_same_bits(want_v, new_v)


def test_rope_store_refuses_by_name():
    simt = get("simt")
    case = rope_case(2, 1, 64)
    q_out = np.zeros((24, 128), F)
    with pytest.raises(InputError, match="layer 2 is outside"):
        rope_store(simt, *case, 2, 2, 1, 64, q_out)
    with pytest.raises(InputError, match="pass both or none"):
        rope_store(simt, *case, 0, 2, 1, 64, q_out, q_norm=np.ones(64, F))
    with pytest.raises(InputError, match="qkv has shape"):
        rope_store(simt, *case, 0, 3, 1, 64, q_out)
    with pytest.raises(InputError, match="positions run from 0 to 31"):
        rope_store(simt, *case[:2], case[2][:30].copy(), case[3][:30].copy(), *case[4:], 0, 2, 1, 64, q_out)
