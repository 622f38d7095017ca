"""Every launcher refuses what it cannot take with one InputError, and writes only where it may."""

import numpy as np
import pytest

from crucible import device
from crucible.attention.run import attention
from crucible.attention.variants import find
from crucible.errors import CrucibleError, InputError
from crucible.kv.pool import PagePool
from crucible.kv.slices import Slice, pack
from crucible.kv.validation import validate
from crucible.linear import apply, weights
from crucible.ops.embedding import embed
from crucible.ops.kv_store import store_kv
from crucible.ops.norm import rmsnorm
from crucible.ops.pointwise import exp, residual, sigmoid, swiglu
from crucible.ops.rope import rope
from crucible.ops.sums import sum256, sumsq256, tree32
from crucible.sampling import philox
from crucible.sampling.params import SamplingParams
from crucible.sampling.sample import greedy, ln, logprobs, rank, sample

F, I32 = np.float32, np.int32
D = device.get("cpu")
X, ONES = np.ones((2, 32), F), np.ones(32, F)
W = weights.pack(D, np.ones((32, 32), F), "f32")
W8 = weights.pack(D, np.ones((32, 32), F), "int8")
POOL, TABLE, DESC = np.ones((2, 1, 16, 32), F), np.zeros((1, 1), I32), np.array([[0, 2, 0, 0]], I32)
TRIG, POS = np.ones((4, 16), F), np.zeros(2, I32)
LOGITS = np.zeros(4, F)

LAUNCHERS = {
    "rmsnorm x": lambda a: rmsnorm(D, a, ONES, 1e-5),
    "rmsnorm weight": lambda a: rmsnorm(D, X, a, 1e-5),
    "rmsnorm out": lambda a: rmsnorm(D, X, ONES, 1e-5, out=a),
    "exp": lambda a: exp(D, a),
    "sigmoid": lambda a: sigmoid(D, a),
    "swiglu gate": lambda a: swiglu(D, a, X),
    "swiglu up": lambda a: swiglu(D, X, a),
    "residual x": lambda a: residual(D, a, X),
    "residual y": lambda a: residual(D, X, a),
    "rope x": lambda a: rope(D, a, POS, TRIG, TRIG, 32),
    "rope positions": lambda a: rope(D, X, a, TRIG, TRIG, 32),
    "rope cos": lambda a: rope(D, X, POS, a, TRIG, 32),
    "embed table": lambda a: embed(D, a, POS),
    "embed ids": lambda a: embed(D, X, a),
    "store k": lambda a: store_kv(D, a, X, POOL.copy(), POOL.copy(), TABLE, DESC, 0),
    "store pool": lambda a: store_kv(D, X, X, a, POOL.copy(), TABLE, DESC, 0),
    "store desc": lambda a: store_kv(D, X, X, POOL.copy(), POOL.copy(), TABLE, a, 0),
    "attention q": lambda a: attention(D, a, POOL, POOL, TABLE, DESC, 0, 1, 32),
    "attention pool": lambda a: attention(D, X, a, POOL, TABLE, DESC, 0, 1, 32),
    "attention k": lambda a: attention(D, X, POOL, POOL, TABLE, DESC, 0, 1, 32, k=a if a is not None else 1),
    "linear x": lambda a: apply.linear(D, a, W),
    "linear weight": lambda a: apply.linear(D, X, a),
    "quantize rows": lambda a: apply.quantize_rows(D, a),
    "sums q": lambda a: apply.linear_sums(D, a, W8),
    "sums weight": lambda a: apply.linear_sums(D, np.ones((1, 32), np.int16), a),
    "quantize weight": lambda a: weights.quantize_weight(D, a),
    "pack": lambda a: weights.pack(D, a, "f32"),
    "pack int8": lambda a: weights.pack_int8(D, a, ONES),
    "pack stored": lambda a: weights.pack_stored(D, a, "f32", 32),
    "tree32": lambda a: tree32(D, a),
    "sum256 x": lambda a: sum256(D, a, np.array([0, 1], I32)),
    "sumsq256 offsets": lambda a: sumsq256(D, ONES, a),
    "philox": lambda a: philox.philox(D, a, a),
    "greedy": lambda a: greedy(D, a),
    "sample": lambda a: sample(D, a, SamplingParams()),
    "rank": lambda a: rank(D, a, 1.0, 1),
    "logprobs": lambda a: logprobs(D, a),
    "ln": lambda a: ln(D, a),
}


@pytest.mark.parametrize(
    "bad",
    [None, [[1.0]], "x", 3.0, F(1), object(), np.ones((2, 32), ">f4"), ()],
    ids=lambda bad: type(bad).__name__,
)
@pytest.mark.parametrize("name", LAUNCHERS)
def test_what_is_no_array_of_the_right_kind_is_refused(name, bad):
    if bad is None and name == "rmsnorm out":
        return  # None asks for a new one
    with pytest.raises(InputError):
        LAUNCHERS[name](bad)


NO_WHOLE = [1.5, 0.5, float("nan"), "a", None, True, [1], np.ones(1, I32)]
WHOLES = {
    "slice table": lambda v: Slice(v, 0, 1),
    "slice start": lambda v: Slice(0, v, 1),
    "slice length": lambda v: Slice(0, 0, v),
    "pages": PagePool,
    "allocate": lambda v: PagePool(4).allocate(v, 1),
    "owner of": lambda v: PagePool(4).owner_of(v),
    "capacity": lambda v: validate(DESC, TABLE, num_pages=1, rows=2, capacity=v),
    "rows": lambda v: validate(DESC, TABLE, num_pages=1, rows=v, capacity=16),
    "num_pages": lambda v: validate(DESC, TABLE, num_pages=v, rows=2, capacity=16),
    "store layer": lambda v: store_kv(D, X, X, POOL.copy(), POOL.copy(), TABLE, DESC, v),
    "attention layer": lambda v: attention(D, X, POOL, POOL, TABLE, DESC, v, 1, 32),
    "attention Hkv": lambda v: attention(D, X, POOL, POOL, TABLE, DESC, 0, v, 32),
    "attention D": lambda v: attention(D, X, POOL, POOL, TABLE, DESC, 0, 1, v),
    "rope D": lambda v: rope(D, X, POS, TRIG, TRIG, v),
    "rank k": lambda v: rank(D, LOGITS, 1.0, v),
    "draw": lambda v: sample(D, LOGITS, SamplingParams(1.0), v),
    "greedy draw": lambda v: sample(D, LOGITS, SamplingParams(), v),
    "uniform draw": lambda v: philox.uniform(D, 0, v),
    "uniform seed": lambda v: philox.uniform(D, v, 0),
    "top_k": lambda v: SamplingParams(1.0, top_k=v),
    "seed": lambda v: SamplingParams(1.0, seed=v),
}


@pytest.mark.parametrize("value", NO_WHOLE, ids=str)
@pytest.mark.parametrize("name", WHOLES)
def test_what_is_no_whole_number_is_refused(name, value):
    with pytest.raises(InputError):
        WHOLES[name](value)
    assert isinstance(Slice(np.int64(0), np.int32(1), 2).table_index, int)


@pytest.mark.parametrize(
    "action",
    [
        lambda: rmsnorm(D, X, ONES, float("nan")),
        lambda: rmsnorm(D, X, ONES, -1.0),
        lambda: rmsnorm(D, X, ONES, 1e39),
        lambda: rmsnorm(D, X, ONES, "x"),
        lambda: ln(D, np.array([1.0, -1.0])),
        lambda: ln(D, np.array([0.0])),
        lambda: ln(D, np.array([np.nan])),
        lambda: rank(D, LOGITS, float("nan"), 1),
        lambda: rank(D, LOGITS, -1.0, 1),
        lambda: rank(D, LOGITS, 0.0, 1),
        lambda: rank(D, LOGITS, "a", 1),
        lambda: sample(D, LOGITS, None),
        lambda: sample(D, LOGITS, SamplingParams(1.0), 0, "a"),
        lambda: sample(D, LOGITS, SamplingParams(1.0), 0, True),
        lambda: SamplingParams(b"1"),
        lambda: SamplingParams(sampler=[1]),
        lambda: pack(None),
        lambda: pack([1]),
        lambda: PagePool(2, "ab"),
        lambda: PagePool(2).allocate(1, [1]),
        lambda: find([1]),
        lambda: device.get([]),
        lambda: device.get(None),
    ],
)
def test_values_outside_a_rule_are_refused(action):
    with pytest.raises(CrucibleError) as found:
        action()
    assert "\n" not in str(found.value) and len(str(found.value)) < 300


OUTS = {
    "rmsnorm": lambda x, out: rmsnorm(D, x, ONES, 1e-5, out=out),
    "residual": lambda x, out: residual(D, x, X, out=out),
    "swiglu": lambda x, out: swiglu(D, x, X, out=out),
    "rope": lambda x, out: rope(D, x, POS, TRIG, TRIG, 32, out=out),
    "embed": lambda x, out: embed(D, x, POS, out=out),
    "linear": lambda x, out: apply.linear(D, x, W, out=out),
    "linear int8": lambda x, out: apply.linear(D, x, W8, out=out),
    "attention": lambda x, out: attention(D, x, POOL, POOL, TABLE, DESC, 0, 1, 32, out=out),
}
IN_PLACE = ("rmsnorm", "residual", "swiglu", "rope")


@pytest.mark.parametrize("name", OUTS)
def test_an_output_that_is_read_only_or_overlaps_is_refused_untouched(name):
    raw = bytes(X.nbytes)
    with pytest.raises(InputError, match="read-only"):
        OUTS[name](X, np.frombuffer(raw, F).reshape(X.shape))
    assert not any(raw)
    buffer = np.linspace(-1, 1, 72).astype(F)
    kept = buffer.copy()
    for shift in (8, 1, 4):
        with pytest.raises(InputError, match="overlaps"):
            OUTS[name](buffer[:64].reshape(2, 32), buffer[shift : shift + 64].reshape(2, 32))
    assert (buffer == kept).all()
    x = kept[:64].reshape(2, 32)
    if name in IN_PLACE:
        wanted = OUTS[name](x.copy(), None)
        assert (OUTS[name](x, x) == wanted).all()
    else:
        with pytest.raises(InputError, match="overlaps"):
            OUTS[name](x, x)


def test_pools_that_are_read_only_or_one_are_refused():
    sealed = POOL.copy()
    sealed.flags.writeable = False
    for kpool, vpool in ((sealed, POOL.copy()), (POOL.copy(), sealed), (POOL, POOL)):
        with pytest.raises(InputError, match=r"read-only|overlaps"):
            store_kv(D, X, X, kpool, vpool, TABLE, DESC, 0)


def test_integers_that_overflow_the_int8_layer_are_refused():
    q = np.full((1, 512), -128, np.int8)
    with pytest.raises(InputError, match="-128"):
        weights.pack_int8(D, q, np.ones(1, F))
    layer = weights.pack_int8(D, np.full((1, 512), -127, np.int8), np.ones(1, F))
    for value in (32512, -32512):
        rows = np.full((1, 512), value, np.int16)
        assert apply.linear_sums(D, rows, layer).tolist() == [[-127 * 512 * value]]
    for value in (32513, -32513, -32768):
        rows = np.full((1, 512), value, np.int16)
        with pytest.raises(InputError, match="32512"):
            apply.linear_sums(D, rows, layer)
        with pytest.raises(InputError, match="32512"):
            apply.linear_quantized(D, rows, np.ones(1, F), layer)


def test_a_top_k_beyond_64_bits_keeps_the_vocabulary():
    for top_k in (2**64 + 1, 2**63, 5, 4):
        assert sample(D, LOGITS, SamplingParams(1.0, top_k=top_k)).kept == 4
    with pytest.raises(InputError, match="64 bits"):
        D.call("crucible_greedy", LOGITS, 2**64 + 4, np.zeros(1, I32))
