"""Refuse malformed K/V metadata on the host, before any device reads it.

Every rule raises InputError with one sentence that names the place, the value and the rule. The
checks are ordered so that each one may rely on those before it.
"""

import numpy as np

from crucible.errors import InputError
from crucible.numerics.checks import whole
from crucible.numerics.contract import PAGE_SIZE

_INT32_LIMIT = 1 << 31


def validate(
    desc, tables, *, num_pages: int, rows: int, capacity: int, page_size=PAGE_SIZE, owners=None, writes=True
) -> None:
    """Check a packed call against its page tables.

    desc int32 [S][4] = packed_start, chunk_len, absolute_start, table_index; tables int32
    [requests][stride]; `rows` packed rows; `capacity` the most positions a row may attend to;
    `owners` optionally int32 [num_pages], the table index that owns each page or -1 while free.
    Positions absolute_start .. absolute_start+chunk_len-1 are written, everything before is read;
    with writes=False all are only read, and the rules about writing do not apply.
    """
    for name, value in (("num_pages", num_pages), ("rows", rows), ("capacity", capacity)):
        if not 1 <= whole(name, value) < _INT32_LIMIT:
            raise InputError(f"{name} {value} must lie in 1..{_INT32_LIMIT - 1}")
    if page_size != PAGE_SIZE:
        raise InputError(f"page_size {page_size} must be {PAGE_SIZE}, the only one of this contract version")
    _array("desc", desc, (None, 4))
    _array("tables", tables, (None, None))
    start, length, absolute, table = np.ascontiguousarray(desc.T, np.int64)
    _extents(start, length, absolute, table, rows, capacity, tables.shape)
    if writes:
        _same_request(absolute, length, table)
    write_start = absolute if writes else np.full_like(absolute, _INT32_LIMIT)
    _pages(write_start, absolute + length, table, tables, num_pages, owners)


def segments(desc) -> tuple[np.ndarray, ...]:
    """packed_start, chunk_len, absolute_start, table_index int64 [S] of descriptors int32 [S][4].

    A segment of no rows gives zeros. InputError for a negative number, an end past int32, and a packed row
    of two segments.
    """
    held = desc[:, 1] != 0
    columns = np.where(held, desc.T, 0).astype(np.int64)
    start, length = columns[:2]
    if columns.min(initial=0) < 0 or columns.max(initial=0) >= _INT32_LIMIT // 2:  # else no sum overflows
        _numbers(*columns)
    order = np.flatnonzero(held)[np.argsort(start[held], kind="stable")]
    one, next_one = order[:-1], order[1:]
    clash = start[next_one] < start[one] + length[one]
    if clash.any():
        a, b = (int(x[np.argmax(clash)]) for x in (one, next_one))
        raise InputError(
            f"segment {b}: packed_start {start[b]} overlaps rows before {start[a] + length[a]}, which are "
            f"segment {a}'s; a row belongs to one segment"
        )
    return tuple(columns)


def validate_reads(desc, tables, *, num_pages: int, rows: int) -> None:
    """Check a packed call that only reads, as attention does, against its page tables.

    Arguments as in `validate`, NumPy arrays of those dtypes and ranks. Segments may come in any order, have
    no rows, leave rows of the call out and share pages. What a segment of no rows says is not looked at,
    nor is a table entry past a segment's end.
    """
    start, length, absolute, table = segments(desc)
    if not length.any():
        return
    _array("tables", tables, (None, None))
    requests, stride = tables.shape
    end = absolute + length
    _within(start + length, table, rows, requests)
    _room(end, stride * PAGE_SIZE)
    _in_pool(*_entries(end, table, tables), table, num_pages)


def _array(name: str, array, shape: tuple) -> None:
    wanted = "][".join("any" if n is None else str(n) for n in shape)
    if not isinstance(array, np.ndarray):
        raise InputError(f"{name} is {type(array).__name__}; it must be a NumPy array on the host")
    if array.dtype != np.int32:
        raise InputError(f"{name} has dtype {array.dtype}; it must be int32")
    if array.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, array.shape, strict=True)):
        raise InputError(f"{name} has shape {array.shape}; it must be [{wanted}]")
    if not array.size:
        raise InputError(f"{name} has shape {array.shape}; it must not be empty")
    if not array.flags.c_contiguous:
        raise InputError(f"{name} of shape {array.shape} is not C-contiguous; copy it first")


def _refuse(bad: np.ndarray, message) -> None:
    """Raise for the first true entry; `message(i)` is only built then."""
    if bad.any():
        i = int(np.argmax(bad))
        raise InputError(f"segment {i}: {message(i)}")


def _extents(start, length, absolute, table, rows, capacity, table_shape) -> None:
    requests, stride = table_shape
    packed_end, end, room = start + length, absolute + length, stride * PAGE_SIZE
    # One pass says whether anything is wrong; only then is the first broken rule looked for.
    ends = [0, *packed_end.tolist()]
    if (
        start.tolist() == ends[:-1]
        and ends[-1] == rows
        and length.min() > 0
        and absolute.min() >= 0
        and table.min() >= 0
        and table.max() < requests
        and end.max() <= min(capacity, room)
    ):
        return
    _numbers(start, length, absolute, table)
    _refuse(length == 0, lambda i: "chunk_len 0 is empty; leave the segment out")
    _within(packed_end, table, rows, requests)
    previous = np.concatenate([[0], packed_end[:-1]])
    earlier = np.concatenate([[-1], start[:-1]])
    _refuse(start <= earlier, lambda i: f"packed_start {start[i]} does not ascend from {earlier[i]}")
    _refuse(start < previous, lambda i: f"packed_start {start[i]} overlaps rows before {previous[i]}")
    _refuse(start > previous, lambda i: f"packed_start {start[i]} skips rows from {previous[i]} on")
    if packed_end[-1] != rows:
        raise InputError(f"segments end at row {packed_end[-1]}; they must cover all {rows} rows of the call")
    _refuse(end > capacity, lambda i: f"position end {end[i]} is past the capacity of {capacity} positions")
    _room(end, room)


def _numbers(start, length, absolute, table) -> None:
    """No number is negative, no end passes int32."""
    _refuse(length < 0, lambda i: f"chunk_len {length[i]} is negative; it must be at least 1")
    _refuse(start < 0, lambda i: f"packed_start {start[i]} is negative; it must be 0 or more")
    _refuse(absolute < 0, lambda i: f"absolute_start {absolute[i]} is negative; it must be 0 or more")
    _refuse(table < 0, lambda i: f"table_index {table[i]} is negative; it must be 0 or more")
    for name, value in (("packed_start", start + length), ("absolute_start", absolute + length)):
        _refuse(
            value >= _INT32_LIMIT,
            lambda i, name=name, value=value: (
                f"{name} + chunk_len = {value[i]} overflows int32; keep it below {_INT32_LIMIT}"
            ),
        )


def _within(packed_end, table, rows, requests) -> None:
    """Every table exists, every packed row too."""
    _refuse(table >= requests, lambda i: f"table_index {table[i]} is past the {requests} page tables")
    _refuse(
        packed_end > rows,
        lambda i: f"packed rows end at {packed_end[i]}, past the call's {rows} rows; shorten the segment",
    )


def _room(end, room) -> None:
    _refuse(
        end > room,
        lambda i: (
            f"position end {end[i]} is past the {room} positions of a page table; "
            "widen the tables or shorten the history"
        ),
    )


def _same_request(absolute, length, table) -> None:
    """One position of a request may be written once in a call."""
    if len(set(table.tolist())) == table.size:
        return
    order = np.lexsort((absolute, table))
    end = absolute + length
    one, next_one = order[:-1], order[1:]
    clash = (table[one] == table[next_one]) & (end[one] > absolute[next_one])
    if clash.any():
        i = int(np.argmax(clash))
        a, b = int(one[i]), int(next_one[i])
        raise InputError(
            f"segment {b}: position {absolute[b]} of request {table[b]} is written by segment {a} too; "
            "slices of one request must not overlap"
        )


def _pages(write_start, end, table, tables, num_pages, owners) -> None:
    pages, segment, count = _entries(end, table, tables)
    _in_pool(pages, segment, count, table, num_pages)
    if np.bincount(pages, minlength=num_pages).max() > 1:
        entry, written = _written(segment, count, write_start)
        _shared(pages, entry, written, table[segment])
    if owners is not None:
        _owned(pages, segment, count, table, write_start, num_pages, owners)


def _entries(end, table, tables):
    """(page, its segment) of every table entry that a segment uses, and the entries of each segment."""
    count = (end + PAGE_SIZE - 1) // PAGE_SIZE
    pages = np.concatenate([tables[i, :n] for i, n in zip(table.tolist(), count.tolist(), strict=True)])
    return pages, np.repeat(np.arange(table.size), count), count


def _in_pool(pages, segment, count, table, num_pages) -> None:
    if pages.min() >= 0 and pages.max() < num_pages:
        return
    i = int(np.argmax((pages < 0) | (pages >= num_pages)))
    rule = "is negative" if pages[i] < 0 else f"is past the pool of {num_pages} pages"
    raise InputError(
        f"{_place(i, segment, count, table, pages)} {rule}; every entry up to the end must be in the pool"
    )


def _place(i: int, segment, count, table, pages) -> str:
    at = int(segment[i])
    entry = i - int(count[:at].sum())
    return f"segment {at}: page {pages[i]} at entry {entry} of table {table[at]}"


def _written(segment, count, write_start):
    """(entry of its table, whether its segment writes it) of every page entry."""
    entry = np.arange(segment.size) - (np.cumsum(count) - count)[segment]
    return entry, (entry + 1) * PAGE_SIZE > write_start[segment]


def _shared(page, entry, written, request) -> None:
    """A page occurs once in a request; a page that is written belongs to one request only."""
    order = np.lexsort((entry, request, page))
    page, request, entry, written = (a[order] for a in (page, request, entry, written))
    same_page = page[1:] == page[:-1]
    same_request = request[1:] == request[:-1]
    twice = same_page & same_request & (entry[1:] != entry[:-1])
    if twice.any():
        i = int(np.argmax(twice))
        raise InputError(
            f"page {page[i]} stands at entries {entry[i]} and {entry[i + 1]} of table {request[i]}; "
            "a page holds one range of positions"
        )
    # Sorted by page, so a page of several requests shows as a change of request within it.
    several = page[1:][same_page & ~same_request]
    for clash in np.intersect1d(several, page[written]).tolist()[:1]:
        users = np.unique(request[page == clash])
        raise InputError(
            f"page {clash} is written while tables {users[0]} and {users[1]} both own it; "
            "only full pages that nobody writes may be shared"
        )


def _owned(pages, segment, count, table, write_start, num_pages, owners) -> None:
    _array("owners", owners, (None,))
    if owners.size != num_pages:
        raise InputError(f"owners has {owners.size} entries; it must have one for each of {num_pages} pages")
    owner = owners[pages]
    foreign = owner != table[segment]
    if not foreign.any():
        return
    if (owner < 0).any():
        place = _place(int(np.argmax(owner < 0)), segment, count, table, pages)
        raise InputError(f"{place} is free; allocate it before it is read or written")
    foreign &= _written(segment, count, write_start)[1]
    if foreign.any():
        i = int(np.argmax(foreign))
        place = _place(i, segment, count, table, pages)
        raise InputError(f"{place} belongs to table {owner[i]}; only its owner may write it")
