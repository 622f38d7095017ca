"""Answers from an engine in this process."""

import asyncio
from collections.abc import AsyncGenerator

from crucible import device as devices
from crucible.engine.engine import Engine
from crucible.engine.events import Result, Token
from crucible.engine.request import Request
from crucible.engine.scheduler import Limits, pages_for
from crucible.errors import UnsupportedError
from crucible.model.model import Model, open_checkpoint
from crucible.numerics.contract import PAGE_SIZE
from crucible.service.backend import LocalBackend
from crucible.service.tui.source import About, End, Messages, Piece, Progress, Sampling, State, no_template


class _Closed(Exception):
    """The chat ended while its model was loading."""


class LocalSource:
    """A Source over an Engine of its own, loaded by `open`; or over a `backend` that somebody else closes."""

    def __init__(
        self,
        model: str,
        mode: str = "int8",
        device: str = "auto",
        limits: Limits | None = None,
        backend: LocalBackend | None = None,
    ):
        self.name, self.place = model, f"{mode}, in this process"
        self._mode, self._device, self._limits = mode, device, limits
        self._backend, self._mine = backend, backend is None
        self._closed = False

    def check(self) -> None:
        """Refuse what `open` would refuse, before any weight is read."""
        devices.get(self._device)
        if not open_checkpoint(self.name).chat_template:
            raise UnsupportedError(no_template(self.name))

    async def open(self, progress: Progress) -> About:
        """As Source.open."""
        if self._backend is None:
            self._backend = await asyncio.to_thread(self._load, progress)
        card, limits = self._backend.card, self._backend.limits
        if not card.chat_template:
            raise UnsupportedError(no_template(self.name))
        self.place = f"{card.mode} on {card.device.name}, in this process"
        return About(self.name, self.place, min(card.config.context, limits.pages * PAGE_SIZE))

    def _load(self, progress: Progress) -> LocalBackend:
        def heard(done: int, total: int) -> None:
            if self._closed:
                raise _Closed
            progress(done, total)

        model = Model.load(self.name, self._device, self._mode, heard)
        if self._closed:
            raise _Closed
        model.fingerprint()  # spells every token once: now, not at the end of the first answer
        # One answer runs at a time, and a prompt shares the pages of the one before it.
        pages = min(pages_for(model.config.context), Limits().pages)
        return LocalBackend(Engine(model, self._limits or Limits(pages=pages)))

    async def count(self, messages: Messages) -> int:
        """As Source.count."""
        card = self._backend.card
        return len(await asyncio.to_thread(card.encode_chat, messages))

    async def ask(self, messages: Messages, sampling: Sampling) -> AsyncGenerator[Piece | End, None]:
        """As Source.ask."""
        card = self._backend.card
        prompt = await asyncio.to_thread(card.encode_chat, messages)
        request = self._backend.check(Request(prompt, **vars(sampling)))
        (stream,) = await self._backend.submit([request])
        try:
            async for batch in stream:
                tokens = [event for event in batch if isinstance(event, Token)]
                if tokens:
                    yield Piece("".join(t.text for t in tokens), tuple(t.token for t in tokens))
                if isinstance(batch[-1], Result):
                    yield self._end(batch[-1], card.fingerprint(sampling.sampler))
        finally:
            stream.cancel()

    def _end(self, result: Result, fingerprint: str) -> End:
        state = State(result.random_state.seed, result.random_state.next_draw)
        return End(
            result.text,
            tuple(result.tokens),
            len(result.prompt_tokens),
            result.finish_reason,
            fingerprint,
            state,
        )

    async def close(self) -> None:
        """As Source.close."""
        self._closed = True
        if self._backend is not None and self._mine:
            await self._backend.close()
