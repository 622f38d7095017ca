"""Work items of a packed batch for the fast attention kernels: made once a batch, used by every layer."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from crucible.device.checks import expect
from crucible.errors import InputError
from crucible.kv.validation import segments
from crucible.numerics.checks import whole
from crucible.numerics.contract import PAGE_SIZE

ITEM_ROWS = 255  # an item keeps its row count in 8 bits
NEEDS = ("packed rows", "page tables", "entries of a page table")  # of Plan.needs


def tiles(desc: np.ndarray, rows: int, Hkv: int) -> np.ndarray:
    """int32 [n][4] items of up to `rows` adjacent rows of one segment and one KV head, longest history first.

    desc int32 [S][4] on the host. An item is first packed row, rows + 256 * KV head, history length of
    its first row, table index (struct Item of attention_fast.cuh). InputError for a row count out of range.
    """
    if not 1 <= rows <= ITEM_ROWS:
        raise InputError(f"a tile of {rows} rows does not fit an item; take 1 to {ITEM_ROWS}")
    start, length, absolute, table = np.asarray(desc, np.int64).reshape(-1, 4).T
    counts = -(-length // rows)
    before = np.cumsum(counts) - counts
    segment = np.repeat(np.arange(counts.size), counts)
    begin = (np.arange(segment.size) - before[segment]) * rows
    taken = np.minimum(rows, length[segment] - begin)
    first = absolute[segment] + begin
    order = np.argsort(-(first + taken), kind="stable")
    segment, begin = segment[order], begin[order]
    items = np.empty((segment.size, Hkv, 4), np.int32)
    items[:, :, 0] = (start[segment] + begin)[:, None]
    items[:, :, 1] = taken[order][:, None] + 256 * np.arange(Hkv)
    items[:, :, 2] = (first[order] + 1)[:, None]
    items[:, :, 3] = table[segment][:, None]
    return items.reshape(-1, 4)


def in_waves(items: np.ndarray, slots: int, resident: int) -> np.ndarray:
    """Items (longest first) in the order that balances `slots` multiprocessors of `resident` blocks each.

    The first slots * resident blocks are placed in waves over the multiprocessors, so every second wave is
    reversed: a long item shares with a short one. The rest follow longest first, as places come free.
    """
    waved = items.copy()
    for first in range(slots, min(slots * resident, len(items)), 2 * slots):
        waved[first : first + slots] = items[first : first + slots][::-1]
    return waved


@dataclass(eq=False)
class Plan:
    """Items and scratch memory of one packed batch on one device; kept as long as launches use it.

    `desc` int32 [S][4] is the host's copy. Device arrays are made at their first use: warm a plan up
    (launch once) before a graph captures it.
    """

    device: object
    desc: np.ndarray
    Hkv: int
    _made: dict = field(default_factory=dict, repr=False)

    @property
    def end(self) -> int:
        """Largest absolute_start + chunk_len: the capacity that every row's history fits."""
        _, length, start, _ = self.desc.T
        return int((start + length)[length > 0].max())

    @property
    def longest_chunk(self) -> int:
        """Rows of the largest segment."""
        return int(self.desc[:, 1].max())

    @property
    def rows(self) -> int:
        """Rows of all segments together."""
        return int(self.desc[:, 1].sum())

    @property
    def needs(self) -> tuple[int, int, int]:
        """Packed rows, page tables and entries of a table that a call must have for these descriptors."""

        def make():
            start, length, absolute, table = self.desc[self.desc[:, 1] > 0].T
            entries = -(-(absolute + length).max() // PAGE_SIZE)
            return int((start + length).max()), int(table.max()) + 1, int(entries)

        return self.once("needs", make)

    @property
    def mean(self) -> int:
        """Mean history length of a row, rounded to the nearest integer."""
        _, length, start, _ = self.desc.astype(np.int64).T
        return round(int((length * start + length * (length + 1) // 2).sum()) / self.rows)

    def once(self, key, make: Callable):
        """`make()`, remembered under `key` for the life of the plan."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def items(self, rows: int, slots: int = 1, resident: int = 1):
        """Device array of `tiles(...)` in the order of `in_waves`."""

        def make():
            return self.device.upload(in_waves(tiles(self.desc, rows, self.Hkv), slots, resident))

        return self.once(("items", rows, slots, resident), make)

    def scratch(self, name: str, floats: int):
        """Uninitialised f32 device memory of at least `floats`, the same at every call."""
        held = self._made.get(("scratch", name))
        if held is None or held.size < floats:
            held = self._made["scratch", name] = self.device.empty((floats,))
        return held


def plan_of(device, desc, Hkv: int) -> Plan:
    """The plan of descriptors int32 [S][4] on the host (NumPy) or on the device, which is then read back.

    Hkv is the number of KV heads. InputError for what is no such array, for a negative number, for a packed
    row of two segments and for descriptors without rows.
    """
    expect("desc", desc, np.int32, (None, 4))
    host = np.array(desc if isinstance(desc, np.ndarray) else device.download(desc))
    segments(host)
    if not host[:, 1].any():
        raise InputError("a plan needs at least one segment with rows")
    return Plan(device, host, whole("Hkv", Hkv, 1))


def check_plan(plan, device, p) -> None:
    """InputError where `plan` cannot be one of Problem `p` on `device`.

    Only what costs next to nothing is compared. That it was made of p's descriptors is the caller's word.
    """
    made = "make it with crucible.attention.plan.plan_of"
    if not isinstance(plan, Plan):
        raise InputError(f"plan is {type(plan).__name__}; {made}")
    if plan.device.name != device.name:
        raise InputError(f"plan is one of device {plan.device.name}, not of {device.name}; {made} there")
    if plan.Hkv != p.Hkv:
        raise InputError(f"plan has items for {plan.Hkv} KV heads, not for {p.Hkv}; {made} for this call")
    if len(plan.desc) != p.S:
        raise InputError(f"plan is of {len(plan.desc)} segments, not of {p.S}; {made} of this call's desc")
    for need, have, what in zip(plan.needs, (p.T, *p.tables.shape), NEEDS, strict=True):
        if need > have:
            raise InputError(f"plan needs {need} {what}, the call has {have}; {made} of this call's desc")
