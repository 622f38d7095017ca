"""The one forward pass of every model, mode and device (contract section 7)."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from crucible.attention.run import Launch
from crucible.device import Device
from crucible.errors import InputError
from crucible.kv.slices import Packed, Slice, pack
from crucible.kv.validation import validate
from crucible.model.cache import KVCache, check_cache
from crucible.model.config import ModelConfig
from crucible.model.graphs import Graphs
from crucible.model.layers import Mark, Trace
from crucible.model.native import NativeRunner
from crucible.model.packed import PackedRunner
from crucible.model.step import Ran, Step, Timing
from crucible.model.weights import Weights
from crucible.numerics.checks import listed, whole_array
from crucible.numerics.contract import PAGE_SIZE
from crucible.ops.rope_tables import rope_table
from crucible.sampling.params import SamplingParams
from crucible.sampling.philox import check_draw
from crucible.sampling.rows import check_params, host_batch
from crucible.sampling.sample import Sample, refuse, sample

__all__ = ["Chosen", "Trace", "Transformer", "check_ids", "listed_ids"]


def check_ids(ids: Sequence[int] | np.ndarray, vocab: int) -> np.ndarray:
    """The token ids as int32 [T]; InputError naming the first that is no integer in [0, vocab)."""
    array = whole_array("token ids", ids)
    outside = (array < 0) | (array >= vocab)
    if outside.any():
        at = int(outside.argmax())
        raise InputError(f"token id {array[at]} at position {at} is outside the vocabulary of {vocab}")
    return array.astype(np.int32)


def listed_ids(ids: Sequence[int] | np.ndarray, vocab: int) -> list[int]:
    """The token ids as check_ids takes them, in a list of their own."""
    # What JSON gives is a list of ints: no array is needed to see that it is right.
    plain = type(ids) in (list, tuple) and {int}.issuperset(map(type, ids))
    if plain and (not ids or (min(ids) >= 0 and max(ids) < vocab)):
        return list(ids)
    return check_ids(ids, vocab).tolist()


def _rows(rows: Sequence[int] | np.ndarray, count: int) -> np.ndarray:
    """Packed row numbers as int32 [R]; InputError naming the first outside [0, count)."""
    array = whole_array("rows", rows)
    outside = np.flatnonzero((array < 0) | (array >= count))
    if outside.size:
        raise InputError(f"row {array[outside[0]]} is outside the {count} packed rows of the call")
    return array.astype(np.int32)


@dataclass(frozen=True)
class Chosen:
    """A step with its tokens: one Sample a row of logits f32 [R][V] (on the device, till the next step)."""

    samples: list[Sample]
    logits: Any


@dataclass
class Transformer:
    """A model's weights on a device and the forward pass over a paged K/V cache.

    Scratch buffers are shared: one forward runs at a time, and threads wait for each other. On cuda and
    simt a batch that comes again is captured as a graph unless `graphs` is False.
    """

    device: Device
    config: ModelConfig
    weights: Weights = field(repr=False)
    graphs: bool = True
    _rope: tuple[Any, Any] | None = field(default=None, repr=False)
    # Stands for this object in a cache's recordings: an id may come again when the object is dead.
    _token: object = field(default_factory=object, repr=False)
    _lock: Any = field(default_factory=threading.RLock, repr=False)
    _busy: bool = field(default=False, repr=False)
    _started: float = field(default=0.0, repr=False)  # when the call under way began
    _last: threading.local = field(default_factory=threading.local, repr=False)

    def __post_init__(self) -> None:
        kind = NativeRunner if self.device.name == "cpu" else PackedRunner
        self.runner = kind(self.device, self.config, self.weights)

    @property
    def launches(self) -> frozenset[Launch]:
        """Attention launches of this thread's last forward."""
        return getattr(self._last, "launches", frozenset())

    @property
    def timing(self) -> Timing | None:
        """Host times of this thread's last forward on cuda or simt; None before it and on cpu."""
        return getattr(self._last, "timing", None)

    def forward(
        self,
        ids: Sequence[int] | np.ndarray,
        slices: Sequence[Slice],
        cache: KVCache,
        rows: Sequence[int] | None = None,
        trace: Trace | None = None,
        variant: str | None = None,
        graph: bool = True,
        packed: bool = True,
        own: bool = True,
    ) -> Any:
        """Logits f32 [R][V] of `rows` (packed row numbers; default: the last row of every slice).

        ids: the tokens of all slices, packed in order, T in all. Their K and V go to the cache's
        pages; each row attends to its own request's positions up to its own, which must have been
        stored. The result belongs to the caller, or with `own` False only until the next call over this
        cache, which saves a copy. `variant` names an attention variant (see
        crucible.attention.run.run, which also says what None means). `graph` False launches every kernel
        anew; `packed` False runs the slices one after another, a control that moves no bit. InputError for
        ids outside the vocabulary or slices that do not fit the cache, before anything reaches the device.
        """
        if trace is not None and not callable(trace):
            raise InputError(f"trace is {type(trace).__name__}; it must be a function (name, layer, array)")
        with self._lock:
            checked = self._check(ids, slices, cache, rows)
            if packed or len(slices) == 1:
                ran = self._run(checked, cache, None, trace, variant, graph)
                return self._copy(ran.logits) if own and not ran.owned else ran.logits
            return self._one_by_one(checked, slices, cache, trace, variant, graph)

    def choose(
        self,
        ids: Sequence[int] | np.ndarray,
        slices: Sequence[Slice],
        cache: KVCache,
        params: Sequence[SamplingParams],
        draws: Sequence[int],
        rows: Sequence[int] | None = None,
        variant: str | None = None,
        graph: bool = True,
    ) -> Chosen:
        """`forward`, and a token for each of its rows of logits by `params` and draw numbers of that row.

        On cuda and simt the tokens are chosen on the device, in the same graph, and are all that comes back.
        InputError also for logits outside the contract (section 8).
        """
        params, draws = listed("params", params), listed("draws", draws)
        with self._lock:
            checked = self._check(ids, slices, cache, rows)
            wanted = len(slices) if rows is None else len(checked[3])
            if not len(params) == len(draws) == wanted:
                raise InputError(f"{wanted} rows of logits need as many sampling parameters and draw numbers")
            check_params(params)
            draws = [check_draw(draw) for draw in draws]
            if self.device.name == "cpu":
                logits = self._run(checked, cache, None, None, variant, graph).logits
                given = zip(logits, params, draws, strict=True)
                return Chosen([sample(self.device, row, p, d) for row, p, d in given], logits)
            ran = self._run(checked, cache, host_batch(params, draws), None, variant, graph)
            found = self.runner.results(wanted, ran.results)
            for status, p in zip(found["status"].tolist(), params, strict=True):
                refuse(status, p.temperature)
            columns = (found[name].tolist() for name in ("token", "kept", "u"))
            chosen = zip(*columns, strict=True)
            return Chosen([Sample(t, k, None if u < 0 else u) for t, k, u in chosen], ran.logits)

    def profiled(
        self,
        ids: Sequence[int] | np.ndarray,
        slices: Sequence[Slice],
        cache: KVCache,
        params: Sequence[SamplingParams],
        mark: Mark,
        fused: bool = True,
    ) -> Any:
        """A forward with tokens whose stages call `mark` before their launches; for a profile."""
        with self._lock:
            checked = self._check(ids, slices, cache, None)
            batch = host_batch(list(params), [0] * len(params))
            return self._run(checked, cache, batch, None, None, False, mark, fused=fused)

    def decode_step(self, ids, slices, cache: KVCache, sampling, variant: str | None) -> Ran:
        """A decode step on cuda or simt that leaves the next one's inputs on the device (model.decoding)."""
        checked = self._check(ids, slices, cache, None)
        return self._run(checked, cache, sampling, None, variant, True, advance=True)

    @property
    def lock(self) -> Any:
        """Held by whoever runs this transformer."""
        return self._lock

    def captures(self, cache: KVCache) -> Graphs:
        """The graphs of this transformer over a cache, with their statistics."""
        return cache.prepared.setdefault((self._token,), Graphs())

    def capture_wish(self, cache: KVCache) -> bool:
        """Capture one pass over a cache that ran eagerly and may come again, in an idle moment.

        False where there is none, as always on cpu. Replays of it have the bits of the eager pass.
        """
        if self.device.name == "cpu" or not self.graphs:
            return False
        with self._lock:
            return self.runner.capture_wish(cache, self.captures(cache), self._rope)

    def _check(self, ids, slices, cache: KVCache, rows) -> tuple[np.ndarray, Packed, Any, np.ndarray | None]:
        """(ids, packed, positions of the rope table, rows or None) of a call, all checked."""
        self._started = time.perf_counter()
        if self._busy:
            raise InputError("a trace must not call forward on its own transformer; take another one")
        check_cache(cache)
        packed = pack(slices)
        ids = check_ids(ids, self.config.vocab)
        if ids.shape != (packed.rows,):
            raise InputError(f"{ids.size} token ids do not fill the {packed.rows} rows of the slices")
        mine, other = self.config, cache.config
        if (mine.layers, mine.kv_dim) != (other.layers, other.kv_dim):
            raise InputError(
                f"the cache has {other.layers} layers of {other.kv_dim} channels, the model {mine.layers} of "
                f"{mine.kv_dim}; use a cache of this model"
            )
        capacity = min(self.config.context, cache.tables.array.shape[1] * PAGE_SIZE)
        validate(
            packed.desc,
            cache.tables.array,
            num_pages=cache.pages.num_pages,
            rows=packed.rows,
            capacity=capacity,
            owners=cache.owners,
        )
        cache.check_history(packed.desc)
        return ids, packed, capacity, None if rows is None else _rows(rows, packed.rows)

    def _run(
        self, checked, cache, sampling, trace, variant, graph: bool, mark: Mark | None = None, **how: bool
    ) -> Ran:
        ids, packed, capacity, rows = checked
        self._reserve_rope(capacity)
        self._last.launches = frozenset()
        self._busy = True
        try:
            if self.device.name == "cpu":
                ran = self._native(ids, packed, capacity, rows, cache, trace, variant, graph)
            else:
                ran = self._packed(ids, packed, rows, cache, sampling, trace, variant, graph, mark, **how)
        finally:
            self._busy = False
        cache.note(packed.desc)
        self._last.launches, self._last.timing = ran.launches, ran.timing
        return ran

    def _native(self, ids, packed: Packed, capacity: int, rows, cache, trace, variant, graph: bool) -> Ran:
        step = (ids, packed.positions, packed.desc)
        if graph and rows is None and trace is None and packed.rows == len(packed.desc):
            # Pure decode, one row a slice: recorded once for this number of rows, then replayed.
            return self.runner.replay(self._token, step, capacity, cache, self._rope, variant)
        if rows is None:
            rows = _ends(packed)
        return self.runner.run(step, rows, packed, cache, self._rope, trace, variant)

    def _packed(
        self,
        ids,
        packed: Packed,
        rows,
        cache,
        sampling,
        trace,
        variant,
        graph,
        mark,
        fused: bool = True,
        advance: bool = False,
    ) -> Ran:
        if rows is None and packed.rows != len(packed.desc):
            rows = _ends(packed)
        step = Step(ids, packed.positions, packed.desc, rows, sampling, advance, self._started)
        graphs = self.captures(cache) if self.graphs and graph and not (trace or mark) else None
        marks = {} if mark is None else {"mark": mark}
        return self.runner.run(step, cache, graphs, self._rope, variant, trace, fused=fused, **marks)

    def _copy(self, logits: Any) -> Any:
        out = self.device.empty(tuple(logits.shape))
        out[...] = logits
        return out

    def _one_by_one(self, checked, slices, cache, trace, variant, graph: bool) -> Any:
        ids, packed, capacity, rows = checked
        launches = frozenset()
        rows = _ends(packed) if rows is None else rows
        out = self.device.empty((rows.size, self.config.vocab))
        for (first, length, *_), one in zip(packed.desc.tolist(), slices, strict=True):
            here = np.flatnonzero((rows >= first) & (rows < first + length))
            alone = pack([one])
            wanted = np.ascontiguousarray(rows[here] - first)
            wanted = (
                None if wanted.tolist() == [length - 1] else wanted
            )  # as by default, so that it is replayed
            checked = ids[first : first + length], alone, capacity, wanted
            logits = self._run(checked, cache, None, trace, variant, graph).logits
            launches |= self.launches
            if here.size:
                out[self.device.upload(here)] = logits
        self._last.launches = launches
        return out

    def _reserve_rope(self, capacity: int) -> None:
        if self._rope is None or self._rope[0].shape[0] < capacity:
            positions = np.arange(capacity, dtype=np.int64)
            tables = rope_table(self.config.rope_theta, self.config.head_dim, positions)
            self._rope = tuple(self.device.upload(table) for table in tables)


def _ends(packed: Packed) -> np.ndarray:
    """The last packed row of every segment."""
    return np.ascontiguousarray(packed.desc[:, 0] + packed.desc[:, 1] - 1, np.int32)
