"""What runs a step's rows: packed slices to tokens, digests and log-probabilities; the engine's only door
to the model and its cache."""

from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np

from crucible import device as devices
from crucible.attention.variants import AUTO, VARIANTS, Preferred, default
from crucible.device.cpu import default_threads
from crucible.engine.ahead import Ahead, Row
from crucible.engine.events import Logprobs, TopLogprob
from crucible.errors import InputError, UnsupportedError
from crucible.kv.slices import Slice
from crucible.kv.table import NO_PAGE
from crucible.model.cache import KVCache
from crucible.model.graphs import SOON
from crucible.model.model import Model
from crucible.numerics.contract import CONTRACT_VERSION
from crucible.numerics.digest import digest
from crucible.sampling.params import SamplingParams
from crucible.sampling.sample import Sample, TooCold, logprobs, rank, sample

_RECORDINGS = 24  # decode batch sizes whose recorded pass is kept: each holds logits of its rows


class Sampling(NamedTuple):
    """How a row's token is chosen and what is reported beside it."""

    params: SamplingParams
    draw: int
    logprobs: int | None = None
    digest: bool = False


class Part(NamedTuple):
    """Rows of one request: the tokens at positions start on; `sampling` None where no token comes of them.

    `final`: the request ends with this token, whatever it is.
    """

    slot: int
    start: int
    ids: Sequence[int]
    sampling: Sampling | None
    final: bool = False


class Outcome(NamedTuple):
    """The token of a row, or why none could be chosen: `error`, which concerns this request alone, and
    `cold` if its temperature is to blame."""

    token: int
    kept: int = 1
    logits_digest: str | None = None
    logprobs: Logprobs | None = None
    error: str | None = None
    cold: bool = False


class Runner(Protocol):
    """What the loop needs; a slot is a row of the page tables.

    An exception out of any method means that the device or its bookkeeping is in doubt: the engine stops.
    """

    page_order: Sequence[int]
    namespace: Hashable

    def set_pages(self, slot: int, pages: Sequence[int], shared: int, stored: int) -> None:
        """Make `pages` the table of `slot`: the first `shared` are only read, `stored` positions exist."""

    def share_pages(self, slot: int, pages: Sequence[int], shared: int) -> None:
        """The table of `slot` again after more of its pages became shared (and may have been exchanged)."""

    def add_page(self, slot: int, index: int, page: int) -> None:
        """One more writable page at the end of a table."""

    def clear(self, slot: int, pages: Sequence[int], shared: int) -> None:
        """Empty the table; its pages but the shared ones belong to nobody."""

    def copy_page(self, source: int, target: int) -> None:
        """Copy all layers' K and V of a page."""

    def run(self, parts: Sequence[Part]) -> list[Outcome]:
        """Run all rows in one pass; an Outcome per part that has a `sampling`, in order."""

    def kv_digests(self, slot: int, length: int) -> tuple[str, str]:
        """Digests of K and V of positions 0..length-1 (contract section 9)."""

    def settle(self) -> None:
        """Nothing runs any more: wait for whatever is under way."""

    def prepare(self) -> bool:
        """Nothing is asked for: spend a moment on what may be; False where there is no more to do."""


class ModelRunner:
    """A Runner over a model's transformer and one paged cache of `pages` pages for `slots` requests.

    Every page of the cache is taken at once: who holds which is the engine's business. `page_seed`
    shuffles the physical pages and fills them with NaN first; `recorded` False runs every pass call by call
    instead of replaying a recording (cpu) or a captured graph (cuda, simt), and `patience` says how soon a
    pass is captured (crucible.model.graphs). UnsupportedError where the
    environment asks for an attention variant that leaves the contract: what runs here keeps the promise or
    not at all.
    """

    def __init__(
        self,
        model: Model,
        pages: int,
        slots: int,
        page_seed: int | None = None,
        recorded: bool = True,
        patience: Mapping[str, int] = SOON,
    ):
        # A long history that a variant does not cover is no reason to stop for all: the reference runs then.
        self.variant = Preferred(default())
        # A user's own kernel is run because it was asked for by file; nobody is promised its bits.
        if self.variant != AUTO and not (VARIANTS[self.variant].exact or VARIANTS[self.variant].user):
            raise UnsupportedError(
                f"attention variant {self.variant} does not keep the contract's bits; the engine "
                "runs exact ones only"
            )
        self.model, self.cache = model, KVCache.create(model.device, model.config, pages, slots, page_seed)
        self.recorded = recorded
        model.transformer.captures(self.cache).patience = patience
        self.page_order = self.cache.pages.allocate(pages, "engine")
        self._stride = self.cache.tables.array.shape[1]
        self._shared = slots  # owner of pages that nobody may write: the number of no table
        self._host = devices.get("cpu")
        self._ahead: Ahead | None = None
        if model.device.name != "cpu" and recorded:
            self._ahead = Ahead(model.transformer, self.cache, self.variant)
        self._threads = ThreadPoolExecutor(default_threads(), "crucible-sample")
        self.namespace = (
            int(CONTRACT_VERSION),
            model.mode,
            model.name,
            *sorted(model.file_digests().items()),
        )

    def set_pages(self, slot: int, pages: Sequence[int], shared: int, stored: int) -> None:
        self.share_pages(slot, pages, shared)
        self.cache.stored[slot] = stored

    def share_pages(self, slot: int, pages: Sequence[int], shared: int) -> None:
        before = self.cache.tables.array[slot]
        self.cache.owners[before[before >= 0]] = NO_PAGE  # an exchanged page belongs to nobody
        self.cache.tables.set(slot, pages)
        self.cache.owners[pages[:shared]] = self._shared
        self.cache.owners[pages[shared:]] = slot

    def add_page(self, slot: int, index: int, page: int) -> None:
        if not 0 <= index < self._stride:
            raise InputError(f"page {index} of a request is past the {self._stride} of a page table")
        self.cache.tables.array[slot, index] = page
        self.cache.owners[page] = slot

    def clear(self, slot: int, pages: Sequence[int], shared: int) -> None:
        self.cache.tables.clear(slot)
        self.cache.owners[pages[shared:]] = NO_PAGE
        self.cache.stored[slot] = 0
        if self._ahead is not None:
            self._ahead.leave(slot)

    def copy_page(self, source: int, target: int) -> None:
        for pool in (self.cache.kpool, self.cache.vpool):
            pool[target] = pool[source]

    def run(self, parts: Sequence[Part]) -> list[Outcome]:
        if self._ahead is None:
            return self._pass(parts)
        # Decode rows come first; they may be under way, and the rest then runs by itself.
        rows = []
        for part in parts:
            if len(part.ids) > 1 or part.sampling is None or _looks(part.sampling):
                break
            sampling = part.sampling
            rows.append(Row(part.slot, part.start, part.ids[0], sampling.draw, sampling.params))
        rest = parts[len(rows) :]
        if not rows or (rest and not self._ahead.covers(rows)):
            self._ahead.drain()
            return self._pass(parts)
        go_on = not rest and not all(part.final for part in parts)
        try:
            samples = self._ahead.run(rows, go_on)
        except InputError:
            return self._pass(parts)
        return [Outcome(s.token, s.kept) for s in samples] + (self._pass(rest) if rest else [])

    def _pass(self, parts: Sequence[Part]) -> list[Outcome]:
        """All rows in one pass."""
        ids = [token for part in parts for token in part.ids]
        slices = [Slice(part.slot, part.start, len(part.ids)) for part in parts]
        wanted = [part.sampling for part in parts if part.sampling is not None]
        rows = None
        if len(wanted) < len(parts):
            ends = np.cumsum([len(part.ids) for part in parts]) - 1
            rows = [int(end) for end, part in zip(ends, parts, strict=True) if part.sampling is not None]
        if self.model.device.name == "cpu":
            return self._on_host(ids, slices, rows, wanted)
        return self._on_device(ids, slices, rows, wanted)

    def settle(self) -> None:
        if self._ahead is not None:
            self._ahead.drain()

    def prepare(self) -> bool:
        return self.recorded and self.model.transformer.capture_wish(self.cache)

    def kv_digests(self, slot: int, length: int) -> tuple[str, str]:
        k, v = self.cache.read(slot, length)
        return digest(k), digest(v)

    def _on_host(self, ids, slices, rows, wanted: list[Sampling]) -> list[Outcome]:
        if rows is None and not self.recorded:
            rows = list(np.cumsum([s.length for s in slices]) - 1)
        run = self.model.transformer.forward
        logits = run(ids, slices, self.cache, rows=rows, variant=self.variant, own=False)
        while len(self.cache.prepared) > _RECORDINGS:
            del self.cache.prepared[next(iter(self.cache.prepared))]
        return self._choose_all(logits, wanted)

    def _on_device(self, ids, slices, rows, wanted: list[Sampling]) -> list[Outcome]:
        run = self.model.transformer
        if not wanted:
            run.forward(ids, slices, self.cache, rows=(), variant=self.variant, graph=self.recorded)
            return []
        params, draws = [s.params for s in wanted], [s.draw for s in wanted]
        try:
            chosen = run.choose(
                ids, slices, self.cache, params, draws, rows=rows, variant=self.variant, graph=self.recorded
            )
        except InputError:
            # Some row's logits are outside the contract. The same pass again, which stores the same bits,
            # and a choice row by row tell which; anything else that is wrong is raised once more.
            logits = run.forward(ids, slices, self.cache, rows=rows, variant=self.variant, graph=False)
            return self._choose_all(self.model.device.download(logits), wanted)
        outcomes = []
        for i, (token, sampling) in enumerate(zip(chosen.samples, wanted, strict=True)):
            row = self.model.device.download(chosen.logits[i]) if _looks(sampling) else None
            outcomes.append(self._outcome(row, token, sampling))
        return outcomes

    def _choose_all(self, logits: Any, wanted: list[Sampling]) -> list[Outcome]:
        """Outcomes of logits on the host, a row each."""
        rows = [(logits[i], sampling) for i, sampling in enumerate(wanted)]
        if sum(not sampling.params.greedy for sampling in wanted) < 2:
            return [self._choose(*row) for row in rows]
        # Ranking a vocabulary takes the processor milliseconds a row, and leaves the interpreter free.
        return list(self._threads.map(lambda row: self._choose(*row), rows))

    def _choose(self, logits: np.ndarray, sampling: Sampling) -> Outcome:
        try:
            chosen = sample(self._host, logits, sampling.params, sampling.draw)
        except InputError as refused:  # NaN or infinite logits, or too small a temperature: this row's fault
            return Outcome(-1, error=str(refused), cold=isinstance(refused, TooCold))
        return self._outcome(logits, chosen, sampling)

    def _outcome(self, logits: np.ndarray | None, chosen: Sample, sampling: Sampling) -> Outcome:
        if logits is None or not _looks(sampling):
            return Outcome(chosen.token, chosen.kept)
        mark = digest(logits) if sampling.digest else None
        if sampling.logprobs is None:
            return Outcome(chosen.token, chosen.kept, mark)
        values, top = logprobs(self._host, logits), sampling.logprobs
        best = rank(self._host, logits, 1.0, top).tolist() if top else []
        likeliest = tuple(TopLogprob(i, float(values[i])) for i in best)
        return Outcome(chosen.token, chosen.kept, mark, Logprobs(float(values[chosen.token]), likeliest))


def _looks(sampling: Sampling) -> bool:
    """Something beside the token is asked for, which takes the logits."""
    return sampling.digest or sampling.logprobs is not None
