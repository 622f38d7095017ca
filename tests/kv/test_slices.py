"""Packing keeps every slice's positions in order, and page tables hold what was set."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crucible.errors import InputError
from crucible.kv.slices import Slice, pack
from crucible.kv.table import NO_PAGE, PageTables

slices = st.lists(
    st.builds(Slice, st.integers(0, 9), st.integers(0, 5000), st.integers(1, 40)), min_size=1, max_size=12
)


@given(slices)
def test_rows_are_the_slices_one_after_another(chosen):
    packed = pack(chosen)
    expected = [(i, s.start + j) for i, s in enumerate(chosen) for j in range(s.length)]
    assert list(zip(packed.row_segment.tolist(), packed.positions.tolist(), strict=True)) == expected
    assert packed.rows == len(expected) and packed.max_end == max(s.start + s.length for s in chosen)
    first = 0
    for row, s in zip(packed.desc.tolist(), chosen, strict=True):
        assert row == [first, s.length, s.start, s.table_index]
        first += s.length
    for array in (packed.desc, packed.positions, packed.row_segment):
        assert array.dtype == np.int32 and array.flags.c_contiguous


@pytest.mark.parametrize(
    "action, named",
    [
        (lambda: pack([]), "nothing to pack"),
        (lambda: Slice(-1, 0, 1), "table_index -1"),
        (lambda: Slice(0, -1, 1), "start -1"),
        (lambda: Slice(0, 0, 0), "length 0"),
        (lambda: Slice(0, 2**31 - 2, 2), "slice end 2147483648"),
        (lambda: pack([Slice(0, 0, 2**30)] * 2), "2147483648 packed rows"),
        (lambda: PageTables(0, 4), r"\[0\]\[4\]"),
        (lambda: PageTables(2, 2).set(2, [0]), "request 2 is outside"),
        (lambda: PageTables(2, 2).set(0, [0, 1, 2]), "3 pages exceed the 2"),
        (lambda: PageTables(2, 2).set(0, [-3]), "page -3"),
        (lambda: PageTables(2, 2).clear(-1), "request -1"),
    ],
)
def test_bad_values_are_named(action, named):
    with pytest.raises(InputError, match=named):
        action()


def test_a_table_row_is_replaced_as_a_whole():
    tables = PageTables(2, 4)
    tables.set(1, [7, 5, 6])
    tables.set(1, [3])
    assert tables.array.tolist() == [[NO_PAGE] * 4, [3] + [NO_PAGE] * 3]
    tables.clear(1)
    assert (tables.array == NO_PAGE).all()
