"""attention_exact.cu gives the reference's bits; attention_online.cu and the controls give their twins'."""

import dataclasses

import numpy as np
import pytest

from crucible.attention import exact
from crucible.attention.run import run
from crucible.device import get
from crucible.gates import tensor_inputs
from crucible.gates.tensor import on_cpu
from crucible.gates.tensor_cases import Geometry, Plan
from crucible.gates.tensor_tally import measure
from crucible.kv.slices import Slice
from crucible.numerics.bits import assert_same_bits, compare

SLICES = (Slice(0, 60, 6), Slice(1, 0, 5), Slice(2, 270, 1))


def output(device, case, variant, **changes) -> np.ndarray:
    positional, keyword = case.on(device)
    out = device.upload(np.full(case.q.shape, np.nan, np.float32))
    return device.download(run(device, *positional, variant=variant, out=out, **{**keyword, **changes}).out)


def made(G, Hkv, D, slices=SLICES, **more) -> tensor_inputs.Case:
    return tensor_inputs.make(Plan("tiles", slices, 20260908, Geometry(G, Hkv, D), **more))


@pytest.mark.parametrize(
    ("variant", "G", "D"),
    [
        ("exact-q4-k64", 4, 64),
        ("exact-q4-k64", 8, 64),
        ("exact-q1-k16-hybrid-cache", 3, 64),
        ("exact-q2-k32", 5, 128),
        ("exact-q4-k16-cache", 8, 128),
        ("exact-q1-k64-hybrid", 1, 128),
    ],
)
def test_exact_tiles_give_the_bits_of_the_native_kernel(device, variant, G, D):
    case = made(G, 2, D)
    assert_same_bits(on_cpu(case), output(device, case, variant), variant)


@pytest.mark.parametrize("content", ["ascending", "zeros", "subnormals"])
def test_adversarial_contents_keep_the_bits(device, content):
    case = made(4, 2, 64, content=content)
    assert_same_bits(on_cpu(case), output(device, case, "exact-q4-k64"), content)


def test_contiguous_and_paged_storage_give_equal_bits(device):
    case = made(4, 2, 64)
    flat = tensor_inputs.contiguous(case)
    ends = (case.desc[:, 1] + case.desc[:, 2]).tolist()
    counts = [-(-end // 16) for end in ends]
    starts = np.cumsum([0, *counts])
    for r, count in enumerate(counts):  # the table is the identity over one buffer, request after request
        assert (flat.tables[r, :count] == starts[r] + np.arange(count)).all()
    paged = output(device, case, "exact-q4-k64")
    assert not np.array_equal(case.tables, flat.tables)
    assert_same_bits(paged, output(device, flat, "exact-q4-k64"))
    assert_same_bits(paged, output(device, flat, "reference"))


def test_a_row_past_the_given_capacity_is_nan_and_its_neighbours_keep_their_bits(device):
    case = made(4, 2, 64, (Slice(0, 253, 6), Slice(1, 4, 3)))
    out = output(device, case, "exact-q4-k64", capacity=200)  # C = 256
    over = case.positions >= 256
    assert np.isnan(out[over]).all() and over.sum() == 3
    assert_same_bits(on_cpu(case)[~over], out[~over])


def test_rows_without_a_segment_are_left_alone(device):
    case = made(4, 2, 64)
    padded = dataclasses.replace(case, **{n: np.concatenate([getattr(case, n)] * 2) for n in ("q", "k", "v")})
    out = output(device, padded, "exact-q4-k64")
    assert_same_bits(on_cpu(case), out[: len(case.q)])
    assert np.isnan(out[len(case.q) :]).all()


def test_shared_memory_of_the_standard_tile_is_what_the_design_says():
    for C in (256, 512, 768, 1024):
        assert exact.shared_bytes(exact.STANDARD, 4, 64, C) == 4 * (64 * 64 + 4 * 4 * C)
    cached = dataclasses.replace(exact.STANDARD, cache=True)
    assert exact.shared_bytes(cached, 4, 64, 1024) - exact.shared_bytes(exact.STANDARD, 4, 64, 1024) == 256
    assert [exact.score_capacity(n) for n in (1, 256, 257)] == [256, 256, 512]


TWINS = {
    "online-q1-k16": 64,
    "online-q2-k32-hybrid-cache": 128,
    "online-q4-k64": 64,
    "split-sum": 64,
    "contracted": 128,
    "tf32": 64,
}


@pytest.mark.parametrize("variant", TWINS)
def test_a_diagnostic_has_the_bits_of_its_native_twin_and_not_the_contracts(device, variant):
    case = made(4, 2, TWINS[variant])
    actual = output(device, case, variant)
    assert_same_bits(output(get("cpu"), case, variant), actual, variant)
    found = compare(on_cpu(case), actual)
    assert found.differing > found.elements // 100
    inside = measure(on_cpu(case), actual, tolerant=True).outside == 0
    assert inside == (variant != "tf32")


@pytest.mark.parametrize("variant", ["online-k16", "online-k64", "split-sum", "contracted", "tf32"])
def test_every_vector_level_gives_the_same_diagnostic(cpu, variant):
    case = made(3, 1, 128)
    assert_same_bits(output(get("cpu"), case, variant), output(cpu, case, variant), variant)


def test_contraction_is_invisible_where_the_scale_is_a_power_of_two():
    case = made(4, 2, 64)
    assert_same_bits(on_cpu(case), output(get("cpu"), case, "contracted"))


@pytest.mark.gpu
def test_the_hardware_exponential_is_close_and_not_equal():
    case = made(4, 2, 64)
    found = measure(on_cpu(case), output(get("cuda"), case, "hardware-exp"), tolerant=True)
    assert found.differing and not found.outside


def test_no_tile_spills_a_register():
    from crucible.device.nvrtc import compile_cubin

    for tile, D in ((exact.STANDARD, 64), (exact.STANDARD, 128), (exact.Tile(1, 16, True, True), 64)):
        used = compile_cubin("attention_exact", "sm_90", tile.defines(D)).resources["attention_exact"]
        assert used.spill_bytes == 0 and used.local_bytes == 0 and used.static_shared == 0
