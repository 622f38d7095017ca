"""A chat without a screen: what is asked, within the context, and what is asked again."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace

from crucible.errors import CrucibleError, InputError, UnavailableError
from crucible.service.tui.source import About, End, Piece, Sampling, Source
from crucible.service.tui.transcript import Finish, Transcript, Turn
from crucible.service.tui.verdict import Verdict, compare

WAY_OUT = "Ctrl-O shortens the chat by its oldest turn, Ctrl-N begins a new one"


class ContextFull(InputError):
    """The chat leaves no room for an answer."""


@dataclass
class Conversation:
    """A transcript that goes on; turns before number `since` are no longer part of the prompt.

    The first `loaded` turns were read from a file and are answers of model `loaded_from`.
    """

    source: Source
    about: About
    transcript: Transcript
    since: int = 0
    loaded: int = 0
    loaded_from: str = ""

    @classmethod
    def new(cls, source: Source, about: About) -> "Conversation":
        """A chat in which nothing was said."""
        return cls(source, about, Transcript(about.model))

    @classmethod
    def going_on(cls, source: Source, about: About, transcript: Transcript) -> "Conversation":
        """A chat that takes up what was saved; the model is the one that answers now."""
        last = transcript.turns[-1].since if transcript.turns else 0
        mine = Transcript(about.model, transcript.turns)
        return cls(source, about, mine, last, len(transcript.turns), transcript.model)

    @property
    def turns(self) -> list[Turn]:
        """All turns, the forgotten ones too."""
        return self.transcript.turns

    @property
    def used(self) -> int:
        """Positions that the last answer and its prompt took; 0 before the first."""
        if not self.turns or self.since >= len(self.turns):
            return 0
        return self.turns[-1].prompt_tokens + len(self.turns[-1].tokens)

    @property
    def full(self) -> bool:
        """The last answer ended where the context did."""
        return self.used >= self.about.capacity

    def forget(self) -> int:
        """Leave the oldest turn out of the prompts to come; how many turns are left in it."""
        self.since = min(self.since + 1, len(self.turns))
        return len(self.turns) - self.since

    async def begin(self, user: str, system: str | None, sampling: Sampling) -> Turn:
        """A new turn with its seed drawn and its tokens limited to the context, or ContextFull."""
        turn = Turn(user, system or None, self.since, sampling.drawn())
        self.turns.append(turn)
        try:
            turn.prompt_tokens = await self.source.count(self.transcript.messages(len(self.turns) - 1))
            room = self.about.capacity - turn.prompt_tokens
            if room < 1:
                way = WAY_OUT if self.since < len(self.turns) - 1 else "shorten the message"
                raise ContextFull(
                    f"the chat has {turn.prompt_tokens} tokens and the context holds "
                    f"{self.about.capacity}; {way}"
                )
            turn.sampling = replace(turn.sampling, max_tokens=min(sampling.max_tokens, room))
        except BaseException:
            self.turns.remove(turn)
            raise
        return turn

    async def answer(self, turn: Turn) -> AsyncIterator[Piece]:
        """Pieces of the answer as they come; `turn` is filled in however it ends.

        A turn that ends without a token (cancelled or failed) is taken back.
        """
        began = time.perf_counter()
        messages = self.transcript.messages(self.turns.index(turn))
        try:
            async with aclosing(self.source.ask(messages, turn.sampling)) as events:
                async for event in events:
                    turn.seconds = time.perf_counter() - began
                    if isinstance(event, End):
                        turn.finish(event)
                        break
                    if turn.first_token_seconds is None:
                        turn.first_token_seconds = turn.seconds
                    turn.text += event.text
                    turn.tokens += event.tokens
                    yield event
            if not turn.finish_reason:
                raise UnavailableError("the answer ended before its end was told; ask again")
        except (asyncio.CancelledError, GeneratorExit):
            self.settle(turn, "cancelled")
            raise
        except CrucibleError:
            self.settle(turn, "failed")
            raise

    def settle(self, turn: Turn, reason: Finish) -> None:
        """End a turn that has no end yet; without a token it is taken back."""
        if turn.finish_reason:
            return
        turn.stop(reason)
        if not turn.tokens:
            self.turns.remove(turn)

    async def again(self, index: int) -> AsyncIterator[int | Verdict]:
        """Run the answer of turn `index` again with its seed: tokens so far, then the Verdict."""
        turn = self.turns[index]
        # An answer that was cut off is compared as far as it came.
        whole = turn.finish_reason in ("stop", "length")
        limit = turn.sampling.max_tokens if whole else max(len(turn.tokens), 1)
        got: list[int] = []
        asked = self.source.ask(self.transcript.messages(index), replace(turn.sampling, max_tokens=limit))
        async with aclosing(asked) as events:
            async for event in events:
                if isinstance(event, End):
                    model = self.loaded_from if index < self.loaded else self.about.model
                    yield compare(turn, event, model, self.about.model)
                    return
                got += event.tokens
                yield len(got)
        raise UnavailableError("the second run ended before its end was told; run it again")
