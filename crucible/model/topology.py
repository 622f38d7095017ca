"""What of a packed batch decides the grids of its launches, and the attention work of such a batch."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crucible.attention.plan import Plan, in_waves, tiles
from crucible.attention.run import VARIANTS, Launch, Problem, choose
from crucible.device.dry import Dry
from crucible.device.scratch import Scratch
from crucible.model.cache import KVCache
from crucible.model.config import ModelConfig
from crucible.numerics.contract import PAGE_SIZE

_LEAST = 64  # positions of the smallest capacity bucket


def decode_capacity(end: int) -> int:
    """The bucket of a decode step: the power of two from 64 on that holds `end` positions."""
    return max(_LEAST, 1 << (end - 1).bit_length())


def prefill_capacity(end: int) -> int:
    """The bucket of a prefill: `end` rounded up to a multiple of 64, or of an eighth of a power of two."""
    step = max(_LEAST, 1 << max(end.bit_length() - 3, 0))
    return -(-end // step) * step


@dataclass(frozen=True)
class Topology:
    """A batch without its data: all that is here may be built into a captured graph.

    kind: decode (a row a segment), single (one segment) or packed; lengths: of the segments, sorted,
    empty for decode; wanted: rows with logits; gather: whether they are gathered; capacity: score
    capacity; mean: about the mean history of a row; sample: whether a token is chosen for each row;
    advance: whether the device then makes the next step's inputs itself (decode alone).
    """

    kind: str
    segments: int
    rows: int
    lengths: tuple[int, ...]
    wanted: int
    gather: bool
    capacity: int
    mean: int
    sample: bool
    advance: bool = False

    @property
    def longest(self) -> int:
        """Rows of the longest segment."""
        return self.lengths[-1] if self.lengths else 1


def topology(desc: np.ndarray, wanted: int, gather: bool, sample: bool, advance: bool = False) -> Topology:
    """The topology of descriptors [S][4] of which `wanted` rows get logits."""
    _, length, start, _ = desc.astype(np.int64).T
    segments, rows, end = len(desc), int(length.sum()), int((start + length).max())
    longest = int(length.max())
    if longest == 1:
        capacity = decode_capacity(end)
        mean = capacity * 3 // 4
        return Topology("decode", segments, rows, (), wanted, gather, capacity, mean, sample, advance)
    capacity = prefill_capacity(end)
    if segments == 1:
        mean = max(capacity - longest // 2, 1)
        return Topology("single", 1, rows, (longest,), wanted, gather, capacity, mean, sample)
    # A power of two, so that batches of nearly the same histories share a capture.
    mean = (length * start + length * (length + 1) // 2).sum() / rows
    mean = 1 << round(np.log2(mean))
    lengths = tuple(sorted(length.tolist()))
    return Topology("packed", segments, rows, lengths, wanted, gather, capacity, mean, sample)


def narrowed(made: Topology, desc: np.ndarray) -> Topology:
    """A decode step in the bucket that a prefill of its histories has: more buckets, none far too long."""
    capacity = prefill_capacity(int((desc[:, 2].astype(np.int64) + desc[:, 1]).max()))
    return replace(made, capacity=capacity, mean=capacity * 3 // 4)


ItemKey = tuple[int, int, int]  # rows of an item, multiprocessors, resident blocks


def make_items(desc: np.ndarray, key: ItemKey, Hkv: int) -> np.ndarray:
    """Host items int32 [n][4] of a batch, see crucible.attention.plan; not to be written to."""
    return _items(np.ascontiguousarray(desc, np.int32).tobytes(), key, Hkv)


@functools.lru_cache(128)
def _items(desc: bytes, key: ItemKey, Hkv: int) -> np.ndarray:
    rows, slots, resident = key
    made = in_waves(tiles(np.frombuffer(desc, np.int32), rows, Hkv), slots, resident)
    made.flags.writeable = False
    return made


class BatchPlan(Plan):
    """The plan of a batch for a topology: extents of its capacity bucket, items where `items_of` has them."""

    def __init__(self, device, desc, Hkv: int, made: Topology, items_of: Callable[[ItemKey], Any], scratch):
        super().__init__(device, desc, Hkv)
        self._topology, self._items_of, self._lender = made, items_of, scratch

    @property
    def end(self) -> int:
        return self._topology.capacity

    @property
    def mean(self) -> int:
        return self._topology.mean

    @property
    def longest_chunk(self) -> int:
        return self._topology.longest

    @property
    def rows(self) -> int:
        return self._topology.rows

    def items(self, rows: int, slots: int = 1, resident: int = 1):
        return self._items_of((rows, slots, resident))

    def scratch(self, name: str, floats: int):
        return self._lender.take(f"attention_{name}", (floats,))


class _NoMemory:
    def take(self, name: str, shape: tuple[int, ...], dtype: Any = None) -> None:
        return None


@dataclass(frozen=True)
class Chosen:
    """The attention of a topology: the launch, the items that it reads and their numbers."""

    launch: Launch
    items: tuple[tuple[ItemKey, int], ...]
    wants_kv: bool


def rehearse(
    device: Dry, config: ModelConfig, cache: KVCache, made: Topology, desc, asked: str, demanded: bool
) -> Chosen:
    """Choose the variant for a topology and learn which items it works by."""
    found: dict[ItemKey, np.ndarray] = {}

    def items_of(key: ItemKey) -> np.ndarray:
        return found.setdefault(key, make_items(desc, key, config.kv_heads))

    problem = problem_of(config, cache, made, desc, np.empty((made.segments, 1), np.int32))
    problem = problem.planned(BatchPlan(device, desc, config.kv_heads, made, items_of, _NoMemory()))
    launch = choose(device, problem, asked, demanded)
    VARIANTS[launch.variant].launchers[device.name](device, problem)
    return Chosen(
        launch, tuple((key, len(items)) for key, items in found.items()), "hybrid" in launch.variant
    )


def problem_of(config: ModelConfig, cache: KVCache, made: Topology, desc, tables) -> Problem:
    """The attention of a batch but for q, out, layer and plan, which each layer fills in."""
    arrays = (None, cache.kpool, cache.vpool, tables, desc, None)
    sizes = (0, made.rows, config.heads, config.kv_heads, config.head_dim, made.capacity, made.longest)
    # Hybrid variants ask whether k and v are there; a pass hands them over if one of those is chosen.
    return Problem(*arrays, *sizes, k=True, v=True)


def stride_of(made: Topology) -> int:
    """Entries of a page table that hold the capacity."""
    return -(-made.capacity // PAGE_SIZE)


@dataclass(frozen=True)
class PlannedAttention:
    """Attention by one variant over a planned problem, the same at every layer."""

    problem: Problem
    chosen: Chosen

    @property
    def wants_kv(self) -> bool:
        return self.chosen.wants_kv

    def run(self, device, q, k, v, layer: int, out) -> Launch:
        launch = self.chosen.launch
        problem = replace(self.problem, q=q, out=out, layer=layer, k=k, v=v)
        VARIANTS[launch.variant].launchers[device.name](device, problem)
        return launch


def planned_attention(
    device, config: ModelConfig, cache: KVCache, made: Topology, chosen: Chosen, views: dict, scratch: Scratch
) -> PlannedAttention:
    """Attention over the arrays of a block on the device (`views`: desc, tables and items by their keys)."""
    problem = problem_of(config, cache, made, views["desc"], views["tables"])
    host = np.empty((0, 4), np.int32)  # the extents come from the topology
    plan = BatchPlan(device, host, config.kv_heads, made, lambda key: views[key], scratch)
    return PlannedAttention(problem.planned(plan), chosen)
