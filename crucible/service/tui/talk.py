"""The turns of a chat on the screen, and the work on them: opening, answering, running again."""

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import ProgressBar, Static
from textual.worker import Worker, WorkerCancelled

from crucible.errors import CrucibleError, UnavailableError
from crucible.service.tui.conversation import WAY_OUT, Conversation
from crucible.service.tui.exchange import Exchange
from crucible.service.tui.source import Sampling, Source
from crucible.service.tui.transcript import Transcript, Turn
from crucible.service.tui.verdict import Verdict

_FRAMES = 20  # times a second that a growing answer is drawn


class Opening(Vertical):
    """What is being loaded, and how far it is."""

    def __init__(self, what: str):
        super().__init__(id="opening")
        self._what = what
        self.progress = (0, 0)

    def compose(self) -> ComposeResult:
        """A sentence and a bar."""
        yield Static(self._what, markup=False)
        yield ProgressBar(show_eta=False)

    def on_mount(self) -> None:
        """Draw the progress that another thread tells."""
        self.set_interval(1 / _FRAMES, self._show_progress)

    def _show_progress(self) -> None:
        done, total = self.progress
        self.query_one(ProgressBar).update(total=total or None, progress=done)


class Talk(VerticalScroll, can_focus=False):
    """Exchanges with a Source, one piece of work at a time; `conversation` is None until the source is open.

    `verdicts` are those of every second run so far.
    """

    class Said(Message):
        """A sentence for the person; `unsent` goes back into the message box."""

        def __init__(self, text: str, error: bool = False, unsent: str = ""):
            super().__init__()
            self.text, self.error, self.unsent = text, error, unsent

    class Impossible(Message):
        """There can be no chat, for the reason in `error`."""

        def __init__(self, error: CrucibleError):
            super().__init__()
            self.error = error

    class Changed(Message):
        """The source was opened, or the context holds other turns than before."""

    def __init__(self, source: Source):
        super().__init__(id="chat")
        self.source = source
        self.conversation: Conversation | None = None
        self.verdicts: list[Verdict] = []
        self._job: Worker | None = None
        self._growing: Exchange | None = None

    def on_mount(self) -> None:
        """Draw a growing answer, however fast it grows, a fixed number of times a second."""
        self.set_interval(1 / _FRAMES, self._draw_growing)

    @property
    def busy(self) -> bool:
        """Something is being opened, answered or run again."""
        return self._job is not None and not self._job.is_finished

    @property
    def exchanges(self) -> list[Exchange]:
        """All of them, the oldest first."""
        return list(self.query(Exchange))

    def stop(self) -> None:
        """Cancel the answer or the second run."""
        if self.busy and self.conversation is not None and not self._job.is_cancelled:
            self._job.cancel()

    async def rest(self) -> None:
        """Wait until nothing runs."""
        while self.busy:
            with contextlib.suppress(WorkerCancelled):
                await self._job.wait()

    def open(self, transcript: Transcript | None = None, replay: bool = False) -> None:
        """Open the source; take up a transcript, and run all of it again if so wished."""
        self._begin(self._open_with(transcript, replay))

    def ask(self, text: str, system: str | None, sampling: Sampling) -> None:
        """Ask; a source that could not be opened before is opened first."""
        self._begin(self._ask(text, system, sampling))

    def again(self, exchanges: Sequence[Exchange]) -> None:
        """Run answers again and mark each with its verdict."""
        self._begin(self._run_again(exchanges))

    async def clear(self) -> None:
        """Begin a new conversation."""
        self.stop()
        await self.rest()
        await self.query(Exchange).remove()
        if self.conversation is not None:
            self.conversation = Conversation.new(self.source, self.conversation.about)
            self.post_message(self.Changed())

    def _begin(self, work: Coroutine) -> None:
        self._job = self.run_worker(work)

    def _draw_growing(self) -> None:
        if self._growing is not None:
            self._growing.refresh_turn()

    def _say(self, text: str, error: bool = False, unsent: str = "") -> None:
        self.post_message(self.Said(text, error, unsent))

    async def _open(self) -> None:
        """Set `conversation`, or raise what the source raises."""
        opening = Opening(f"opening {self.source.name}, {self.source.place}")
        await self.mount(opening)

        def progress(done: int, total: int) -> None:
            opening.progress = (done, total)

        try:
            about = await self.source.open(progress)
        finally:
            opening.remove()
        self.conversation = Conversation.new(self.source, about)
        self.post_message(self.Changed())

    async def _open_with(self, transcript: Transcript | None, replay: bool) -> None:
        try:
            await self._open()
        except UnavailableError as error:
            self._say(str(error), error=True)
            return
        except CrucibleError as error:
            self.post_message(self.Impossible(error))
            return
        if transcript is None:
            return
        about = self.conversation.about
        self.conversation = Conversation.going_on(self.source, about, transcript)
        for turn in transcript.turns:
            await self._show(turn)
        if transcript.model != about.model:
            self._say(f"saved with model {transcript.model}, answered by {about.model} from here on")
        self.post_message(self.Changed())
        if replay:
            await self._run_again(self.exchanges)

    async def _show(self, turn: Turn) -> Exchange:
        exchange = Exchange(turn)
        await self.mount(exchange)
        self.anchor()
        return exchange

    async def _ask(self, text: str, system: str | None, sampling: Sampling) -> None:
        turn, exchange, said = None, None, ("", False)
        try:
            if self.conversation is None:
                await self._open()
            turn = await self.conversation.begin(text, system, sampling)
            exchange = self._growing = await self._show(turn)
            async with contextlib.aclosing(self.conversation.answer(turn)) as pieces:
                async for _ in pieces:
                    pass
            if self.conversation.full:
                said = (f"the context is full; {WAY_OUT}", False)
        except CrucibleError as error:
            said = (str(error), True)
        except asyncio.CancelledError:
            if not self.app.is_running:
                raise
            said = ("stopped", False)
        finally:
            self._growing = None
            if turn is not None:
                self.conversation.settle(turn, "cancelled")
        kept = turn is not None and turn in self.conversation.turns
        self._say(*said, unsent="" if kept else text)
        if exchange is not None and kept:
            exchange.refresh_turn()
        elif exchange is not None:
            await exchange.remove()
        self.post_message(self.Changed())

    async def _run_again(self, exchanges: Sequence[Exchange]) -> None:
        found: list[Verdict] = []
        for exchange in exchanges:
            exchange.mark(note="running again")
            exchange.scroll_visible()
            try:
                found.append(await self._second_run(exchange))
            except CrucibleError as error:
                exchange.mark()
                self._say(str(error), error=True)
                return
            except asyncio.CancelledError:
                if not self.app.is_running:
                    raise
                exchange.mark(note="second run stopped")
                self._say("stopped")
                return
        if len(found) > 1:
            bad = sum(not verdict.equal for verdict in found)
            self._say(f"{bad} of {len(found)} differ" if bad else f"✓ all {len(found)} equal", error=bad > 0)

    async def _second_run(self, exchange: Exchange) -> Verdict:
        index = self.conversation.turns.index(exchange.turn)
        async with contextlib.aclosing(self.conversation.again(index)) as events:
            async for event in events:
                if isinstance(event, Verdict):
                    exchange.mark(event)
                    self.verdicts.append(event)
                    return event
                exchange.mark(note=f"running again, {event} tokens")
        raise AssertionError("a second run ended without a verdict")
