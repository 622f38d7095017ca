"""The engine: a thread that runs the loop, and the ways to give it requests and read what they return."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Hashable, Iterable, Sequence

from crucible.engine.events import EngineStopped, QueueFull, RequestError, Result, Token
from crucible.engine.handle import Handle, Listener, tell, wake
from crucible.engine.job import Job
from crucible.engine.loop import Event, Loop
from crucible.engine.request import Checked, Request, as_list, as_request, check
from crucible.engine.runner import ModelRunner, Runner
from crucible.engine.scheduler import Limits
from crucible.engine.stats import Stats
from crucible.errors import InputError, UnavailableError
from crucible.files import brief
from crucible.model.graphs import PATIENT
from crucible.model.model import Model
from crucible.model.tokenizer import StreamDecoder

# Seconds without a request before an idle moment is used: captures between the requests of one burst would
# delay them.
_PAUSE = 0.005


class Engine:
    """Serves many requests of one model at once; a context manager.

    What a request returns depends on that request alone. `limits` bounds queue, steps and pages;
    `share_prefixes` may be switched off; `page_seed` shuffles and poisons the pages (a check);
    `runner` replaces what runs the passes (tests). Submitting is thread-safe.
    """

    def __init__(
        self,
        model: Model,
        limits: Limits | None = None,
        share_prefixes: bool = True,
        page_seed: int | None = None,
        runner: Runner | None = None,
    ):
        for name, value, kind in (
            ("model", model, Model),
            ("limits", Limits() if limits is None else limits, Limits),
            ("share_prefixes", share_prefixes, bool),
        ):
            if not isinstance(value, kind):
                raise InputError(f"{name} {brief(value)} must be a {kind.__name__}")
        self.model, self.limits = model, limits or Limits()
        if runner is None:
            sizes = self.limits.pages, self.limits.decode_batch
            runner = ModelRunner(model, *sizes, page_seed, patience=PATIENT)
        self._loop = Loop(runner, self.limits, share_prefixes)
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # something to do for the loop
        self._news = threading.Condition(self._lock)  # something to read for a caller
        self._inbox: deque[Job] = deque()
        self._cancelled: set[int] = set()
        self._live: dict[int, Handle] = {}
        self._next_id = 0
        self._stopping = False
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._serve, name="crucible-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request | str | Sequence[int], **changes) -> Handle:
        """Queue a request (or a prompt with the fields of Request as keywords).

        InputError for a request that breaks a rule, QueueFull when as many wait as may, EngineStopped
        after close or a failed step: in each case nothing of it is kept.
        """
        return self._submit(self.check(request, **changes))

    def submit_all(self, requests: Sequence[tuple[Hashable, Checked]], listener: Listener) -> list[Handle]:
        """Queue every (key, checked request), or none of them; `listener` gets their events by key.

        Errors as `submit`. The handles are for cancelling only: their events go to the listener.
        """
        (made,) = self.submit_lots([requests], listener)
        if isinstance(made, UnavailableError):
            raise made
        return made

    def submit_lots(
        self, lots: Iterable[Sequence[tuple[Hashable, Checked]]], listener: Listener
    ) -> list[list[Handle] | UnavailableError]:
        """What `submit_all` returns or raises for each of the lots, which come between the same two steps."""
        tokenizer, lots, made = self.model.tokenizer, [list(lot) for lot in lots], []
        for _, checked in (one for lot in lots for one in lot):
            if not isinstance(checked, Checked):  # its first step would fail, and the engine with it
                raise InputError(f"{type(checked).__name__} is no checked request; pass what check returns")
        ready = [[(key, checked, StreamDecoder(tokenizer)) for key, checked in lot] for lot in lots]
        with self._lock:
            for lot in ready:
                try:
                    self._refuse_if_stopped()
                    self._refuse_if_full(len(lot))
                    made.append([self._enqueue(one, decoder, listener, key) for key, one, decoder in lot])
                except UnavailableError as refused:
                    made.append(refused)
        return made

    def check(self, request: Request | str | Sequence[int], **changes) -> Checked:
        """The request as it would run, or InputError; nothing is submitted."""
        return check(self.model, as_request(request, changes), self.limits)

    def generate(
        self, requests: Sequence[Request | str | Sequence[int]], progress: bool = False, **changes
    ) -> list[Result]:
        """Results of all requests, in their order; `changes` apply to each.

        All are checked before the first runs. A request that fails by itself lets the others finish;
        then RequestError is raised with their `results`. Ctrl-C cancels what is left.
        """
        checked = [self.check(request, **changes) for request in as_list(requests)]
        handles: list[Handle] = []
        results: list[Result | None] = []
        failed: RequestError | None = None
        try:
            with _bar(len(checked), progress) as bar:
                for request in checked:
                    handles.append(self._submit(request, wait=True))
                for handle in handles:
                    try:
                        results.append(handle.result())
                    except RequestError as error:
                        failed = failed or error
                        results.append(None)
                    if bar is not None:
                        bar.update()
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise
        if failed is not None:
            raise type(failed)(str(failed), results)
        return [result for result in results if result is not None]

    async def stream(
        self, request: Request | str | Sequence[int], **changes
    ) -> AsyncIterator[Token | Result]:
        """Tokens and the Result as they come; leaving the iteration early cancels the request."""
        handle = self.submit(request, **changes)
        try:
            async for event in handle:
                yield event
        finally:
            handle.cancel()

    def cancel(self, handle: Handle) -> None:
        """As Handle.cancel; a request that has ended is left alone."""
        with self._lock:
            if self._live.get(handle.id) is handle:  # not one of another engine with the same number
                self._cancelled.add(handle.id)
                self._work.notify()

    def stats(self) -> Stats:
        """A snapshot of counters, queue, pages and the last steps."""
        with self._lock:
            return self._loop.stats(self._failure)

    def close(self) -> None:
        """Cancel what is left and end the thread; may be called twice."""
        with self._lock:
            self._stopping = True
            self._work.notify()
        self._thread.join()

    @property
    def failure(self) -> str | None:
        """Why the engine stopped by itself; None while it runs, and after `close`."""
        return self._failure

    def join(self) -> str | None:
        """Wait for the engine's end, by `close` or by a failure: why it failed, or None."""
        self._thread.join()
        return self._failure

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _submit(self, request: Checked, wait: bool = False) -> Handle:
        decoder = StreamDecoder(self.model.tokenizer)
        with self._lock:
            if wait:
                ended = lambda: self._stopping or self._failure is not None  # noqa: E731
                self._news.wait_for(lambda: ended() or self._room() > 0)
            self._refuse_if_stopped()
            self._refuse_if_full(1)
            return self._enqueue(request, decoder)

    def _enqueue(
        self, request: Checked, decoder: StreamDecoder, listener: Listener | None = None, key: Hashable = None
    ) -> Handle:
        handle = Handle(self, self._next_id, listener, key)
        self._inbox.append(Job(self._next_id, request, decoder, handle))
        self._live[self._next_id] = handle
        self._next_id += 1
        totals = self._loop.totals
        totals.queue_peak = max(totals.queue_peak, self.limits.queue - self._room())
        self._work.notify()
        return handle

    def _room(self) -> int:
        return self.limits.queue - len(self._inbox) - len(self._loop.waiting)

    def _refuse_if_full(self, count: int) -> None:
        room = self._room()
        if count > room:
            queue = self.limits.queue
            some = (
                f"{queue - room} requests wait already" if room < queue else f"{count} are asked for at once"
            )
            raise QueueFull(f"{some} and {queue} may; try again later or raise the queue's limit")

    def _refuse_if_stopped(self) -> None:
        if self._failure is not None:
            raise EngineStopped(f"the engine stopped: {self._failure}; make a new one")
        if self._stopping:
            raise EngineStopped("the engine is closed; make a new one")

    def _wait(self, ready, timeout: float | None) -> bool:
        with self._lock:
            return bool(self._news.wait_for(ready, timeout))

    def _serve(self) -> None:
        """The engine's thread: step boundaries take in submissions and cancellations."""
        try:
            while self._boundary():
                self._hand_out(self._loop.step())
            self._hand_out(self._cancel_all())
            self._loop.runner.settle()
        except BaseException as error:
            # A step that raised is in doubt: nothing of it goes out and nothing runs after it.
            why = " ".join(str(error).split())  # one line, whatever a driver said
            self._stop(f"{type(error).__name__}: {why}" if why else type(error).__name__)
            if not isinstance(error, Exception):
                raise
        else:
            self._stop(None)

    def _cancel_all(self) -> list[tuple[Job, Event]]:
        """At the end: whatever is left ends as cancelled, is counted so and gives its pages back."""
        with self._lock:
            while self._inbox:
                self._loop.submit(self._inbox.popleft())
            return self._loop.cancel(self._live)

    def _boundary(self) -> bool:
        """Between two steps: take what callers left, waiting for it where nothing runs; False at the end."""
        self._rest()
        with self._lock:
            if self._stopping:
                return False
            while self._inbox:
                self._loop.submit(self._inbox.popleft())
            cancelled, self._cancelled = self._cancelled, set()
            events = self._loop.cancel(cancelled) if cancelled else []
        if events:
            self._hand_out(events)
        return True

    def _rest(self) -> None:
        """Until something is to be done, prepare what may be asked for, then wait."""
        more = True
        while True:
            with self._lock:
                if self._work.wait_for(self._wanted, _PAUSE if more else None):
                    return
            more = self._loop.runner.prepare()

    def _wanted(self) -> bool:
        return bool(self._stopping or self._inbox or self._cancelled or self._loop.busy)

    def _hand_out(self, events: list[tuple[Job, Event]]) -> None:
        """Give events to their handles, and wake each reader once."""
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Event]] = {}
        heard: dict[Listener, list] = {}
        with self._lock:
            for job, event in events:
                handle: Handle = job.handle
                if type(event) is not Token:
                    handle._end = event
                    self._live.pop(job.id, None)
                if handle._listener is not None:
                    heard.setdefault(handle._listener, []).append((handle._key, event))
                elif type(event) is Token:
                    handle._events.append(event)
                handle.collect(loops)
            self._news.notify_all()
        wake(loops)
        tell(heard)

    def _stop(self, failure: str | None) -> None:
        """Take nothing more; after a failure every request that has not ended fails with the engine."""
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Event]] = {}
        heard: dict[Listener, list] = {}
        with self._lock:
            self._failure, self._stopping = failure, True
            for handle in self._live.values():
                handle._end = EngineStopped(f"the engine stopped: {failure}; no token of that step is given")
                if handle._listener is not None:
                    heard.setdefault(handle._listener, []).append((handle._key, handle._end))
                handle.collect(loops)
            self._live.clear()
            self._inbox.clear()
            self._news.notify_all()
        wake(loops)
        with contextlib.suppress(Exception):  # one that cannot hear why the engine stopped
            tell(heard)


def _bar(total: int, shown: bool):
    """A progress bar on a terminal, or a context of None."""
    if not shown:
        return contextlib.nullcontext()
    from tqdm import tqdm

    return tqdm(total=total, unit="request", disable=None, leave=False)
