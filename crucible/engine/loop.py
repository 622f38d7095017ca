"""The engine's loop, one step at a time and without threads: plan, apply, run, hand out."""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from crucible.engine.events import RequestError, Result, TemperatureTooLow, Token
from crucible.engine.job import Job, insert
from crucible.engine.runner import Outcome, Part, Runner
from crucible.engine.scheduler import Chunk, Limits, Plan, Running, State, Waiting, pages_for, plan
from crucible.engine.stats import Counters, Stats, StepRecord
from crucible.kv.prefix import PrefixPool
from crucible.numerics.contract import PAGE_SIZE

Event = Token | Result | RequestError
_TIMELINE = 4096  # steps kept for the timeline


class Loop:
    """All jobs of an engine and its pages.

    `step` moves everything one step on and returns the events of it. If it raises, the step is in doubt:
    nothing of it was handed out, and the loop must not run again.
    """

    def __init__(self, runner: Runner, limits: Limits, share: bool = True):
        self.runner, self.limits = runner, limits
        self.pool = PrefixPool(limits.pages, runner.page_order, share)
        self.waiting: list[Job] = []  # both by arrival
        self.running: list[Job] = []
        self.totals = Counters()
        self.timeline: deque[StepRecord] = deque(maxlen=_TIMELINE)
        self._slots = list(range(limits.decode_batch))[::-1]
        self._events: list[tuple[Job, Event]] = []
        self._started = time.perf_counter()

    def submit(self, job: Job) -> None:
        """Queue a job; it starts in a later step."""
        insert(self.waiting, job)
        self.totals.submitted += 1

    def cancel(self, ids: Iterable[int]) -> list[tuple[Job, Event]]:
        """End jobs where they are, between two steps: their pages are free for the next one. The events."""
        ids = set(ids)
        for jobs in (self.waiting, self.running):
            for job in [job for job in jobs if job.id in ids]:
                self.totals.cancelled += 1
                self._end(job, job.result("cancelled", None, (None, None)))
        return self._take_events()

    def step(self) -> list[tuple[Job, Event]]:
        """Run one step; its events in order."""
        began = time.perf_counter()
        todo = plan(self._state(), self.limits)
        if not todo.idle:
            jobs = self._apply(todo)
            parts = [self._decode(job) for job in jobs[: len(todo.decode)]]
            parts += [self._chunk(job, c) for job, c in zip(jobs[len(parts) :], todo.prefill, strict=True)]
            before = time.perf_counter()
            outcomes = self.runner.run(parts)
            after = time.perf_counter()
            self._commit(jobs, parts, outcomes)
            if not self.running:
                self.runner.settle()
            self._note(todo, began, after - before)
        return self._take_events()

    @property
    def busy(self) -> bool:
        """A step would do something."""
        return bool(self.running or self.waiting)

    def _take_events(self) -> list[tuple[Job, Event]]:
        events, self._events = self._events, []
        return events

    def stats(self, failure: str | None = None) -> Stats:
        """A snapshot."""
        pool = self.pool
        return Stats(
            replace(self.totals),
            len(self.waiting),
            len(self.running),
            pool.num_pages,
            pool.used,
            pool.cached,
            pool.free,
            pool.hits,
            pool.saved_rows,
            pool.copies,
            pool.evictions,
            pool.adopted,
            failure,
            tuple(self.timeline),
        )

    def _state(self) -> State:
        available = self.pool.available
        tight = available < len(self.running)
        running = [
            Running(j.id, j.stored, j.end, j.pages, self.pool.exclusive(j.id) if tight else 0)
            for j in self.running
        ]
        return State(self._candidates(available), running, available)

    def _candidates(self, available: int) -> list[Waiting]:
        """The head of the queue as far as one step could admit it, with what the cache holds of it."""
        found: list[Waiting] = []
        room = self.limits.decode_batch - len(self.running)
        budget = self.limits.prefill_budget
        for job in self.waiting:
            if room <= 0 or budget <= 0 or available < 0:
                break
            match = job.match = self.pool.match(job.known, self.runner.namespace)
            cost = int(match.tail is not None and match.tail.refs == 0)
            rows, live = len(job.known), match.live
            found.append(Waiting(job.id, rows, len(match.nodes), live, match.tail_rows, cost))
            room -= 1
            budget -= min(rows - match.rows, self.limits.chunk_cap or rows)
            available -= pages_for(rows) - live
        return found

    def _apply(self, todo: Plan) -> list[Job]:
        """Preempt, admit and grow; the jobs that run: decoding ones, then those of the chunks."""
        by_id = {job.id: job for job in self.running}
        for id in todo.preempt:
            job = by_id.pop(id)
            self._vacate(job)
            job.preemptions += 1
            self.totals.preemptions += 1
            insert(self.waiting, job)
        if todo.admit:
            self._admit(todo, by_id)
        for id in todo.grow:
            job = by_id[id]
            (page,) = self.pool.allocate(1, id)
            self.runner.add_page(job.slot, job.pages, page)
            job.pages += 1
        return [by_id[id] for id in todo.decode] + [by_id[chunk.id] for chunk in todo.prefill]

    def _admit(self, todo: Plan, by_id: dict[int, Job]) -> None:
        starting = self.waiting[: len(todo.admit)]
        assert [job.id for job in starting] == [a.id for a in todo.admit], "admitted out of turn"
        del self.waiting[: len(todo.admit)]
        for job, a in zip(starting, todo.admit, strict=True):
            self.pool.take(job.id, job.match, tail=a.tail_rows > 0)
        for job, a in zip(starting, todo.admit, strict=True):
            self.pool.allocate(a.new_pages, job.id)
            pages = self.pool.pages_of(job.id)
            if a.tail_rows:
                self.runner.copy_page(job.match.tail.page, pages[a.hit_pages])
                self.pool.unpin(job.id)
            job.match = None
            job.slot, job.pages, job.shared = self._slots.pop(), len(pages), a.hit_pages
            job.stored, job.end = a.hit_pages * PAGE_SIZE + a.tail_rows, len(job.known)
            if job.admitted is None:
                job.admitted, job.cached_rows = time.perf_counter(), job.stored
            else:
                self.totals.recomputed_rows += job.end - job.stored
            self.runner.set_pages(job.slot, pages, a.hit_pages, job.stored)
            insert(self.running, job)
            by_id[job.id] = job

    @staticmethod
    def _decode(job: Job) -> Part:
        known, stored = job.known, job.stored
        final = len(known) + 1 == job.prompt_rows + job.request.max_tokens
        return Part(job.slot, stored, (known[stored],), job.sampling(), final)

    @staticmethod
    def _chunk(job: Job, chunk: Chunk) -> Part:
        ids = job.known[chunk.start : chunk.start + chunk.length]
        return Part(job.slot, chunk.start, ids, job.sampling() if chunk.last else None)

    def _commit(self, jobs: list[Job], parts: list[Part], outcomes: list[Outcome]) -> None:
        """Take the step's results over, each request by itself: what one raises ends that one only."""
        if len(outcomes) != sum(part.sampling is not None for part in parts):
            raise RuntimeError(
                f"the pass returned {len(outcomes)} outcomes of other rows than were asked for"
            )
        chosen, share, events = iter(outcomes), self.pool.share, self._events
        for job, part in zip(jobs, parts, strict=True):
            job.stored += len(part.ids)
            outcome = next(chosen) if part.sampling is not None else None
            if outcome is not None and outcome.error is not None:
                kind = TemperatureTooLow if outcome.cold else RequestError
                self._fail(job, outcome.error, kind)  # its pages are given back unshared
                continue
            if share and job.stored >= (job.shared + 1) * PAGE_SIZE:
                self._share(job)
            if outcome is None:
                continue
            try:
                event, reason, by = job.accept(outcome)
            except Exception as error:  # a tokenizer's fault on this text, say; the others go on
                self._fail(job, f"{type(error).__name__}: {error}")
                continue
            self.totals.tokens += 1
            events.append((job, event))
            if reason is not None:
                kv = (None, None)
                if job.request.kv_digests:
                    kv = self.runner.kv_digests(job.slot, job.stored)
                self.totals.finished += 1
                self._end(job, job.result(reason, by, kv))

    def _share(self, job: Job) -> None:
        before = job.shared
        self.pool.commit(job.id, job.known, job.stored, self.runner.namespace)
        job.shared = self.pool.shared_of(job.id)
        if job.shared > before:
            self.runner.share_pages(job.slot, self.pool.pages_of(job.id), job.shared)

    def _fail(self, job: Job, why: str, kind: type[RequestError] = RequestError) -> None:
        self.totals.failed += 1
        self._end(job, kind(f"request {job.id} failed at token {job.made}: {why}"))

    def _end(self, job: Job, event: Event) -> None:
        if job.slot >= 0:
            self._vacate(job)
        else:
            self.waiting.remove(job)
        self._events.append((job, event))

    def _vacate(self, job: Job) -> None:
        """Give back a running job's pages and slot."""
        pages, shared = self.pool.pages_of(job.id), self.pool.shared_of(job.id)
        self.runner.clear(job.slot, pages, shared)
        self.pool.release(job.id)
        self._slots.append(job.slot)
        self.running.remove(job)
        job.slot, job.stored, job.end, job.pages, job.shared = -1, 0, 0, 0, 0

    def _note(self, todo: Plan, began: float, pass_seconds: float) -> None:
        now = time.perf_counter()
        host = now - began - pass_seconds
        rows = sum(chunk.length for chunk in todo.prefill)
        totals = self.totals
        totals.steps += 1
        totals.prefill_rows += rows
        totals.decode_rows += len(todo.decode)
        if rows and todo.decode:
            totals.mixed_steps += 1
            totals.mixed_prefill_rows += rows
            totals.mixed_decode_rows += len(todo.decode)
        elif rows:
            totals.prefill_steps += 1
        totals.pass_seconds += pass_seconds
        totals.host_seconds += host
        self.timeline.append(
            StepRecord(
                now - self._started,
                rows,
                len(todo.decode),
                len(self.waiting),
                len(self.running),
                self.pool.used,
                self.pool.cached,
                pass_seconds,
                host,
                len(todo.prefill),
            )
        )
