"""The block operations on the cpu device, at every vector level: bits of the oracle, and refusals."""

import itertools

import numpy as np
import pytest

from crucible.errors import InputError
from crucible.numerics import inputs, scalar
from crucible.numerics.bits import assert_same_bits, same_bits
from crucible.ops import pointwise, sums
from crucible.ops.embedding import embed
from crucible.ops.kv_store import store_kv
from crucible.ops.norm import rmsnorm
from crucible.ops.rope import rope
from crucible.ops.rope_store import rope_store
from crucible.ops.rope_tables import rope_table

F = np.float32
LENGTHS = (1, 7, 31, 32, 33, 255, 256, 257, 576, 1000)


def test_exp_and_sigmoid_agree_over_the_whole_range(cpu):
    x = np.concatenate([inputs.uniform(1, 0, 5001, -90, 0), -(2.0 ** inputs.uniform(1, 1, 999, -149, 7))])
    x = np.concatenate([x.astype(F), F([0, -0.0, -np.inf, -87, np.nextafter(F(-87), F(-88)), -1e-45])])
    assert_same_bits(scalar.exp(x), pointwise.exp(cpu, x))
    g = np.concatenate([x, -x])
    assert_same_bits(scalar.sigmoid(g), pointwise.sigmoid(cpu, g))


def test_trees_and_sums_of_every_length_agree(cpu):
    offsets = np.cumsum([0, *LENGTHS], dtype=np.int32)
    x = inputs.normalish(2, 0, int(offsets[-1]))
    parts = [x[a:b] for a, b in itertools.pairwise(offsets)]
    assert_same_bits(np.stack([scalar.sum256(p) for p in parts]), sums.sum256(cpu, x, offsets))
    assert_same_bits(np.stack([scalar.sumsq256(p) for p in parts]), sums.sumsq256(cpu, x, offsets))
    p = inputs.normalish(2, 1, (50, 32))
    assert_same_bits(scalar.tree32(p), sums.tree32(cpu, p))


def test_a_reordered_sum_is_caught(cpu):
    x = inputs.normalish(3, 0, 4096)
    offsets = np.arange(0, 4097, 512, dtype=np.int32)
    right = sums.sum256(cpu, x, offsets)
    one_by_one = np.array([np.cumsum(x[a : a + 512])[-1] for a in offsets[:-1]])
    shuffled = x.reshape(8, 512)[:, np.random.default_rng(0).permutation(512)].reshape(-1)
    other = sums.sum256(cpu, np.ascontiguousarray(shuffled), offsets)
    assert not same_bits(right, one_by_one) and not same_bits(right, other)


@pytest.mark.parametrize("n", [8, 64, 100, 576, 1536])
def test_rmsnorm_agrees_and_rows_are_independent(cpu, n):
    x, w = inputs.normalish(4, 0, (5, n), 3), inputs.normalish(4, 1, n)
    x[1] = 0
    x[2] *= F(1e-30)
    y = rmsnorm(cpu, x, w, 1e-5)
    assert_same_bits(scalar.rmsnorm(x, w, F(1e-5)), y)
    assert_same_bits(y[3:4], rmsnorm(cpu, x[3:4].copy(), w, 1e-5))
    assert_same_bits(y, rmsnorm(cpu, x, w, 1e-5, out=x))


def test_swiglu_and_residual_agree_from_one_fused_buffer_too(cpu):
    for n in (1, 8, 33, 1536):
        fused = inputs.normalish(5, n, (3, 2 * n), 4)
        gate, up = fused[:, :n].copy(), fused[:, n:].copy()
        expected = scalar.swiglu(gate, up)
        assert_same_bits(expected, pointwise.swiglu(cpu, gate, up))
        assert_same_bits(expected, pointwise.swiglu(cpu, fused[:, :n], fused[:, n:]))
        assert_same_bits(gate + up, pointwise.residual(cpu, gate, up, out=gate))


def test_a_contracted_rmsnorm_scale_is_caught(cpu):
    x, w = inputs.normalish(6, 0, (4, 576)), inputs.normalish(6, 1, 576)
    y = rmsnorm(cpu, x, w, 1e-5)
    r = F(1) / np.sqrt(scalar.sumsq256(x) / F(576) + F(1e-5))
    assert not same_bits(y, x * (r[:, None] * w))


def test_subnormals_survive_and_a_flush_is_caught(cpu):
    x = np.full((1, 64), 1e-20, F)
    kept = pointwise.swiglu(cpu, x, x)
    assert_same_bits(scalar.swiglu(x, x), kept)
    assert (kept > 0).all() and (kept < np.finfo(F).tiny).all()
    assert not same_bits(kept, np.where(np.abs(kept) < np.finfo(F).tiny, F(0), kept))


def test_embedding_rows_in_f32_and_int8(cpu):
    table, ids = inputs.normalish(7, 0, (50, 72)), np.array([3, 49, 0, 3], np.int32)
    assert_same_bits(table[ids], embed(cpu, table, ids))
    q, scale = scalar.quantize_weight(table)
    assert_same_bits(scalar.dequantize(q[ids], scale[ids]), embed(cpu, (q, scale), ids))
    for bad in (-1, 50):
        with pytest.raises(InputError, match=f"token id {bad} at row 1 .* 0..49"):
            embed(cpu, table, np.array([0, bad], np.int32))


def test_wrong_arrays_are_refused_by_name(cpu):
    x, w = np.ones((2, 8), F), np.ones(8, F)
    for arguments, named in (
        ((x.astype(np.float64), w), "x has dtype float64"),
        ((x, w[:7].copy()), r"weight has shape \(7,\); it must be \[8\]"),
        ((np.ones((8, 2), F).T, w), "not C-contiguous"),
        ((x[0], w), r"x has shape \(8,\)"),
    ):
        with pytest.raises(InputError, match=named):
            rmsnorm(cpu, *arguments, 1e-5)
    with pytest.raises(InputError, match="gate"):
        pointwise.swiglu(cpu, x, np.ones((3, 8), F))
    with pytest.raises(InputError, match="row stride"):
        pointwise.swiglu(cpu, x, np.ones((2, 16), F)[:, :8])
    with pytest.raises(InputError, match="ascend"):
        sums.sum256(cpu, w, np.array([0, 9], np.int32))


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("rows, D", [(1, 64), (12, 64), (12, 96)])
def test_rope_store_gives_the_bits_of_its_steps(cpu, norms, rows, D):
    Hq, Hkv, layers, layer = 6, 2, 3, 1
    qkv = inputs.normalish(31, 0, (rows, (Hq + 2 * Hkv) * D))
    first = rows // 2  # two requests; the last row belongs to none
    segments = [(0, 1, 16, 1)] if rows == 1 else [(0, first, 30, 1), (first, rows - first - 1, 15, 0)]
    desc = np.array(segments, np.int32)
    positions = np.zeros(rows, np.int32)
    for start, length, absolute, _ in desc:
        positions[start : start + length] = np.arange(absolute, absolute + length)
    tables = np.array([[4, 1, 0], [2, 5, 3]], np.int32)
    table = rope_table(10000.0, D, np.arange(40))
    pools = [inputs.normalish(31, 1 + i, (6, layers, 16, Hkv * D)) for i in range(2)]
    weights = [inputs.normalish(31, 3 + i, D) for i in range(2)] if norms else [None, None]
    q, k, v = (a.copy() for a in np.split(qkv, (Hq * D, (Hq + Hkv) * D), axis=1))
    for array, weight in ((q, weights[0]), (k, weights[1])):
        if norms:
            heads = array.reshape(-1, D)
            rmsnorm(cpu, heads, weight, F(1e-6), out=heads)
        rope(cpu, array, positions, *table, D, out=array)
    stored = [pool.copy() for pool in pools]
    store_kv(cpu, k, v, *stored, tables, desc, layer)
    made = [np.zeros_like(a) for a in (q, k, v)]
    options = {"q_norm": weights[0], "k_norm": weights[1], "eps": F(1e-6)} if norms else {}
    rope_store(cpu, qkv, positions, *table, *pools, tables, desc, layer, Hq, Hkv, D, *made, **options)
    for expected, actual in zip((q, k, v, *stored), (*made, *pools), strict=True):
        assert_same_bits(expected, actual)
