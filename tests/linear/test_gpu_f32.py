"""The f32 layer's CUDA kernels on simt and cuda: bits of the cpu device for any shape and epilogue."""

import numpy as np
import pytest

from crucible.device import get
from crucible.device.sources import kernels_dir
from crucible.errors import InputError
from crucible.linear import gpu_choice, gpu_f32
from crucible.linear.apply import linear
from crucible.linear.weights import pack, pack_stored
from crucible.numerics import inputs
from crucible.numerics.bits import assert_same_bits, same_bits

F = np.float32
# Rows, outputs, inputs: one of each, ragged in all of them, and a model's K.
SHAPES = [(1, 1, 1), (3, 20, 64), (5, 33, 257), (17, 50, 576), (40, 72, 800)]
BF16 = ("reference", "tile-128x128", "split-64x128-copied", "rows-1x8k", "rows-8x16", "rows-16x64")
LONG = [(2, 24, 256), (9, 16, 768), (19, 136, 1536)]


@pytest.fixture(params=["simt", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return get(request.param)


@pytest.fixture
def cpu():  # its vector levels are held to each other elsewhere
    return get("cpu")


def data(rows, n, k):
    x, w = inputs.normalish(21, 0, (rows, k)), inputs.normalish(21, 1, (n, k))
    return x, w, inputs.normalish(21, 2, n), inputs.normalish(21, 3, (rows, n))


def run(device, name, x, weight, add=None):
    """The layer by one named kernel, into memory that held NaN."""
    out = device.upload(np.full((x.shape[0], weight.n), np.nan, F))
    add = None if add is None else device.upload(add)
    gpu_f32.linear_f32(device, device.upload(x), weight, out, add=add, kernel=name)
    return device.download(out)


def packed(device, w, storage="f32", bias=None):
    halves = (w.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    raw = (halves if storage == "bf16" else w).view(np.uint8)
    bias = None if bias is None else device.upload(bias)
    return pack_stored(device, device.upload(raw), storage, w.shape[1], bias)


@pytest.mark.parametrize("name", gpu_choice.KERNELS)
def test_every_kernel_has_the_bits_of_the_cpu(cpu, device, name):
    for rows, n, k in (*SHAPES, *LONG):
        x, w, bias, add = data(rows, n, k)
        weight = packed(device, w, "f32", bias)
        if not gpu_choice.runs(device, gpu_choice.KERNELS[name], weight):
            with pytest.raises(InputError, match="dynamic shared memory"):
                run(device, name, x, weight, add)
            continue
        assert_same_bits(
            linear(cpu, x, pack(cpu, w, "f32", bias), add=add), run(device, name, x, weight, add)
        )
    rows, n, k = SHAPES[-1]
    x, w, _, _ = data(rows, n, k)
    assert_same_bits(linear(cpu, x, pack(cpu, w, "f32")), run(device, name, x, packed(device, w)))


@pytest.mark.parametrize("name", gpu_choice.KERNELS)
def test_bf16_weights_have_the_bits_of_widened_ones(cpu, device, name):
    if device.name == "simt" and name not in BF16:
        pytest.skip("on simt a build of each kind of load is enough")
    x, w, bias, _ = data(17, 50, 576)
    expected = linear(cpu, x, packed(cpu, w, "bf16", bias))
    assert_same_bits(expected, run(device, name, x, packed(device, w, "bf16", bias)))


@pytest.mark.parametrize("name", gpu_choice.KERNELS)
def test_subnormals_and_negative_zeros_survive(cpu, device, name):
    rows, n, k = 5, 24, 576
    x, w, _, _ = data(rows, n, k)
    small, tiny = x * F(1e-22), w * F(1e-18)
    expected = linear(cpu, small, pack(cpu, tiny, "f32"))
    assert (np.abs(expected) < np.finfo(F).tiny).all() and (expected != 0).all()
    assert_same_bits(expected, run(device, name, small, packed(device, tiny)))
    below, above = np.full((rows, k), -1e-30, F), np.full((n, k), 1e-30, F)
    actual = run(device, name, below, packed(device, above))
    assert (actual.view(np.uint32) == 1 << 31).all()  # a chain of underflows stays -0


@pytest.mark.parametrize("name", gpu_choice.KERNELS)
def test_rows_that_start_anywhere_in_memory(cpu, device, name):
    rows, n, k = 4, 16, 64
    x, w, _, _ = data(rows, n, k)
    held = device.upload(np.concatenate([np.zeros(1, F), x.ravel()]))
    out = device.upload(np.full((rows, n), np.nan, F))
    gpu_f32.linear_f32(device, held[1:].reshape(rows, k), packed(device, w), out, kernel=name)
    assert_same_bits(linear(cpu, x, pack(cpu, w, "f32")), device.download(out))


@pytest.mark.parametrize("rows", [1, 2, 7, 16, 33, 130])
def test_the_chosen_kernel_and_an_output_that_is_also_added(cpu, device, rows):
    x, w, bias, add = data(rows, 40, 320)
    expected = linear(cpu, x, pack(cpu, w, "f32", bias), add=add)
    out = device.upload(add)
    weight = packed(device, w, "f32", bias)
    assert linear(device, device.upload(x), weight, out=out, add=out) is out
    assert_same_bits(expected, device.download(out))


def test_no_rows_are_no_work(device):
    _, w, _, _ = data(1, 8, 16)
    assert linear(device, device.empty((0, 16)), packed(device, w)).shape == (0, 8)


def test_an_unknown_kernel_is_refused(device):
    x, w, _, _ = data(1, 8, 16)
    with pytest.raises(InputError, match="kernel 'magic' is unknown"):
        gpu_f32.linear_f32(device, device.upload(x), packed(device, w), device.empty((1, 8)), kernel="magic")


@pytest.mark.parametrize(
    "old, new",
    [
        ("constexpr int kBlock = 256;", "constexpr int kBlock = 128;"),  # the sums in other pieces
        ("constexpr int kBlock = 256;", "constexpr int kBlock = 1 << 20;"),  # one chain over all of K
        ("int k = k0; k < end; k++", "int k = end - 1; k >= k0; k--"),  # descending
        ("__fmaf_rn(row[k], widen(column[static_cast<long long>(k) * kPanel]), sum)",
         "__fadd_rn(__fmul_rn(row[k], widen(column[static_cast<long long>(k) * kPanel])), sum)"),
    ],
)  # fmt: skip
def test_another_order_of_k_is_caught(cpu, device, tmp_path, old, new):
    changed = 0
    for name in ("linear_reference.cu", "linear.cuh"):
        text = (kernels_dir() / name).read_text()
        changed += text.count(old)
        (tmp_path / name).write_text(text.replace(old, new))
    assert changed == 1
    x, w, _, _ = data(3, 24, 576)
    weight = packed(device, w)
    out = device.empty((3, 24))
    sizes = (np.int32(3), np.int32(24), np.int32(576))
    device.kernel(tmp_path / "linear_reference.cu").launch(
        1, 256, (device.upload(x), weight.packed, None, None, out, *sizes)
    )
    assert not same_bits(linear(cpu, x, pack(cpu, w, "f32")), device.download(out))


@pytest.mark.parametrize("name", gpu_choice.KERNELS)
def test_padding_k_with_zeros_is_caught(cpu, device, name):
    x, w = np.full((2, 64), 1e-30, F), np.full((8, 64), -1e-30, F)
    right = linear(cpu, x, pack(cpu, w, "f32"))
    wide_x, wide_w = (np.pad(a, ((0, 0), (0, 64))) for a in (x, w))
    assert same_bits(right, run(device, name, x, packed(device, w)))
    assert not same_bits(right, run(device, name, wide_x, packed(device, wide_w)))


def test_every_kernel_that_the_table_names_exists_and_every_shape_has_one():
    names = {name for point in gpu_choice.load().points for name in point.us}
    assert names <= set(gpu_choice.KERNELS)
    for storage in ("f32", "bf16"):
        for rows in (1, 5, 100, 5000):
            for n, k in ((1, 1), (17, 300), (150000, 64), (64, 30000)):
                ranked = gpu_choice.ranking(rows, n, k, storage)
                assert ranked[-1] == "reference" and len(ranked) > 1
