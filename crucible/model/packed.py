"""Packed passes on cuda and simt: one upload a call, lasting scratch, graphs of what comes again."""

import functools
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from crucible.attention.variants import asked_for
from crucible.device import Device
from crucible.device.dry import Dry
from crucible.device.graph import capture
from crucible.device.scratch import Scratch
from crucible.device.staging import Layout, Staging
from crucible.errors import UnsupportedError
from crucible.kv.table import NO_PAGE
from crucible.model.cache import KVCache
from crucible.model.config import ModelConfig
from crucible.model.graphs import Captured, Graphs
from crucible.model.layers import Inputs, Mark, Pass, Trace, _unmarked
from crucible.model.step import Ran, Step, Timing
from crucible.model.topology import (
    Chosen,
    ItemKey,
    Topology,
    make_items,
    narrowed,
    planned_attention,
    rehearse,
    stride_of,
    topology,
)
from crucible.model.weights import Weights
from crucible.ops.advance import decode_advance
from crucible.sampling.rows import SampleBatch, Sampled, sample_rows

_CHOSEN = 512  # remembered choices of attention
_SAMPLE_FIELDS = (
    *(("temperature", np.float32), ("top_k", np.int32), ("top_p", np.float64)),
    *(("seed", np.uint64), ("draw", np.uint32), ("sampler", np.int32)),
)
RESULTS = (("token", np.int32), ("kept", np.int32), ("status", np.int32), ("u", np.float64))


@dataclass(frozen=True)
class _Work:
    """A pass that may run: `run(device)` launches it; the rest as in Captured."""

    made: Topology
    chosen: Chosen
    views: dict
    logits: Any
    sampled: tuple[Sampled, Any] | None
    run: Callable[[Any], None]


class PackedRunner:
    """Runs passes of one model on a device that runs the CUDA sources."""

    def __init__(self, device: Device, config: ModelConfig, weights: Weights):
        self.device, self.config, self.weights = device, config, weights
        self.scratch, self.staging = Scratch(device), Staging(device)
        self._rehearsal = Dry(device)
        self._chosen: OrderedDict[tuple, Chosen] = OrderedDict()
        self._wide: dict[tuple[int, str], bool] = {}  # decode buckets that a variant does not cover
        self._found = device.host_empty(1 << 12)

    def run(
        self,
        step: Step,
        cache: KVCache,
        graphs: Graphs | None,
        rope: tuple[Any, Any],
        variant: str | None,
        trace: Trace | None = None,
        mark: Mark = _unmarked,
        fused: bool = True,
    ) -> Ran:
        """One pass; `graphs` None runs it eagerly, as do a trace and a mark."""
        started = time.perf_counter() if step.started is None else step.started
        asked, demanded = asked_for(variant)
        sample = step.sampling is not None
        made = topology(step.desc, step.wanted, step.rows is not None, sample, step.advance)
        if made.kind == "decode" and self._too_wide(made, cache, asked, step.desc):
            made = narrowed(made, step.desc)
        entry, record = None, False
        if graphs is not None:
            graphs.use(asked)
            entry = graphs.find(made)
            record = entry is None and graphs.again(made)
        desc = step.desc.copy()
        desc[:, 3] = np.arange(len(desc))  # a segment has its own row of the tables that are sent
        chosen = entry.chosen if entry else self._choose(made, desc, cache, asked, demanded)
        layout = entry.layout if entry else layout_of(made, chosen.items)
        values = self._values(step, desc, cache, made, chosen)
        prepared = time.perf_counter()
        block = entry.block if entry else self._block(layout, record)
        self.staging.send(layout, values, block)
        if entry:
            entry.holder[0] = None
        uploaded = time.perf_counter()
        work: _Work | Captured | None = entry
        if entry is None:
            views = layout.views(block) if record else self.staging.views(layout, block)
            work = self._work(made, chosen, views, cache, rope, trace, mark, fused)
            if record:
                entry = self._capture(work, layout, block, rope, graphs)
        if entry is not None:
            path = "captured" if record else "graph"
            entry.graph.launch()
        else:
            path = "eager"
            work.run(self.device)
            if graphs is not None:
                graphs.ran(made, chosen, values)
        seconds = prepared - started, uploaded - prepared, time.perf_counter() - uploaded
        timing = Timing(*seconds, layout.nbytes, 1, path)
        results = None if work.sampled is None else work.sampled[1]
        return Ran(work.logits, results, frozenset((chosen.launch,)), timing, entry=entry)

    def _too_wide(self, made: Topology, cache: KVCache, asked: str, desc) -> bool:
        """Whether what is asked for covers the histories of a decode step but not their bucket."""
        key = (made.capacity, asked)
        if key not in self._wide:
            self._wide[key] = not self._runs(made, cache, asked, desc)
        return self._wide[key] and self._runs(narrowed(made, desc), cache, asked, desc)

    def _runs(self, made: Topology, cache: KVCache, asked: str, desc) -> bool:
        """Whether what is asked for covers a topology."""
        try:
            self._choose(made, desc, cache, asked, True)
        except UnsupportedError:
            return False
        return True

    def _choose(self, made: Topology, desc, cache: KVCache, asked: str, demanded: bool) -> Chosen:
        key = (made, asked, demanded)
        chosen = self._chosen.get(key)
        if chosen is None:
            chosen = rehearse(self._rehearsal, self.config, cache, made, desc, asked, demanded)
            self._chosen[key] = chosen
            if len(self._chosen) > _CHOSEN:
                self._chosen.popitem(last=False)
        return chosen

    def _block(self, layout: Layout, own: bool) -> Any:
        if own:
            return self.device.empty((layout.nbytes,), np.uint8)
        return self.staging.target(layout.nbytes)

    def _values(self, step: Step, desc, cache: KVCache, made: Topology, chosen: Chosen) -> dict:
        values: dict[Any, Any] = {
            "ids": step.ids,
            "positions": step.positions,
            "desc": desc,
            "rows": step.rows,
        }
        stride, have = stride_of(made), cache.tables.array.shape[1]
        tables = cache.tables.array[step.desc[:, 3], :stride]
        if have < stride:
            tables = np.pad(tables, ((0, 0), (0, stride - have)), constant_values=NO_PAGE)
        values["tables"] = tables
        for key, _ in chosen.items:
            values[key] = make_items(desc, key, self.config.kv_heads)
        if step.sampling is not None:
            values.update(step.sampling)
        return values

    def capture_wish(self, cache: KVCache, graphs: Graphs, rope: tuple[Any, Any]) -> bool:
        """Capture what ran eagerly and may come again, one topology; False where nothing is wished for.

        Nothing runs on the device: the eager pass lends the values that launches check.
        """
        wish = graphs.wish()
        if wish is None:
            return False
        made, (chosen, values) = wish
        layout = layout_of(made, chosen.items)
        block = self._block(layout, True)
        self.staging.send(layout, values, block)
        work = self._work(made, chosen, layout.views(block), cache, rope)
        self._capture(work, layout, block, rope, graphs)
        return True

    def _work(self, made, chosen, views, cache, rope, trace=None, mark=_unmarked, fused=True) -> "_Work":
        """A pass of a topology over the arrays of a block."""
        scratch, vocab = self.scratch, self.config.vocab
        attention = planned_attention(self.device, self.config, cache, made, chosen, views, scratch)
        inputs = Inputs(
            *(views[name] for name in ("ids", "positions", "desc", "tables")),
            views.get("rows"),
            made.wanted,
            attention,
        )
        logits = scratch.take("logits", (made.wanted, vocab))
        sampled = self._sampled(made) if made.sample else None

        def run(device) -> None:
            one = Pass(device, self.config, self.weights, rope, scratch, inputs, cache, trace, mark, fused)
            one.run(logits)
            if sampled is not None:
                mark("argmax")
                batch = SampleBatch(**{name: views[name] for name, _ in _SAMPLE_FIELDS})
                sample_rows(device, logits, batch, scratch, sampled[0])
            if made.advance:
                state = (views[name] for name in ("ids", "positions", "desc", "draw"))
                items = [views[key] for key, _ in chosen.items]
                decode_advance(device, sampled[0].token, *state, items)
            mark("end")

        return _Work(made, chosen, views, logits, sampled, run)

    def _capture(self, work: "_Work", layout: Layout, block, rope, graphs: Graphs) -> Captured:
        """The capture of a pass that has run before, kept; `block` is its own."""
        began = time.perf_counter()
        with self.scratch.frozen():
            graph = capture(self.device, work.run)
        seconds = time.perf_counter() - began
        held = (*self.scratch.held(), *rope)
        entry = Captured(graph, layout, block, work.views, work.chosen, work.logits, work.sampled, held)
        graphs.keep(work.made, entry, seconds)
        return entry

    def _sampled(self, made: Topology) -> tuple[Sampled, Any]:
        layout = Layout.of([(name, dtype, (made.wanted,)) for name, dtype in RESULTS])
        block = self.scratch.take("sampled", (layout.nbytes,), np.uint8)
        return Sampled(**layout.views(block)), block

    def results(self, rows: int, block: Any) -> dict[str, np.ndarray]:
        """The sampling results of a call on the host, by name [R]: one copy, waited for."""
        layout = Layout.of([(name, dtype, (rows,)) for name, dtype in RESULTS])
        if self._found.size < layout.nbytes:
            self._found = self.device.host_empty(layout.nbytes)
        host = self._found[: layout.nbytes]
        self.device.copy_out(host, block)
        self.device.event().wait()
        return layout.views(host)


@functools.lru_cache(64)
def layout_of(made: Topology, items: tuple[tuple[ItemKey, int], ...]) -> Layout:
    """The block that a pass of a topology with these work items reads; what comes again has the same one."""
    i32 = np.int32
    fields: list[tuple] = [("ids", i32, (made.rows,)), ("positions", i32, (made.rows,))]
    fields += [("desc", i32, (made.segments, 4)), ("tables", i32, (made.segments, stride_of(made)))]
    if made.gather:
        fields.append(("rows", i32, (made.wanted,)))
    fields += [(key, i32, (count, 4)) for key, count in items]
    if made.sample:
        fields += [(name, dtype, (made.wanted,)) for name, dtype in _SAMPLE_FIELDS]
    return Layout.of(fields)
