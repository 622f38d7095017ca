"""A plan is made of what can be one, and a launch takes it only where it can be its own."""

import numpy as np
import pytest

from crucible.attention.plan import plan_of, tiles
from crucible.attention.run import run
from crucible.attention.shapes import LAYER
from crucible.device import get
from crucible.errors import InputError
from crucible.numerics.bits import assert_same_bits

from .conftest import made

I32 = np.int32
DESC = np.array([(0, 3, 5, 0), (3, 2, 20, 1)], I32)
SEGMENTS = ((5, 3), (20, 2))

NO_DESC = {
    "nothing": (None, "desc is NoneType; it must be an array"),
    "a list": (DESC.tolist(), "desc is list; it must be an array"),
    "floats": (DESC.astype(float), "desc has dtype float64; it must be int32"),
    "three columns": (DESC[:, :3].copy(), r"desc has shape \(2, 3\); it must be \[any\]\[4\]"),
    "no segment": (DESC[:0], "at least one segment with rows"),
    "no rows": (np.array([(0, 0, 5, 0)], I32), "at least one segment with rows"),
    "rows below 0": (np.array([(0, -1, 5, 0)], I32), "segment 0: chunk_len -1 is negative"),
    "history below 0": (np.array([(0, 1, -5, 0)], I32), "segment 0: absolute_start -5 is negative"),
    "table below 0": (np.array([(0, 1, 5, -1)], I32), "segment 0: table_index -1 is negative"),
    "an end past int32": (np.array([(0, 2, 2**31 - 2, 0)], I32), "= 2147483648 overflows int32; keep it"),
    "a row of two": (np.array([(0, 3, 5, 0), (2, 2, 20, 1)], I32), "segment 1: packed_start 2 overlaps"),
}


@pytest.mark.parametrize("kind", NO_DESC)
def test_what_are_no_descriptors_gives_no_plan(kind):
    given, says = NO_DESC[kind]
    with pytest.raises(InputError, match=says):
        plan_of(get("simt"), given, 2)


@pytest.mark.parametrize("Hkv", [0, -1, 1.5, None, True, "2"])
def test_what_is_no_number_of_kv_heads_gives_no_plan(Hkv):
    with pytest.raises(InputError, match="Hkv"):
        plan_of(get("simt"), DESC, Hkv)
    assert plan_of(get("simt"), DESC, np.int64(2)).Hkv == 2


def test_an_empty_segment_changes_no_extent_and_no_item():
    full = plan_of(get("simt"), DESC, 2)
    spaced = plan_of(get("simt"), np.insert(DESC, 1, np.array([10**6, 0, 10**6, 0], I32), axis=0), 2)
    for name in ("end", "longest_chunk", "rows", "mean", "needs"):
        assert getattr(spaced, name) == getattr(full, name)
    found, wanted = tiles(spaced.desc, 2, 2), tiles(full.desc, 2, 2)
    assert found.tolist() == wanted.tolist() and len(found)


FOREIGN = {
    "text": (lambda device: "x", "plan is str; make it with crucible.attention.plan.plan_of"),
    "descriptors": (lambda device: DESC, "plan is ndarray; make it with"),
    "another Hkv": (lambda device: plan_of(device, DESC, 1), "plan has items for 1 KV heads, not for 2"),
    "fewer segments": (lambda device: plan_of(device, DESC[:1], 2), "plan is of 1 segments, not of 2"),
    "more rows": (
        lambda device: plan_of(device, np.array([(0, 3, 5, 0), (3, 4, 20, 1)], I32), 2),
        "plan needs 7 packed rows, the call has 5; make it with",
    ),
    "more tables": (
        lambda device: plan_of(device, np.array([(0, 3, 5, 2), (3, 2, 20, 1)], I32), 2),
        "plan needs 3 page tables, the call has 2; make it with",
    ),
    "longer histories": (
        lambda device: plan_of(device, np.array([(0, 3, 5, 0), (3, 2, 200, 1)], I32), 2),
        "plan needs 13 entries of a page table, the call has 2; make it with",
    ),
    "another device": (
        lambda device: plan_of(get("simt" if device.name == "cpu" else "cpu"), DESC, 2),
        "plan is one of device (cpu|simt), not of ",
    ),
}


@pytest.mark.parametrize("variant", ["auto", "reference", "fast-t32"])
@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("name", ["cpu", "simt", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_plan_of_another_call_is_refused_and_out_left_alone(name, kind, variant):
    device = get(name)
    prepared, expected = made(device, SEGMENTS, 2, 64)
    make, says = FOREIGN[kind]
    out = device.upload(np.full(expected.shape, np.nan, np.float32))
    with pytest.raises(InputError, match=says):
        run(device, *prepared.arrays, LAYER, 2, 64, variant, out, plan=make(device))
    assert np.isnan(device.download(out)).all()
    assert_same_bits(expected, prepared.run(variant))
