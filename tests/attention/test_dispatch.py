"""The choice that `auto` makes: data with provenance, never a change of bits, always a variant that fits."""

import numpy as np
import pytest

from crucible.attention import dispatch, fast
from crucible.attention.base import Problem
from crucible.attention.dispatch import Point, Table, load, ranking, save
from crucible.attention.plan import Plan, in_waves, plan_of, tiles
from crucible.attention.run import choose
from crucible.attention.variants import AUTO, VARIANTS
from crucible.device import get
from crucible.errors import InputError
from crucible.kv.slices import Slice, pack
from crucible.numerics.bits import assert_same_bits

from .conftest import made


def planned(segments, Hkv=3) -> Plan:
    packed = pack([Slice(i, start, length) for i, (start, length) in enumerate(segments)])
    return plan_of(get("simt"), packed.desc, Hkv)


@pytest.mark.parametrize("variant", ["reference", "exact-q4-k64", *fast.VARIANTS])
def test_whatever_the_table_says_the_bits_are_the_same(variant, monkeypatch):
    prepared, expected = made(get("simt"), ((0, 9), (25, 16), (63, 1), (15, 1)), 3, 64)
    table = Table({}, (Point(3, 64, 1, 64, 1, 1, {variant: 1.0}),))
    monkeypatch.setattr(dispatch, "load", lambda: table)
    result = prepared.launch(AUTO)
    assert (result.launch.variant, result.launch.asked) == (variant, AUTO)
    assert_same_bits(expected, result.out)


def test_the_committed_table_names_known_variants_and_its_origin():
    table = load()
    assert {"device", "taken_at", "method"} <= set(table.provenance)
    assert {name for point in table.points for name in point.us} <= set(fast.VARIANTS)
    assert all(VARIANTS[name].exact for name in (*fast.VARIANTS, *dispatch.LAST))


def test_a_measured_point_gets_its_own_fastest():
    points = load().points
    for p in points:
        here = (p.G, p.D, p.work, p.end, p.mean, p.chunk)
        # two shapes of the benchmark may look alike to a kernel; either's fastest will do
        alike = [q for q in points if (q.G, q.D, q.work, q.end, q.mean, q.chunk) == here]
        assert ranking(here)[0] in {min(q.us, key=q.us.get) for q in alike}


@pytest.mark.parametrize("end", [1, 64, 128, 129, 1024, 5000, 32768])
@pytest.mark.parametrize("chunk", [1, 3, 64, 1024])
@pytest.mark.parametrize(("G", "D"), [(1, 64), (4, 64), (7, 128)])
def test_the_choice_always_fits(G, D, chunk, end):
    simt = get("simt")
    batch = planned([(max(end - chunk, 0), min(chunk, end))] * 2)
    problem = Problem(*[None] * 6, 0, batch.rows, 3 * G, 3, D, None).planned(batch)
    launch = choose(simt, problem, AUTO, demanded=False)
    assert launch.variant in fast.VARIANTS
    assert fast.fits(launch.variant, simt, batch.end, batch.longest_chunk, G, D)


def test_an_uncovered_geometry_falls_back_visibly():
    prepared, expected = made(get("simt"), ((0, 4),), 9, 64, Hkv=1)
    result = prepared.launch(AUTO)
    assert result.launch.variant == "reference" and "more than 32 warps" in result.launch.reason
    assert_same_bits(expected, result.out)


def test_a_table_survives_the_disk_with_its_fastest_variants(tmp_path):
    us = {name: float(9 - i) for i, name in enumerate(tuple(fast.VARIANTS)[:6])}
    path = save(Table({"device": "a"}, (Point(4, 64, 1, 2, 1, 1, us),)), tmp_path / "table.json")
    assert load(path).points[0].us == dict(sorted(us.items(), key=lambda item: item[1])[:4])
    path.write_text("{}")
    load.cache_clear()
    with pytest.raises(InputError, match="is not a dispatch table"):
        load(path)


def test_tiles_cover_every_row_and_head_once_longest_first():
    desc = np.array([(0, 17, 5, 0), (17, 1, 300, 1), (18, 8, 0, 2)], np.int32)
    items = tiles(desc, 8, 3)
    seen = set()
    for first, packed, length, table in items:
        rows, head = packed & 255, packed >> 8
        segment = desc[table]
        for row in range(first, first + rows):
            assert (row, head) not in seen
            seen.add((row, head))
            assert segment[0] <= row < segment[0] + segment[1]
        assert length == segment[2] + (first - segment[0]) + 1
    assert len(seen) == 26 * 3
    ends = items[:, 2] + (items[:, 1] & 255)
    assert (np.diff(ends) <= 0).all()


def test_waves_keep_every_item_and_balance_what_is_resident():
    items = np.repeat(np.arange(20, 0, -1, dtype=np.int32)[:, None], 4, axis=1)
    dealt = in_waves(items, 5, 2)
    assert sorted(dealt[:, 0]) == sorted(items[:, 0])
    assert set(dealt[:5, 0] + dealt[5:10, 0]) == {31}
    assert (dealt[10:] == items[10:]).all()
