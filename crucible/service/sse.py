"""Replies: JSON, server-sent events that end with their client, and waiting that does."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
from fastapi import Request, Response

from crucible.engine.events import Result
from crucible.service import logs
from crucible.service.failure import Failure, failure_of
from crucible.service.tally import Counted, Tally

_STREAMED = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    (b"content-type", b"text/event-stream; charset=utf-8"),
)


class ClientGone(Exception):
    """The client closed its connection before the reply; what it asked for was cancelled."""


def to_json(data: Any) -> bytes:
    """JSON of plain data, dataclasses and named tuples; a number that is not finite becomes null."""
    return msgspec.json.encode(data)


def json_reply(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(to_json(data), status, headers, "application/json")


def event(data: bytes | dict[str, Any], name: str | None = None) -> bytes:
    """One server-sent event; `data` of one line."""
    line = data if isinstance(data, bytes) else to_json(data)
    return (b"" if name is None else b"event: " + name.encode() + b"\n") + b"data: " + line + b"\n\n"


def cancel_all(streams: Sequence[Counted]) -> None:
    """Cancel every stream that has not ended."""
    for stream in streams:
        stream.cancel()


class EventStream(Response):
    """Sends what an async generator of bytes yields; `on_close` is called once, however it ends.

    Make it only when the request was admitted: the status goes out at once. A client that leaves, or that
    takes nothing for `patience` seconds, ends the generator; the log calls it client_gone. What the
    generator raises becomes the stream's last event, by `spell(failure, request_id)`: a face's sse_error;
    without one the reply ends unfinished.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        on_close: Callable[[], None],
        spell: Callable[[Failure, str], bytes] | None = None,
        patience: float = 60.0,
    ):
        self.raw_headers = list(_STREAMED)
        self._events, self._on_close, self._spell, self._patience = events, on_close, spell, patience
        self._since: float | None = None  # when the send began that has not ended yet
        self._stay: asyncio.Timeout | None = None  # ends the sending once the client has left
        self._look: asyncio.TimerHandle | None = None

    async def __call__(self, scope, receive, send) -> None:
        """Send the events while watching for the client to leave."""
        tally, leaving = scope["state"]["tally"], asyncio.ensure_future(_left(receive))
        self._stay = asyncio.timeout(None)
        try:
            async with self._stay:
                leaving.add_done_callback(self._gone)
                self._watch()
                await self._send(send, tally)
        except ClientGone:
            tally.code = "client_gone"
        except TimeoutError:
            if not self._stay.expired():
                raise
            tally.code = "client_gone"
        finally:
            self._on_close()
            self._look.cancel()
            leaving.remove_done_callback(self._gone)
            leaving.cancel()
            await asyncio.wait((leaving,))

    async def _send(self, send, tally: Tally) -> None:
        clock = asyncio.get_running_loop().time

        async def put(message) -> None:
            self._since = clock()
            try:
                await send(message)
            except OSError:
                raise ClientGone from None
            self._since = None

        async with contextlib.aclosing(self._events) as events:
            await put({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for part in self._spelled(events, tally):
                await put({"type": "http.response.body", "body": part, "more_body": True})
            await put({"type": "http.response.body", "body": b"", "more_body": False})

    def _watch(self) -> None:
        """Look now and then how long the send has lasted: a timer for each event costs a third of it."""
        loop = asyncio.get_running_loop()
        if self._since is not None and loop.time() - self._since >= self._patience:
            self._gone()
        self._look = loop.call_later(self._patience / 4, self._watch)

    def _gone(self, *_) -> None:
        with contextlib.suppress(RuntimeError):  # the sending has just ended by itself
            self._stay.reschedule(asyncio.get_running_loop().time())

    async def _spelled(self, events: AsyncIterator[bytes], tally: Tally) -> AsyncIterator[bytes]:
        try:
            async for part in events:
                yield part
        except Exception as error:
            failure = failure_of(error)
            tally.code = failure.code
            if failure.code == "internal_error":
                logs.unforeseen(tally, error)
            if self._spell is None:
                raise
            yield self._spell(failure, tally.request_id)


async def wait_or_cancel(request: Request, streams: Sequence[Counted]) -> list[Result]:
    """Results of all streams, in order; ClientGone, with all cancelled, if the client leaves before.

    The first stream to fail cancels the others and raises what it raised.
    """
    waiting = asyncio.gather(*(stream.result() for stream in streams))
    leaving = asyncio.ensure_future(_left(request.receive))
    try:
        await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ClientGone
        return await waiting
    finally:
        cancel_all(streams)
        for task in (waiting, leaving):
            task.cancel()
        await asyncio.gather(waiting, leaving, return_exceptions=True)


async def _left(receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
