"""Malformed descriptors and page tables are refused before anything is launched; what is right goes on."""

import numpy as np
import pytest

from crucible.attention.plan import plan_of
from crucible.attention.run import run
from crucible.attention.shapes import LAYER, case
from crucible.device import get
from crucible.engine.engine import Engine
from crucible.engine.scheduler import Limits
from crucible.errors import InputError
from crucible.gates.engine_record import tiny_model
from crucible.numerics.bits import assert_same_bits

from .conftest import made

I32 = np.int32
CHECK = "crucible.attention.run.validate_reads"
SEGMENTS = ((17, 3), (0, 2))  # history before, rows: requests of two pages and of one
CASE = case(SEGMENTS, 4, 2, 64, 11)
PAGES, ROOM = len(CASE.kpool), 16 * CASE.tables.shape[1]
EVERY = ["cpu", "simt", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=EVERY)
def anywhere(request):
    """Every device that is here."""
    return get(request.param)


class Watched:
    """A device that counts the arrays it reads back and refuses to launch."""

    def __init__(self, device, launches=False):
        self._device, self._launches, self.downloads = device, launches, 0

    def __getattr__(self, name):
        if name in ("call", "kernel") and not self._launches:
            raise AssertionError("launched")
        return getattr(self._device, name)

    def download(self, array):
        self.downloads += 1
        return self._device.download(array)


def call(device, variant="auto", plan=None, **changes):
    """`run` of SEGMENTS, with arrays or options changed; `out` starts as NaN."""
    arrays = {name: getattr(CASE, name) for name in ("q", "kpool", "vpool", "tables")}
    arrays["desc"] = CASE.packed.desc
    arrays |= {name: changes.pop(name) for name in tuple(changes) if name in arrays}
    on = [device.upload(np.ascontiguousarray(a)) for a in arrays.values()]
    out = device.upload(np.full(arrays["q"].shape, np.nan, np.float32))
    return run(device, *on, LAYER, 2, 64, variant, out, plan=plan, **changes)


def desc(row: int, column: int, value: int) -> dict:
    changed = CASE.packed.desc.copy()
    changed[row, column] = value
    return {"desc": changed}


def table(row: int, column: int, value: int) -> dict:
    changed = CASE.tables.copy()
    changed[row, column] = value
    return {"tables": changed}


NO_PAGES = {"kpool": CASE.kpool[:0], "vpool": CASE.vpool[:0]}
MALFORMED = {
    "no tables": ({"tables": np.zeros((0, 0), I32)}, r"tables has shape \(0, 0\); it must not be empty"),
    "no entries": ({"tables": np.zeros((2, 0), I32)}, r"tables has shape \(2, 0\); it must not be empty"),
    "no pages": (NO_PAGES, "is past the pool of 0 pages; every entry"),
    "page below the pool": (table(0, 1, -1), "segment 0: page -1 at entry 1 of table 0 is negative"),
    "page past the pool": (table(0, 0, PAGES), f"page {PAGES} at entry 0 of table 0 is past the pool"),
    "page far away": (table(1, 0, 2**31 - 1), "segment 1: page 2147483647 at entry 0 of table 1 is past"),
    "table below": (desc(1, 3, -1), "segment 1: table_index -1 is negative"),
    "table past": (desc(1, 3, 2), "segment 1: table_index 2 is past the 2 page tables"),
    "table far away": (desc(0, 3, 10**6), "segment 0: table_index 1000000 is past the 2 page tables"),
    "start below": (desc(0, 2, -1), "segment 0: absolute_start -1 is negative"),
    "start past the table": (desc(0, 2, ROOM), f"position end {ROOM + 3} is past the {ROOM} positions"),
    "start far away": (desc(0, 2, 10**9), "position end 1000000003 is past .* widen the tables or shorten"),
    "start overflows": (desc(0, 2, 2**31 - 2), r"absolute_start \+ chunk_len = 2147483649 overflows int32"),
    "rows overflow": (desc(0, 0, 2**31 - 2), r"packed_start \+ chunk_len = 2147483649 overflows int32"),
    "rows past q": (desc(1, 1, 3), "segment 1: packed rows end at 6, past the call's 5 rows; shorten"),
    "rows far past q": (desc(1, 1, 10**6), "segment 1: packed rows end at 1000003, past the call's 5 rows"),
    "rows below": (desc(1, 1, -1), "segment 1: chunk_len -1 is negative"),
    "rows before out": (desc(0, 0, -1), "segment 0: packed_start -1 is negative"),
    "rows of two": (desc(1, 0, 2), "segment 1: packed_start 2 overlaps rows before 3, which are segment 0's"),
    "no rows in q": ({"q": np.zeros((0, 4, 64), np.float32)}, "packed rows end at 3, past the call's 0 rows"),
    "capacity 0": ({"capacity": 0}, "capacity 0 must be at least 1"),
    "capacity -1": ({"capacity": -1}, "capacity -1 must be at least 1"),
    "capacity too large": ({"capacity": 1 << 40}, "capacity 1099511627776 must be at most 2147483647"),
    "longest 0": ({"longest": 0}, "longest 0 must be at least 1"),
    "longest -3": ({"longest": -3}, "longest -3 must be at least 1"),
    "longest too small": ({"longest": 2}, "longest 2 must be at least 3, the rows of the largest segment"),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_metadata_is_refused_before_anything_is_launched(anywhere, kind):
    changes, says = MALFORMED[kind]
    with pytest.raises(InputError, match=says) as found:
        call(Watched(anywhere), **changes)
    assert "\n" not in str(found.value) and len(str(found.value)) < 200


def test_the_call_that_those_are_made_from_would_launch(anywhere):
    with pytest.raises(AssertionError, match="launched"):
        call(Watched(anywhere))


def test_a_row_of_two_segments_runs_where_the_check_is_taken_out(anywhere, monkeypatch):
    monkeypatch.setattr(CHECK, lambda *arrays, **sizes: None)
    assert call(anywhere, variant="reference", **desc(1, 0, 2)).launch.variant == "reference"


RIGHT = {
    "segments in another order": lambda c: {"desc": c.packed.desc[::-1]},
    "rows without a segment": lambda c: {"q": np.concatenate([c.q, c.q])},
    "entries past the end": lambda c: {"tables": np.pad(c.tables, ((0, 0), (0, 2)), constant_values=-7)},
    "an empty segment of nonsense": lambda c: {
        "desc": np.insert(c.packed.desc, 1, np.array([-9, 0, 2**31 - 1, 77], I32), axis=0)
    },
    "pages of another request": lambda c: {
        "tables": np.concatenate([c.tables, c.tables]),
        "desc": c.packed.desc + np.array([0, 0, 0, 2], I32),
    },
    "extents that are too large": lambda c: {"capacity": 900, "longest": 1000},
}


@pytest.mark.parametrize("variant", ["auto", "reference", "exact-q4-k64"])
@pytest.mark.parametrize("kind", RIGHT)
def test_metadata_that_is_right_keeps_its_bits(anywhere, kind, variant):
    prepared, expected = made(get("cpu"), SEGMENTS, 2, 64)
    changes = RIGHT[kind](prepared.case)
    out = anywhere.download(call(anywhere, variant, **changes).out)
    assert_same_bits(expected, out[: len(expected)])
    assert np.isnan(out[len(expected) :]).all()


def test_segments_without_rows_launch_nothing_and_leave_out_alone(anywhere):
    for empty in (np.zeros((0, 4), I32), np.array([[9, 0, -1, 5]], I32)):
        result = call(Watched(anywhere), desc=empty)
        assert result.launch.reason == "nothing to launch"
        assert np.isnan(anywhere.download(result.out)).all()


def test_with_a_plan_nothing_is_read_back(anywhere):
    plan = plan_of(anywhere, CASE.packed.desc, 2)
    watched = Watched(anywhere, launches=True)
    call(watched, plan=plan)
    assert watched.downloads == 0
    call(watched)
    assert watched.downloads == 2


@pytest.mark.parametrize("name", EVERY)
def test_the_layers_of_a_model_do_not_check_again(name, monkeypatch):
    def refuse(*arrays, **sizes):
        raise AssertionError("checked")

    monkeypatch.setattr(CHECK, refuse)
    with pytest.raises(AssertionError, match="checked"):
        call(get(name))
    with Engine(tiny_model(name), Limits(pages=4)) as engine:
        assert engine.generate([[40, 41, 42]], max_tokens=2, ignore_eos=True)[0].tokens
