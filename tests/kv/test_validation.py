"""Each kind of malformed metadata is refused on the host by a sentence of its own; valid metadata passes."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crucible.errors import InputError
from crucible.kv.pool import PagePool
from crucible.kv.slices import Slice, pack
from crucible.kv.table import PageTables
from crucible.kv.validation import validate, validate_reads

VECTORS = Path(__file__).parent.parent / "vectors"


def good() -> dict:
    """Three segments over three tables of four pages: a chunk, a decode, a prompt from 0."""
    return {
        "desc": np.array([[0, 5, 20, 1], [5, 1, 31, 0], [6, 17, 0, 2]], np.int32),
        "tables": np.array([[9, 2, -1, -1], [4, 5, -1, -1], [0, 7, -1, -1]], np.int32),
        "num_pages": 10,
        "rows": 23,
        "capacity": 64,
        "owners": np.array([2, -1, 0, -1, 1, 1, -1, 2, -1, 0], np.int32),
    }


def desc(row, column, value):
    def change(call):
        call["desc"][row, column] = value

    return change


def table(row, column, value):
    def change(call):
        call["tables"][row, column] = value

    return change


def put(key, value):
    def change(call):
        call[key] = value(call[key]) if callable(value) else value

    return change


def both(*changes):
    def change(call):
        for one in changes:
            one(call)

    return change


# kind: (what is broken, what the sentence must name)
MALFORMED = {
    "desc not an array": (put("desc", lambda d: d.tolist()), "desc is list; it must be a NumPy array"),
    "desc dtype": (put("desc", lambda d: d.astype(np.int64)), "desc has dtype int64; it must be int32"),
    "desc float": (put("desc", lambda d: d.astype(np.float32)), "desc has dtype float32"),
    "desc columns": (
        put("desc", lambda d: d[:, :3].copy()),
        r"shape \(3, 3\); it must be \[any\]\[4\]",
    ),
    "desc rank": (put("desc", lambda d: d[0].copy()), r"desc has shape \(4,\)"),
    "desc empty": (put("desc", lambda d: d[:0].copy()), r"desc has shape \(0, 4\); it must not be empty"),
    "desc layout": (put("desc", np.asfortranarray), "desc of shape .* not C-contiguous"),
    "tables dtype": (put("tables", lambda t: t.astype(np.uint32)), "tables has dtype uint32"),
    "tables rank": (put("tables", lambda t: t.reshape(-1)), r"tables has shape \(12,\)"),
    "tables empty": (put("tables", lambda t: t[:, :0].copy()), "tables has shape .* must not be empty"),
    "tables layout": (put("tables", np.asfortranarray), "tables of shape .* not C-contiguous"),
    "rows not positive": (put("rows", 0), "rows 0 must lie in 1.."),
    "pool not positive": (put("num_pages", 0), "num_pages 0 must lie in 1.."),
    "capacity not positive": (put("capacity", -64), "capacity -64 must lie in 1.."),
    "page size": (put("page_size", 32), "page_size 32 must be 16"),
    "negative length": (desc(1, 1, -1), "segment 1: chunk_len -1 is negative"),
    "zero length": (desc(1, 1, 0), "segment 1: chunk_len 0 is empty"),
    "negative packed start": (desc(0, 0, -1), "segment 0: packed_start -1 is negative"),
    "negative position": (desc(2, 2, -16), "segment 2: absolute_start -16 is negative"),
    "negative table": (desc(1, 3, -1), "segment 1: table_index -1 is negative"),
    "table out of range": (desc(1, 3, 3), "segment 1: table_index 3 is past the 3 page tables"),
    "packed overflow": (
        desc(2, 0, 2**31 - 5),
        r"packed_start \+ chunk_len = 2147483660 overflows",
    ),
    "position overflow": (
        desc(1, 2, 2**31 - 1),
        r"absolute_start \+ chunk_len = 2147483648 overflows",
    ),
    "rows past the call": (desc(2, 1, 18), "segment 2: packed rows end at 24, past the call's 23 rows"),
    "rows uncovered at the end": (desc(2, 1, 16), "segments end at row 22; they must cover all 23 rows"),
    "starts not ascending": (desc(1, 0, 0), "segment 1: packed_start 0 does not ascend from 0"),
    "rows overlap": (desc(1, 0, 4), "segment 1: packed_start 4 overlaps rows before 5"),
    "rows skipped": (both(desc(0, 1, 4)), "segment 1: packed_start 5 skips rows from 4 on"),
    "first row not 0": (both(desc(0, 0, 1), desc(0, 1, 4)), "segment 0: packed_start 1 skips rows from 0 on"),
    "past capacity": (put("capacity", 31), "segment 1: position end 32 is past the capacity of 31 positions"),
    "past the table": (
        both(desc(1, 2, 64), put("capacity", 99)),
        "position end 65 is past the 64 positions",
    ),
    "negative page": (table(0, 1, -1), "segment 1: page -1 at entry 1 of table 0 is negative"),
    "page past the pool": (
        table(1, 0, 10),
        "page 10 at entry 0 of table 1 is past the pool of 10",
    ),
    "page twice in one table": (table(1, 0, 5), "page 5 stands at entries 0 and 1 of table 1"),
    "page owned twice": (table(2, 1, 2), "page 2 is written while tables 0 and 2 both own it"),
    "written page read by another": (table(0, 0, 7), "page 7 is written while tables 0 and 2 both own it"),
    "positions overlap": (
        both(desc(1, 3, 1), desc(1, 2, 24)),
        "segment 1: position 24 of request 1 is written by segment 0 too",
    ),
    "owners dtype": (put("owners", lambda o: o.astype(np.int64)), "owners has dtype int64"),
    "owners size": (
        put("owners", lambda o: o[:9].copy()),
        "owners has 9 entries; .* each of 10",
    ),
    "free page written": (table(0, 1, 1), "segment 1: page 1 at entry 1 of table 0 is free"),
    "free page read": (table(0, 0, 3), "segment 1: page 3 at entry 0 of table 0 is free"),
    "another owner's page written": (
        put("owners", lambda o: np.where(o == 2, 1, o).astype(np.int32)),
        "segment 2: page 0 at entry 0 of table 2 belongs to table 1; only its owner may write it",
    ),
}


def test_there_are_at_least_twenty_kinds():
    assert len(MALFORMED) >= 20


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_metadata_is_refused(kind):
    change, named = MALFORMED[kind]
    call = good()
    change(call)
    with pytest.raises(InputError, match=named):
        validate(**call)


def test_the_valid_call_passes_with_and_without_owners():
    validate(**good())
    validate(**good() | {"owners": None})


def test_entries_past_the_end_are_never_looked_at():
    call = good()
    call["tables"][:, 2:] = 10**9
    validate(**call)


def test_full_pages_may_be_shared_while_nobody_writes_them():
    call = good() | {"owners": None}
    call["tables"][0, 0] = 4  # request 0 reads the first page of request 1, both write their second
    validate(**call)


# What a call that only reads, by descriptors of any order, is free to do.
FREE = (
    *("zero length", "rows uncovered at the end", "rows skipped", "first row not 0", "past capacity"),
    *("page twice in one table", "page owned twice", "written page read by another", "positions overlap"),
)
READS = (
    *("tables empty", "negative length", "negative packed start", "negative position", "negative table"),
    *("table out of range", "packed overflow", "position overflow", "rows past the call"),
    *("past the table", "negative page", "page past the pool"),
)


def reading(kind: str) -> dict:
    """A malformed call as `validate_reads` is given it."""
    call = good()
    MALFORMED[kind][0](call)
    return {name: call[name] for name in ("desc", "tables", "num_pages", "rows")}


@pytest.mark.parametrize("kind", READS)
def test_a_call_that_only_reads_is_refused_by_the_same_sentence(kind):
    with pytest.raises(InputError, match=MALFORMED[kind][1]):
        validate_reads(**reading(kind))


@pytest.mark.parametrize("kind", FREE)
def test_a_call_that_only_reads_may_do_what_harms_no_reader(kind):
    validate_reads(**reading(kind))


def test_a_packed_row_has_one_segment_in_whatever_order_they_come():
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        call = reading("rows overlap")
        call["desc"] = call["desc"][list(order)]
        with pytest.raises(InputError, match=r"packed_start 4 overlaps rows before 5.* one segment"):
            validate_reads(**call)


def test_entries_of_a_segment_without_rows_are_never_looked_at():
    call = reading("zero length")
    call["desc"][1] = -5, 0, -5, 99
    validate_reads(**call)
    call["desc"][1, 1] = 1
    with pytest.raises(InputError, match="segment 1: packed_start -5 is negative"):
        validate_reads(**call)


@pytest.mark.parametrize("name", ["attention_g3_d64", "attention_long_g3_d64", "attention_subnormal_g8_d128"])
def test_read_only_calls_may_share_every_page(name):
    z = np.load(VECTORS / f"{name}.npz")
    for suffix in ("", "chunk_"):
        if f"{suffix}desc" in z:
            call = {"num_pages": z["kpool"].shape[0], "rows": z[f"{suffix}q"].shape[0], "capacity": 1024}
            validate(z[f"{suffix}desc"], z["tables"], **call, writes=False)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=6),
    st.integers(0, 2**32 - 1),
)
def test_whatever_the_pool_and_packing_give_is_valid(extents, seed):
    stride, num_pages = 8, 6 * 8
    pool = PagePool(num_pages, np.random.default_rng(seed).permutation(num_pages))
    tables = PageTables(len(extents), stride)
    owners = np.full(num_pages, -1, np.int32)
    for i, (start, length) in enumerate(extents):
        pages = pool.allocate(-(-(start + length) // 16), i)
        tables.set(i, pages)
        owners[pages] = i
    packed = pack([Slice(i, start, length) for i, (start, length) in enumerate(extents)])
    call = {"num_pages": num_pages, "rows": packed.rows, "capacity": 128, "owners": owners}
    validate(packed.desc, tables.array, **call)
    validate_reads(packed.desc[::-1], tables.array, num_pages=num_pages, rows=packed.rows)
