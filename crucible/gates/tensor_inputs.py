"""Arrays of a tensor-gate case: paged K/V with NaN wherever no row may look, and its transformations."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from crucible.gates import tensor_contents
from crucible.gates.tensor_cases import Plan, resplit
from crucible.kv.slices import Slice, pack
from crucible.numerics import inputs
from crucible.numerics.contract import PAGE_SIZE

LAYERS, LAYER = 3, 1
TRAP = 0  # a physical page that no request owns; unused table entries point there
_QUERY, _KEY, _VALUE, _PAGES = range(4)
_MASTER = 1 << 21


@dataclass(frozen=True)
class Case:
    """Inputs of one attention call on the host.

    q f32 [T][Hq][D]; kpool, vpool f32 [pages][3][16][Hkv*D]; tables int32 [requests][stride]; desc
    int32 [S][4]; k, v f32 [T][Hkv*D] are the packed rows' own K and V. Layer 1 holds the data.
    """

    plan: Plan
    q: np.ndarray
    kpool: np.ndarray
    vpool: np.ndarray
    tables: np.ndarray
    desc: np.ndarray
    positions: np.ndarray
    k: np.ndarray
    v: np.ndarray

    @property
    def capacity(self) -> int:
        return int((self.desc[:, 1] + self.desc[:, 2]).max())

    @property
    def longest(self) -> int:
        return int(self.desc[:, 1].max())

    def on(self, device) -> tuple[tuple, dict]:
        """Arguments of crucible.attention.run.run in the device's memory: (positional, keyword)."""
        arrays = (device.upload(a) for a in (self.q, self.kpool, self.vpool, self.tables, self.desc))
        geometry = self.plan.geometry
        extents = {"capacity": self.capacity, "longest": self.longest}
        rows = {"k": device.upload(self.k), "v": device.upload(self.v)}
        return (*arrays, LAYER, geometry.Hkv, geometry.D), {**extents, **rows}


@functools.cache
def _master() -> np.ndarray:
    return inputs.normalish(20260908, 0, (_MASTER,))


def _window(seed: int, stream: int, shape: tuple[int, ...]) -> np.ndarray:
    """f32 of `shape` from the master's ring of numbers, at a place that the seed and stream decide."""
    n = int(np.prod(shape))
    start = int(inputs.bits(seed, stream, 1)[0]) % _MASTER
    ring = _master()
    part = ring[start : start + n]
    if part.size < n:
        part = np.concatenate([part, np.resize(ring, n - part.size)])
    return part.reshape(shape).copy()


def make(plan: Plan) -> Case:
    """The arrays of a plan, a pure function of it."""
    geometry, packed = plan.geometry, pack(plan.slices)
    Hkv, D = geometry.Hkv, geometry.D
    requests = 1 + max(s.table_index for s in plan.slices)
    ends = [max(s.start + s.length for s in plan.slices if s.table_index == r) for r in range(requests)]
    counts = [-(-end // PAGE_SIZE) for end in ends]
    tables = _tables(plan, counts)
    q = _window(plan.seed, _QUERY, (packed.rows, geometry.G * Hkv, D))
    keys = [_window(plan.seed, _KEY + 4 * r + 4, (end, Hkv, D)) for r, end in enumerate(ends)]
    values = [_window(plan.seed, _VALUE + 4 * r + 4, (end, Hkv, D)) for r, end in enumerate(ends)]
    tensor_contents.fill(plan, q, keys, values)
    pages = 2 + sum(counts) + 2
    kpool = np.full((pages, LAYERS, PAGE_SIZE, Hkv * D), np.nan, np.float32)
    vpool = np.full_like(kpool, np.nan)
    for r, end in enumerate(ends):
        at = np.arange(end)
        where = (tables[r, at // PAGE_SIZE], LAYER, at % PAGE_SIZE)
        kpool[where], vpool[where] = keys[r].reshape(end, -1), values[r].reshape(end, -1)
    case = Case(plan, q, kpool, vpool, tables, packed.desc, packed.positions, q, q)
    return with_rows(case)


def _tables(plan: Plan, counts: list[int]) -> np.ndarray:
    stride = max(counts) + 1 + plan.geometry.spare
    tables = np.full((len(counts), stride), TRAP, np.int32)
    if plan.adjacent:  # request r takes every requests-th page, so that neighbours' pages touch
        free = list(range(1, 1 + sum(counts)))
        for i in range(max(counts)):
            for r, count in enumerate(counts):
                if i < count:
                    tables[r, i] = free.pop(0)
        return tables
    words = inputs.bits(plan.seed, _PAGES, 1 + sum(counts) + 2)
    order = iter((1 + np.argsort(words, kind="stable")).tolist())
    for r, count in enumerate(counts):
        tables[r, :count] = [next(order) for _ in range(count)]
    return tables


def with_rows(case: Case) -> Case:
    """The case with k and v gathered anew from its pools."""
    request = np.repeat(case.desc[:, 3], case.desc[:, 1])
    where = (case.tables[request, case.positions // PAGE_SIZE], LAYER, case.positions % PAGE_SIZE)
    return replace(case, k=case.kpool[where], v=case.vpool[where])


def remapped(case: Case) -> Case:
    """Every physical page moved somewhere else, the pool one page larger."""
    words = inputs.bits(case.plan.seed, 99, len(case.kpool) + 1)
    order = np.argsort(words, kind="stable")  # old page of each new one; the last old page is new
    return _moved(case, order)


def contiguous(case: Case) -> Case:
    """Contiguous storage: request after request, position after position, under an identity page table."""
    used = [case.tables[r, : -(-end // PAGE_SIZE)] for r, end in enumerate(_ends(case))]
    order = np.concatenate(used)
    rest = np.setdiff1d(np.arange(len(case.kpool) + 1), order)
    return _moved(case, np.concatenate([order, rest]))


def _moved(case: Case, order: np.ndarray) -> Case:
    pools = []
    for pool in (case.kpool, case.vpool):
        larger = np.concatenate([pool, np.full_like(pool[:1], np.nan)])
        pools.append(np.ascontiguousarray(larger[order]))
    tables = np.argsort(order)[case.tables].astype(np.int32)
    return replace(case, kpool=pools[0], vpool=pools[1], tables=tables)


def repacked(case: Case, slices: Sequence[Slice], rows: np.ndarray) -> Case:
    """The given slices of the case's requests; `rows` are the case's packed rows in the new order."""
    packed = pack(slices)
    arrays = {name: np.ascontiguousarray(getattr(case, name)[rows]) for name in ("q", "k", "v")}
    return replace(case, desc=packed.desc, positions=packed.positions, **arrays)


def split(case: Case) -> Case:
    """The same rows with every slice cut in two."""
    return repacked(case, resplit(case.plan).slices, np.arange(len(case.q)))


def _ends(case: Case) -> list[int]:
    ends = case.desc[:, 1] + case.desc[:, 2]
    return [int(ends[case.desc[:, 3] == r].max()) for r in range(len(case.tables))]


def visible(case: Case) -> np.ndarray:
    """bool [pages][16]: slots that some row may read."""
    seen = np.zeros((len(case.kpool), PAGE_SIZE), bool)
    for r, end in enumerate(_ends(case)):
        at = np.arange(end)
        seen[case.tables[r, at // PAGE_SIZE], at % PAGE_SIZE] = True
    return seen


def harmless(case: Case) -> Case:
    """The case with 7 instead of NaN wherever no row may look: the base that poison is compared with."""
    fill = np.float32(7)
    pools = [np.where(np.isnan(pool), fill, pool) for pool in (case.kpool, case.vpool)]
    return replace(case, kpool=pools[0], vpool=pools[1])


def poisoned(case: Case, kind: str) -> tuple[Case, np.ndarray]:
    """A harmless case with NaN planted, and bool [T]: rows that must keep their bits (others turn NaN).

    later: one key in the middle of the longest slice; slots: unused slots of owned pages; pages:
    pages that no request owns; layers: the other layers of every page.
    """
    kpool, vpool = case.kpool.copy(), case.vpool.copy()
    keep = np.ones(len(case.q), bool)
    seen = visible(case)
    owned = seen.any(axis=1)
    if kind == "later":
        start, length, absolute, request = case.desc[int(np.argmax(case.desc[:, 1]))].tolist()
        row = start + length // 2
        p = absolute + length // 2
        where = (case.tables[request, p // PAGE_SIZE], LAYER, p % PAGE_SIZE)
        kpool[where] = vpool[where] = np.nan
        keep[row : start + length] = False
    for pool in (kpool, vpool):
        if kind == "slots":
            pool[:, LAYER][owned[:, None] & ~seen] = np.nan
        elif kind == "pages":
            pool[~owned] = np.nan
        elif kind == "layers":
            pool[:, [n for n in range(LAYERS) if n != LAYER]] = np.nan
    return with_rows(replace(case, kpool=kpool, vpool=vpool)), keep


POISONS = ("later", "slots", "pages", "layers")


def float64_rows(case: Case, samples: Sequence[tuple[int, int]]) -> np.ndarray:
    """Attention of sampled (row, head) pairs in f64, by the textbook formula -> f64 [samples][D]."""
    geometry, out = case.plan.geometry, []
    request = np.repeat(case.desc[:, 3], case.desc[:, 1])
    for row, head in samples:
        at = np.arange(case.positions[row] + 1)
        where = (case.tables[request[row], at // PAGE_SIZE], LAYER, at % PAGE_SIZE)
        columns = slice(head // geometry.G * geometry.D, (head // geometry.G + 1) * geometry.D)
        k, v = (pool[where][:, columns].astype(np.float64) for pool in (case.kpool, case.vpool))
        s = k @ case.q[row, head].astype(np.float64) / np.sqrt(geometry.D)
        e = np.exp(s - s.max())
        out.append(e @ v / e.sum())
    return np.array(out)
