"""Captured passes of one cache: bounded stores by kind of batch, their cost and how often they serve."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from crucible.device.graph import Graph
from crucible.device.staging import Layout
from crucible.model.topology import Chosen, Topology

# Entries of each kind; decode has few keys, packed batches seldom come again.
LIMITS = {"single": 64, "decode": 64, "packed": 32}

# Passes that a topology makes before it is captured; the first compiles kernels and grows scratch memory.
SOON = {"single": 1, "decode": 1, "packed": 1}
# A capture makes its pass call by call and builds a graph on top (together 7.5 ms on an H200) and stands in
# the way of a first token. An engine therefore captures in moments in which nothing is asked for, and in the
# line of duty only what came often; a decode step comes again at once.
PATIENT = {"single": 8, "decode": 2, "packed": 8}
IDLE = {"single": 2, "decode": 1, "packed": 2}  # passes after which an idle moment is spent on a capture
_WISHES = 64


@dataclass(frozen=True)
class Captured:
    """A captured pass: the block that its launches read, and where its results lie.

    `held` are arrays that the graph writes or reads and nobody else may keep. `holder` has one entry: who
    counts on what is in the block (model.decoding), or None.
    """

    graph: Graph
    layout: Layout
    block: Any
    views: dict
    chosen: Chosen
    logits: Any
    sampled: Any
    held: tuple
    holder: list = field(default_factory=lambda: [None])


@dataclass
class Statistics:
    """What the stores of a cache did: batches served by a capture, batches that ran eagerly, captures."""

    hits: int = 0
    misses: int = 0
    captures: int = 0
    evictions: int = 0
    invalidations: int = 0
    capture_seconds: float = 0.0

    @property
    def hit_rate(self) -> float:
        """Share of the batches that a capture served."""
        return self.hits / max(self.hits + self.misses, 1)


@dataclass
class Graphs:
    """The captures of one transformer over one cache.

    A batch is captured when its topology comes again after `patience` passes, by kind: one that never
    returns costs nothing. What ran a few times eagerly is a wish, captured sooner where there is an idle
    moment. One variant at a time: another one's captures are dropped.
    """

    patience: Mapping[str, int] = field(default_factory=lambda: SOON)
    statistics: dict[str, Statistics] = field(default_factory=lambda: {kind: Statistics() for kind in LIMITS})
    _variant: str | None = None
    _stores: dict[str, OrderedDict] = field(default_factory=lambda: {k: OrderedDict() for k in LIMITS})
    _seen: dict[str, OrderedDict] = field(default_factory=lambda: {k: OrderedDict() for k in LIMITS})
    _wishes: OrderedDict[Topology, tuple[Chosen, Mapping]] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return sum(map(len, self._stores.values()))

    def entries(self, kind: str) -> list[Captured]:
        """The captures of a kind, least recently used first."""
        return list(self._stores[kind].values())

    def use(self, variant: str) -> None:
        """Drop every capture unless they are of `variant`."""
        if self._variant == variant:
            return
        for kind, store in self._stores.items():
            self.statistics[kind].invalidations += len(store)
            store.clear()
            self._seen[kind].clear()
        self._wishes.clear()
        self._variant = variant

    def find(self, made: Topology) -> Captured | None:
        """The capture of a topology, most recently used from now on; counts hit or miss."""
        store, statistics = self._stores[made.kind], self.statistics[made.kind]
        entry = store.get(made)
        if entry is None:
            statistics.misses += 1
            return None
        store.move_to_end(made)
        statistics.hits += 1
        return entry

    def again(self, made: Topology) -> bool:
        """Whether this topology ran `patience` times before; counts this time."""
        seen = self._seen[made.kind]
        before = seen.get(made, 0)
        seen[made] = before + 1
        seen.move_to_end(made)
        if len(seen) > 4 * LIMITS[made.kind]:
            seen.popitem(last=False)
        return before >= self.patience[made.kind]

    def ran(self, made: Topology, chosen: Chosen, values: Mapping) -> None:
        """Note an eager pass over the `values` of its block: wish for a capture once it came as IDLE says."""
        if self._seen[made.kind].get(made, 0) >= IDLE[made.kind]:
            self._wishes[made] = chosen, values
            self._wishes.move_to_end(made)
            if len(self._wishes) > _WISHES:
                self._wishes.popitem(last=False)

    def wish(self) -> tuple[Topology, tuple[Chosen, Mapping]] | None:
        """The youngest wish as `ran` noted it, which is none any more; None where nothing is wished for."""
        return self._wishes.popitem() if self._wishes else None

    def keep(self, made: Topology, entry: Captured, seconds: float) -> None:
        """Store a capture; the least recently used one leaves a full store."""
        store, statistics = self._stores[made.kind], self.statistics[made.kind]
        self._wishes.pop(made, None)
        store[made] = entry
        statistics.captures += 1
        statistics.capture_seconds += seconds
        if len(store) > LIMITS[made.kind]:
            store.popitem(last=False)
            statistics.evictions += 1
