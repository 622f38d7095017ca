"""Passes of the cpu device: prefill as it comes, decode recorded once for a number of rows and replayed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crucible.attention.plan import Plan
from crucible.attention.run import Launch
from crucible.attention.run import run as attend
from crucible.attention.variants import default
from crucible.device import Device
from crucible.device.scratch import Scratch
from crucible.kv.slices import Packed
from crucible.model.cache import KVCache
from crucible.model.config import ModelConfig
from crucible.model.layers import Inputs, Pass, Trace
from crucible.model.replay import Recorder
from crucible.model.step import Ran
from crucible.model.weights import Weights

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]  # ids, positions [T], descriptors [S][4]


@dataclass(frozen=True)
class _Attention:
    """Attention by name. `capacity` is at least every row's history; the call itself checked its metadata."""

    cache: KVCache
    tables: Any
    desc: Any
    variant: str | None
    capacity: int
    plan: Plan
    wants_kv: bool = True

    def run(self, device, q, k, v, layer: int, out) -> Launch:
        cache, config = self.cache, self.cache.config
        paged = (cache.kpool, cache.vpool, self.tables, self.desc, layer, config.kv_heads, config.head_dim)
        options = {"capacity": self.capacity, "plan": self.plan}
        return attend(device, q, *paged, variant=self.variant, out=out, **options, k=k, v=v).launch


@dataclass(frozen=True)
class _Prepared:
    """A recorded decode step: write the inputs, run the calls, read the logits."""

    inputs: Inputs
    calls: Sequence[Callable[[], Any]]
    ran: Ran

    def replay(self, ids: np.ndarray, positions: np.ndarray, desc: np.ndarray) -> Ran:
        self.inputs.ids[...], self.inputs.positions[...], self.inputs.desc[...] = ids, positions, desc
        for call in self.calls:
            call()
        return self.ran


class NativeRunner:
    """Runs passes of one model on the cpu device."""

    def __init__(self, device: Device, config: ModelConfig, weights: Weights):
        self.device, self.config, self.weights = device, config, weights
        self.scratch = Scratch(device)

    def run(
        self,
        step: Arrays,
        rows: np.ndarray,
        packed: Packed,
        cache: KVCache,
        rope: tuple[Any, Any],
        trace: Trace | None,
        variant: str | None,
    ) -> Ran:
        """One pass with the logits of `rows` int32 [R]."""
        inputs = self._inputs(step, rows, cache, variant, packed.max_end)
        logits = self.device.empty((inputs.wanted, self.config.vocab))
        launches = self._pass(self.device, inputs, cache, rope, self.scratch, trace, logits)
        return Ran(logits, None, launches, owned=True)

    def replay(
        self,
        owner: object,
        step: Arrays,
        capacity: int,
        cache: KVCache,
        rope: tuple[Any, Any],
        variant: str | None,
    ) -> Ran:
        """A pass with a row a slice and the logits of all, recorded at its first time; `owner` keys it."""
        key = (owner, rope[0].shape[0], step[0].size, variant, default())
        if key in cache.prepared:
            return cache.prepared[key].replay(*step)
        own = tuple(array.copy() for array in step)
        inputs = self._inputs(own, None, cache, variant, capacity)
        recorder = Recorder(self.device)
        # A recording owns its scratch: growing the shared one must not move its buffers.
        logits = self.device.empty((inputs.wanted, self.config.vocab))
        launches = self._pass(recorder, inputs, cache, rope, Scratch(self.device), None, logits)
        ran = Ran(logits, None, launches)
        cache.prepared[key] = _Prepared(inputs, recorder.calls, ran)
        return ran

    def _inputs(self, step: Arrays, rows, cache: KVCache, variant, capacity: int) -> Inputs:
        ids, positions, desc = step
        tables = cache.tables.array
        # With a plan, no layer checks the descriptors again.
        plan = Plan(self.device, desc, self.config.kv_heads)
        attention = _Attention(cache, tables, desc, variant, capacity, plan)
        return Inputs(ids, positions, desc, tables, rows, ids.size if rows is None else rows.size, attention)

    def _pass(
        self, device, inputs: Inputs, cache, rope, scratch: Scratch, trace, logits
    ) -> frozenset[Launch]:
        one = Pass(device, self.config, self.weights, rope, scratch, inputs, cache, trace)
        one.run(logits)
        return frozenset(one.launches)
