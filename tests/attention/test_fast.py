"""The fast exact tier gives the reference's bits at every geometry, history, chunk and page order."""

import dataclasses

import numpy as np
import pytest

from crucible.attention import fast
from crucible.attention.plan import plan_of
from crucible.attention.run import run
from crucible.attention.shapes import LAYER
from crucible.attention.variants import VARIANTS
from crucible.device import get
from crucible.device.sources import kernels_dir
from crucible.errors import InputError, UnsupportedError
from crucible.numerics.bits import assert_same_bits

from .conftest import made, prepare

# (rows before, rows of the launch): edges of pages, tiles of rows, 64-key tiles and the 256-key sums.
RAGGED = ((0, 17), (33, 5), (0, 1), (70, 20), (255, 2))
SHORT = ((0, 9), (25, 16), (63, 1), (15, 1))
LONG = ((500, 13), (1024, 1))
DECODE = ((299, 1), (15, 1), (256, 1))
LARGE = ("fast-t32", "fast-t32d", "fast-t32s", "fast-t16", "fast-t16s", "fast-decode", "fast-split")
GEOMETRIES = [(4, 64), (3, 64), (8, 128), (1, 128)]
# Every build costs seconds, so the variants share the geometries; all of them meet under --slow.
SAMPLE = [
    *(("fast-t32", G, D) for G, D in GEOMETRIES),
    *(("fast-t16", 3, 64), ("fast-t16", 8, 128), ("fast-t32s", 4, 64)),
    *(("fast-decode", G, D) for G, D in ((3, 64), (5, 64), (8, 128), (1, 128))),
]


@pytest.mark.parametrize(("name", "G", "D"), SAMPLE)
def test_ragged_chunks_match_the_reference_bit_for_bit(device, name, G, D):
    prepared, expected = made(device, RAGGED, G, D)
    assert_same_bits(expected, prepared.run(name), f"{name} G={G} D={D}")


@pytest.mark.parametrize(("G", "D"), GEOMETRIES)
def test_short_histories_match_in_the_kernel_that_keeps_them_whole(device, G, D):
    prepared, expected = made(device, SHORT, G, D)
    assert_same_bits(expected, prepared.run("fast-rows"), f"G={G} D={D}")


def test_histories_between_64_and_128_match_there_too(device):
    prepared, expected = made(device, ((70, 20), (100, 28), (0, 5)), 3, 64)
    assert_same_bits(expected, prepared.run("fast-rows"))


@pytest.mark.parametrize("name", LARGE)
def test_long_histories_match(device, name):
    prepared, expected = made(device, LONG, 3, 64)
    assert_same_bits(expected, prepared.run(name), name)


@pytest.mark.parametrize("name", ["fast-decode", "fast-split", "fast-t16"])
def test_single_rows_match(device, name):
    prepared, expected = made(device, DECODE, 3, 64)
    assert_same_bits(expected, prepared.run(name), name)


@pytest.mark.slow
@pytest.mark.parametrize("D", fast.HEAD_DIMS)
@pytest.mark.parametrize("G", fast.GROUPS)
def test_every_geometry_matches_in_every_variant(device, G, D):
    prepared, expected = made(device, RAGGED, G, D, Hkv=1)
    for name in LARGE:
        assert_same_bits(expected, prepared.run(name), f"{name} G={G} D={D}")


@pytest.mark.gpu
@pytest.mark.parametrize("D", fast.HEAD_DIMS)
@pytest.mark.parametrize("G", [1, 2, 3, 4, 5, 6, 7, 8])
def test_large_batches_match_on_the_gpu(G, D):
    device = get("cuda")
    prepared, _ = made(device, ((0, 300), (512, 129), (941, 64), (1023, 1), (255, 33)), G, D, Hkv=3)
    expected = prepared.run("reference")
    for name in (*LARGE, "auto"):
        if fast.fits(name, device, 1024, 300, G, D):
            assert_same_bits(expected, prepared.run(name), f"{name} G={G} D={D}")


@pytest.mark.gpu
@pytest.mark.parametrize("segments", [((8191, 1),) * 3, ((8000, 40),), ((32767, 1),), ((32740, 28),)])
def test_contexts_to_32768_match_on_the_gpu(segments):
    device = get("cuda")
    prepared, _ = made(device, segments, 4, 64, Hkv=2)
    expected = prepared.run("reference")
    for name in ("fast-t32s", "fast-t16s", "fast-split", "auto"):
        assert_same_bits(expected, prepared.run(name), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fast-t32s", "fast-split"])
def test_contexts_to_8192_match_on_simt(name):
    prepared, expected = made(get("simt"), ((8180, 12),), 4, 64, Hkv=1)
    assert_same_bits(expected, prepared.run(name), name)


@pytest.mark.parametrize("name", ["fast-t32", "fast-t16", "fast-decode", "fast-split"])
def test_pages_and_packing_do_not_change_a_bit(device, name):
    prepared, expected = made(device, RAGGED, 3, 64)
    c = prepared.case
    order = np.random.default_rng(7).permutation(len(c.kpool))
    moved = dataclasses.replace(
        c,
        kpool=np.ascontiguousarray(c.kpool[order]),
        vpool=np.ascontiguousarray(c.vpool[order]),
        tables=np.argsort(order)[c.tables].astype(np.int32),
    )
    assert_same_bits(expected, prepare(device, moved).run(name))
    reversed_desc = dataclasses.replace(c.packed, desc=np.ascontiguousarray(c.packed.desc[::-1]))
    assert_same_bits(expected, prepare(device, dataclasses.replace(c, packed=reversed_desc)).run(name))


def test_a_chunk_gives_the_bits_of_its_rows_one_by_one(device):
    prepared, expected = made(device, ((0, 40),), 3, 64)
    desc = np.array([(i, 1, i, 0) for i in range(40)], np.int32)
    rows = dataclasses.replace(prepared.case, packed=dataclasses.replace(prepared.case.packed, desc=desc))
    for name in ("fast-t32", "fast-rows", "fast-decode"):
        assert_same_bits(expected, prepare(device, rows).run(name), name)


@pytest.mark.parametrize("name", ["fast-t32", "fast-rows", "fast-decode", "auto"])
def test_a_missing_plan_and_rows_without_a_segment_change_nothing(device, name):
    prepared, expected = made(device, SHORT, 3, 64)
    padded = dataclasses.replace(prepared.case, q=np.concatenate([prepared.case.q] * 2))
    result = prepare(device, padded).run(name, planned=False)
    assert_same_bits(expected, result[: len(expected)])
    assert np.isnan(result[len(expected) :]).all()


def test_scratch_in_parts_does_not_change_a_bit(device, monkeypatch):
    prepared, expected = made(device, RAGGED, 3, 64)
    monkeypatch.setattr(fast, "SCRATCH_BYTES", 1)
    for name in ("fast-t32s", "fast-split", "fast-decode"):
        assert_same_bits(expected, prepared.run(name), name)


# Scores past a lane's registers and a ring of V that turns over, with one to eight warps of chains.
@pytest.mark.parametrize(("G", "D", "rows"), [(1, 64, 1), (4, 64, 4), (2, 128, 1)])
def test_decode_matches_past_what_its_blocks_hold_at_once(device, G, D, rows):
    prepared, expected = made(device, ((2100 - rows, rows), (1023, 1), (129, rows)), G, D, Hkv=1)
    assert_same_bits(expected, prepared.run("fast-decode"), f"G={G} D={D} {rows} rows")


def test_decode_passes_over_an_item_without_rows(device):
    prepared, expected = made(device, DECODE, 3, 64)
    c = prepared.case
    plan = plan_of(device, c.packed.desc, c.Hkv)
    items = device.download(plan.items(1))
    plan._made["items", 1, 1, 1] = device.upload(np.concatenate([items, np.zeros_like(items[:3])]))
    out = device.upload(np.full(c.q.shape, np.nan, np.float32))
    result = run(device, *prepared.arrays, LAYER, c.Hkv, c.D, "fast-decode", out, plan=plan).out
    assert_same_bits(expected, device.download(result))


@pytest.mark.slow
@pytest.mark.parametrize("D", fast.HEAD_DIMS)
@pytest.mark.parametrize("G", fast.GROUPS)
def test_decode_matches_at_every_geometry(device, G, D):
    for rows in (1, 2, 4, 40):
        prepared, expected = made(device, ((1100, rows), (0, rows), (255, 1)), G, D, Hkv=1)
        assert_same_bits(expected, prepared.run("fast-decode"), f"G={G} D={D} {rows} rows")


class Unwaiting:
    """A device whose fast-decode does not wait for the scores of the launch before."""

    def __init__(self, device, folder):
        self._device, self._folder = device, folder
        for source in kernels_dir().glob("*.cu*"):
            text = source.read_text()
            if source.stem == "attention_fast_decode":
                assert "  await_previous();\n" in text
                text = text.replace("  await_previous();\n", "")
            (folder / source.name).write_text(text)

    def __getattr__(self, name):
        return getattr(self._device, name)

    def kernel(self, stem, entry=None, **defines):
        return self._device.kernel(self._folder / f"{stem}.cu", entry, **defines)


@pytest.mark.gpu
def test_values_that_do_not_wait_for_scores_are_caught(tmp_path):
    device = get("cuda")
    prepared, _ = made(device, ((999, 1),) * 32, 3, 64)
    expected = prepared.run("reference")

    def differing(changed) -> int:
        """Launches of 64 with other bits: a missing wait is a race, which other work on the GPU can hide."""
        plan, count = plan_of(changed, prepared.case.packed.desc, 2), 0
        for _ in range(64):
            plan.scratch("scores", 64 * 3 * 1024).fill(np.nan)
            result = run(changed, *prepared.arrays, LAYER, 2, 64, "fast-decode", plan=plan).out
            count += not np.array_equal(expected, device.download(result))
        return count

    assert not differing(device)
    assert differing(Unwaiting(device, tmp_path))


def test_the_fast_kernels_neither_spill_nor_use_local_memory():
    from crucible.device.nvrtc import compile_cubin

    for stem, defines in fast.sources(4, 64)[:15]:
        (found,) = compile_cubin(stem, "sm_90", defines).resources.values()
        assert found.spill_bytes == 0 and found.local_bytes == 0, (stem, defines)


def test_what_a_variant_does_not_cover_is_refused_with_the_way_out():
    simt = get("simt")
    prepared, _ = made(simt, ((0, 4),), 9, 64, Hkv=1)
    with pytest.raises(UnsupportedError, match=r"fast-t32 does not cover .*not 9 of 64; use auto"):
        prepared.run("fast-t32")
    prepared, _ = made(simt, ((2000, 1),), 3, 64)
    for name, limit in (
        ("fast-t32", "2001 positions of history"),
        ("fast-rows", "end at 128 positions, not at 2001"),
    ):
        with pytest.raises(UnsupportedError, match=f"{name} does not cover .*{limit}"):
            prepared.run(name)
    with pytest.raises(InputError, match="unknown attention variant 'fast'; did you mean fast-"):
        prepared.run("fast")


def test_every_fast_variant_is_registered_as_exact():
    assert set(LARGE) | {"fast-rows"} == set(fast.VARIANTS)
    assert all(VARIANTS[name].exact for name in fast.VARIANTS)
