"""The int8 linear layer on simt and cuda: bits of the cpu device for any shape, and its producers'."""

import functools
import shutil

import numpy as np
import pytest

from crucible.device import get
from crucible.device.sources import kernels_dir
from crucible.errors import InputError
from crucible.linear import gpu_i8
from crucible.linear.apply import linear, linear_quantized, linear_sums, quantize_rows, rmsnorm_linear
from crucible.linear.gpu_i8_kernels import INT32_K, KERNELS, runs
from crucible.linear.weights import pack, pack_int8, quantize_weight
from crucible.numerics import inputs
from crucible.numerics.bits import assert_same_bits, same_bits
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
        x = device.upload(x)
        q, top = quantize_rows(device, x)
        add = device.upload(inputs.normalish(11, 3, (rows, n)))
        reference = functools.partial(gpu_i8.linear_quantized, device, q, top, weight, kernel="reference")
        run = functools.partial(gpu_i8.linear_int8, device, x, weight, kernel=name)
        for added in (None, add):
            expected = device.download(reference(add=added))
            assert_same_bits(expected, device.download(run(device.empty((rows, n)), add=added)))
        run(add, add=add)  # the residual in its own place
        assert_same_bits(expected, device.download(add))


@pytest.mark.parametrize("rows, n, k", [(1, 5, 64), (3, 17, 100), (9, 16, 576), (2, 9, 2100)])
@pytest.mark.parametrize("name", [None, "few-8", "few-16", "few-32", "rows-8x8"])
def test_layers_that_make_their_input_equal_the_steps(device, cpu, rows, n, k, name):
    x, norm, both = (inputs.normalish(5, i, s) for i, s in enumerate(((rows, k), k, (rows, 2 * k))))
    _, w, bias = data(rows, n, k)
    weight, expected = pack(device, device.upload(w), "int8", device.upload(bias)), pack(cpu, w, "int8", bias)
    add = inputs.normalish(11, 3, (rows, n))
    y = linear(cpu, rmsnorm(cpu, x, norm, F(1e-5)), expected, add=add)
    made = gpu_i8.rmsnorm_linear(
        device, device.upload(x), device.upload(norm), F(1e-5), weight, add=device.upload(add), kernel=name
    )
    assert_same_bits(y, device.download(made))
    y = linear(cpu, swiglu(cpu, both[:, :k], both[:, k:]), expected, add=add)
    out = device.upload(add)
    gpu_i8.swiglu_linear(device, device.upload(both), weight, out=out, add=out, kernel=name)
    assert_same_bits(y, device.download(out))


def check(device, cpu, x, q, top):
    """The quantized rows are those of x on the cpu."""
    expected, expected_top = quantize_rows(cpu, x)
    values, padded = digits_of(device, q)
    assert padded
    assert_same_bits(expected, values)
    assert_same_bits(expected_top, device.download(top))


FAMILIES = ["reference", "tile-32x64", "rows-8x16", "few-8", "wgmma-64x128"]


def each_family(device, x, weight):
    """Outputs of one kernel of each family that the device runs."""
    for name in FAMILIES:
        if runs(device, name):
            out = device.empty((x.shape[0], weight.n))
            yield (
                name,
                device.download(gpu_i8.linear_int8(device, device.upload(x), weight, out, kernel=name)),
            )


def test_extreme_sums_are_exact(device, cpu):
    k = 1536
    x, w = np.ones((2, k), F), np.ones((3, k), F)
    x[1], w[1] = -1, -1
    weight = pack(device, device.upload(w), "int8")
    sums = device.download(linear_sums(device, quantize_rows(device, device.upload(x))[0], weight))
    assert sums[0].tolist() == [32512 * 127 * k, -32512 * 127 * k, 32512 * 127 * k] and sums[0, 0] > 2**31
    expected = linear(cpu, x, pack(cpu, w, "int8"))
    for name, y in each_family(device, x, weight):
        assert_same_bits(expected, y, name)


def test_tiny_rows_and_weights_take_the_contracts_floor(device, cpu):
    x = np.full((3, 64), 2.0**-101, F)
    x[1] = 2.0**-100
    w = np.full((2, 64), 2.0**-120, F)
    w[1] = 2.0**-119 * 127
    bias = F([1, -1])
    for expected, actual in zip(
        quantize_weight(cpu, w), quantize_weight(device, device.upload(w)), strict=True
    ):
        assert_same_bits(expected, device.download(actual))
    assert device.download(quantize_rows(device, device.upload(x))[1]).tolist() == [0, 2.0**-100, 0]
    expected = linear(cpu, x, pack(cpu, w, "int8", bias))
    for name, y in each_family(device, x, pack(device, device.upload(w), "int8", device.upload(bias))):
        assert_same_bits(expected, y, name)


def test_subnormal_outputs_are_kept(device, cpu):
    x, w, _ = data(9, 16, 128)
    x, w = x * F(1e-25), w * F(1e-14)
    expected = linear(cpu, x, pack(cpu, w, "int8"))
    assert ((np.abs(expected) < np.finfo(F).tiny) & (expected != 0)).any()
    for name, y in each_family(device, x, pack(device, device.upload(w), "int8")):
        assert_same_bits(expected, y, name)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_becomes_nan_and_harms_no_other(device, cpu, bad):
    x, w, _ = data(9, 16, 130)
    x[2, 129] = bad
    expected = linear(cpu, x, pack(cpu, w, "int8"))
    assert np.isnan(expected[2]).all() and np.isfinite(np.delete(expected, 2, 0)).all()
    for name, y in each_family(device, x, pack(device, device.upload(w), "int8")):
        assert_same_bits(expected, y, name, allow_nan=True)
    norm = device.upload(np.ones(130, F))
    q, top = gpu_i8.rmsnorm_quantize(device, device.upload(x), norm, F(1e-5))
    assert np.flatnonzero(np.isnan(device.download(top))).tolist() == [2]
    assert not digits_of(device, q)[0][2].any()


def test_sums_stay_exact_up_to_the_int32_limit_and_pass_it_by_the_reference(device, cpu):
    for k in (INT32_K, INT32_K + 64):
        x = np.full((1, k), 128, F)  # q = 128 = 256*1 - 128: the lowest lo digit
        x[0, 0] = 32512
        w = np.ones((1, k), F)
        weight = pack(device, device.upload(w), "int8")
        expected = linear(cpu, x, pack(cpu, w, "int8"))
        assert_same_bits(expected, device.download(linear(device, device.upload(x), weight)))
        q, top = quantize_rows(device, device.upload(x))
        assert set(np.unique(digits_of(device, q)[0])) == {128, 32512}
        run = functools.partial(gpu_i8.linear_quantized, device, q, top, weight, kernel="rows-8x8")
        if k == INT32_K:
            assert_same_bits(expected, device.download(run()))
        else:
            with pytest.raises(InputError, match=f"K = {INT32_K}"):
                run()


def test_a_row_keeps_its_bits_in_any_batch(device):
    x, w, _ = data(41, 50, 130)
    weight = pack(device, device.upload(w), "int8")
    whole = device.download(linear(device, device.upload(x), weight))
    for start, stop in ((0, 1), (3, 5), (7, 20), (40, 41)):
        part = linear(device, device.upload(x[start:stop].copy()), weight)
        assert_same_bits(whole[start:stop], device.download(part))


def test_no_rows_are_no_work(device):
    weight = pack(device, device.upload(data(1, 5, 64)[1]), "int8")
    assert linear(device, device.empty((0, 64)), weight).shape == (0, 5)
    q, top = quantize_rows(device, device.empty((0, 64)))
    assert linear_quantized(device, q, top, weight).shape == (0, 5) and q.rows == top.shape[0] == 0


def test_wrong_weights_and_rows_are_refused(device):
    w = np.ones((4, 64), F)
    weight = pack(device, device.upload(w), "int8")
    w[2, 3] = np.inf
    with pytest.raises(InputError, match="row 2 of the weight"):
        pack(device, device.upload(w), "int8")
    q = np.zeros((2, 8), np.int8)
    q[1, 7] = -128
    with pytest.raises(InputError, match="-128"):
        pack_int8(device, device.upload(q), device.upload(np.ones(2, F)))
    x = device.upload(np.ones((1, 64), F))
    with pytest.raises(InputError, match="must come from this device's quantize_rows"):
        linear_quantized(device, x, x, weight)
    shorter = quantize_rows(device, device.upload(np.ones((1, 32), F)))
    with pytest.raises(InputError, match="rows of 32; the layer takes 64"):
        linear_quantized(device, *shorter, weight)
    with pytest.raises(InputError, match="int8 kernel 'fastest' is unknown"):
        gpu_i8.linear_int8(device, x, weight, device.empty((1, 4)), kernel="fastest")
    with pytest.raises(InputError, match="few-8 takes f32 rows"):
        gpu_i8.linear_quantized(device, *quantize_rows(device, x), weight, kernel="few-8")


class Mutant:
    """A device whose kernels come from a folder of changed sources."""

    def __init__(self, device, folder, file, old, new):
        for source in kernels_dir().glob("*.cu*"):
            shutil.copy(source, folder)
        text = (folder / file).read_text()
        assert old in text, f"{file} no longer holds {old!r}; adapt this control"
        (folder / file).write_text(text.replace(old, new))
        self._device, self._folder = device, folder

    def __getattr__(self, name):
        return getattr(self._device, name)

    def kernel(self, stem, entry=None, **defines):
        return self._device.kernel(self._folder / f"{stem}.cu", entry, **defines)


@pytest.mark.parametrize("eps", [-1, np.nan, 1e39, None, True, "x"])
def test_an_eps_out_of_range_is_refused_with_one_sentence_on_every_device(device, cpu, eps):
    x, w, _ = data(3, 5, 64)
    said = []
    for where in (cpu, device):
        given = where.upload(x), where.upload(w[0]), eps
        weight = pack(where, where.upload(w), "int8")
        calls = [lambda a=(where, *given): rmsnorm(*a), lambda a=(where, *given, weight): rmsnorm_linear(*a)]
        if where is device:
            calls.append(lambda a=(where, *given): gpu_i8.rmsnorm_quantize(*a))
        for call in calls:
            with pytest.raises(InputError, match=r"^eps ") as refused:
                call()
            said.append(str(refused.value))
    assert len(said) == 5 and len(set(said)) == 1


MUTANTS = {
    "a hi digit without the carry of a negative lo": ("quantize_rows.cuh", "(q + 128) >> 8", "q >> 8"),
    "ties rounded away from zero": (
        "quantize_rows.cuh",
        "__float2int_rn(__fmul_rn(x, factor))",
        "static_cast<int>(x * factor + (x < 0.0f ? -0.5f : 0.5f))",
    ),
    "a scale without its own rounding": (
        "linear_i8.cuh",
        "__fmul_rn(sum, __fmul_rn(unit, s))",
        "__fmul_rn(__fmul_rn(sum, unit), s)",
    ),
    "sums joined in int32": ("linear_i8.cuh", "256ll * hi + lo", "static_cast<int>(256u * hi + lo)"),
    "digits weighted 255": ("linear_i8.cuh", "256ll * hi + lo", "255ll * hi + lo"),
    "a slice left out": ("linear_i8_rows.cu", "slice < slices; slice", "slice + 1 < slices; slice"),
    "k permuted in the weights alone": (
        "linear_i8_rows.cu",
        "weight[j].x, weight[j].y",
        "weight[j].y, weight[j].x",
    ),
}


@pytest.mark.parametrize("name", [None, *MUTANTS])
def test_a_broken_kernel_is_caught(device, cpu, tmp_path, name):
    change = MUTANTS[name] if name else ("linear_i8.cuh", "", "")
    broken = Mutant(device, tmp_path, *change)
    x, w, _ = data(3, 5, 640)
    x[0] = np.arange(640) % 16 + F(0.5)  # with A = 32512 the factor is 1, and these are ties
    x[0, 639], x[1], w[1] = 32512, 1, 1
    expected = linear(cpu, x, pack(cpu, w, "int8"))
    y = device.empty((3, 5))
    weight = pack(device, device.upload(w), "int8")
    gpu_i8.linear_int8(broken, device.upload(x), weight, y, kernel="rows-8x8")
    assert same_bits(expected, device.download(y)) == (name is None)
