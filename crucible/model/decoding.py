"""Decode of one set of requests whose state stays on the device: between steps the host only launches."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from crucible.device.staging import Layout
from crucible.errors import InputError
from crucible.kv.slices import Slice
from crucible.model.cache import KVCache, check_cache
from crucible.model.packed import RESULTS
from crucible.model.transformer import Transformer, check_ids
from crucible.numerics.checks import listed
from crucible.numerics.contract import PAGE_SIZE
from crucible.sampling.params import SamplingParams
from crucible.sampling.philox import DRAW_LIMIT, check_draw
from crucible.sampling.rows import check_params, host_batch
from crucible.sampling.sample import Sample, refuse


class Decoding:
    """Steps of R requests, each feeding the token that the step before chose for it.

    `requests` are rows of the cache's tables with their pages reserved, `tokens` what each feeds first and
    `draws` the number of its next draw; a request feeds at the position after those it stored. `enqueue`
    starts a step, `collect` waits for the oldest one. On cuda and simt a captured step makes the next one's
    inputs itself, so that several may be under way; the tokens are those of `Transformer.choose`.
    """

    def __init__(
        self,
        transformer: Transformer,
        cache: KVCache,
        requests: Sequence[int],
        tokens: Sequence[int],
        params: Sequence[SamplingParams],
        draws: Sequence[int],
        variant: str | None = None,
    ):
        requests, params = listed("requests", requests), listed("params", params)
        tokens, draws = check_ids(tokens, transformer.config.vocab).tolist(), listed("draws", draws)
        if not len(requests) == len(tokens) == len(params) == len(draws) > 0:
            raise InputError(
                "a decode needs as many tokens, parameters and draw numbers as requests, one or more"
            )
        check_cache(cache)
        for request in requests:
            cache.tables.check(request, 0)
        check_params(params)
        draws = [check_draw(draw) for draw in draws]
        self._transformer, self._cache, self._variant = transformer, cache, variant
        self._requests, self._params = requests, params
        self._tokens, self._draws = tokens, draws
        self._position = [cache.stored[r] for r in requests]
        self._pending: deque[tuple[Any, Any]] = deque()
        self._entry: Any = None  # the capture whose block holds the next step's inputs
        self._tables: Any = None
        self._layout = Layout.of([(name, dtype, (len(requests),)) for name, dtype in RESULTS])
        self._free: list[np.ndarray] = []

    @property
    def pending(self) -> int:
        """Steps enqueued and not collected."""
        return len(self._pending)

    @property
    def runs_ahead(self) -> bool:
        """Whether the next step can be enqueued before the steps under way are collected."""
        return not self._pending or self._continues()

    def enqueue(self) -> None:
        """Start the next step.

        InputError where it needs tokens that were not collected (see runs_ahead), and past the last draw
        number.
        """
        if self._continues():
            with self._transformer.lock:
                self._entry.graph.launch()
                self._transformer.captures(self._cache).statistics["decode"].hits += 1
                self._cache.note_each(self._requests, [p + 1 for p in self._position])
                self._fetch(self._entry.sampled[1])
        elif self._pending:
            raise InputError("the next step needs tokens of one under way; collect it first")
        else:
            self._send()
        self._position = [p + 1 for p in self._position]

    def collect(self) -> list[Sample]:
        """The tokens of the oldest step under way. InputError for logits outside the contract."""
        if not self._pending:
            raise InputError("no step is under way; enqueue one first")
        host, event = self._pending.popleft()
        if event is None:  # the cpu device is done when it is called
            samples = host
        else:
            event.wait()
            found = self._layout.views(host)
            for status, p in zip(found["status"].tolist(), self._params, strict=True):
                refuse(status, p.temperature)
            columns = (found[name].tolist() for name in ("token", "kept", "u"))
            samples = [Sample(t, k, None if u < 0 else u) for t, k, u in zip(*columns, strict=True)]
            self._free.append(host)
        self._tokens = [s.token for s in samples]
        self._draws = [d + 1 for d in self._draws]
        return samples

    def _continues(self) -> bool:
        """Whether the block on the device is right for the next step."""
        if self._entry is None or self._entry.holder[0] is not self:
            return False
        if any(position >= end for position, end in zip(self._position, self._room, strict=True)):
            return False
        if max(self._draws) + len(self._pending) >= DRAW_LIMIT:  # it would wrap where nobody looks
            return False
        return np.array_equal(self._tables, self._tables_now())

    def _tables_now(self) -> np.ndarray:
        return self._cache.tables.array[self._requests]

    def _send(self) -> None:
        """A step from the host's state, as `choose` does it."""
        transformer, cache = self._transformer, self._cache
        slices = [Slice(r, p, 1) for r, p in zip(self._requests, self._position, strict=True)]
        if transformer.device.name == "cpu":
            chosen = transformer.choose(
                self._tokens, slices, cache, self._params, self._draws, variant=self._variant
            )
            self._pending.append((chosen.samples, None))
            return
        with transformer.lock:
            batch = host_batch(self._params, self._draws)
            ran = transformer.decode_step(self._tokens, slices, cache, batch, self._variant)
            self._fetch(ran.results)
        self._entry = ran.entry
        if self._entry is not None:
            self._entry.holder[0] = self
            self._tables = self._tables_now()
            reserved = (self._tables >= 0).sum(axis=1) * PAGE_SIZE
            # Where a request's reservation or the bucket ends, the host looks again.
            bucket = ran.entry.views["tables"].shape[1] * PAGE_SIZE
            self._room = np.minimum(reserved, min(bucket, transformer.config.context)).tolist()

    def _fetch(self, block: Any) -> None:
        device, nbytes = self._transformer.device, self._layout.nbytes
        host = self._free.pop() if self._free else device.host_empty(nbytes)
        device.copy_out(host[:nbytes], block)
        self._pending.append((host, device.event()))
