"""A streaming HTTP/1.1 request that costs its process microseconds: arrivals are timed first, read later."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from crucible.service.load.target import Target

_LARGEST_HEAD = 65536


class BadReply(Exception):
    """The server's bytes are not an HTTP/1.1 reply, or they ended early; the message says how."""


@dataclass
class Reply:
    """A reply as it comes: status and headers, then every piece of its body with the time of its arrival."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[tuple[float, bytes]] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        """All that came."""
        return b"".join(piece for _, piece in self.pieces)


class Unpacker:
    """From bytes of a connection to a Reply: the head, then a chunked, counted or open-ended body.

    Written here because the clock of every stream waits for the parser of its neighbours: an event takes
    this one a fifth of the time that it takes h11.
    """

    def __init__(self) -> None:
        self.reply = Reply()
        self.done = False
        self._buffer = bytearray()
        self._left: int | None = None  # bytes of the chunk, or of a counted body, that are to come
        self._body = False
        self._chunked = False

    def feed(self, at: float, data: bytes) -> None:
        """Take bytes that arrived at `at`; BadReply for what is no HTTP."""
        self._buffer += data
        if not self._body and not self._head():
            return
        if self._chunked:
            self._chunks(at)
        elif self._left is None:
            self._take(at, len(self._buffer))
        else:
            self._left -= self._take(at, min(self._left, len(self._buffer)))
            self.done = self._left == 0

    def eof(self) -> None:
        """The connection ended; BadReply where the reply had not."""
        if self._body and not self._chunked and self._left is None:
            self.done = True
        if not self.done:
            raise BadReply("the connection ended before the reply did")

    def _head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _LARGEST_HEAD:
                raise BadReply(f"the reply's head is longer than {_LARGEST_HEAD} bytes")
            return False
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise BadReply(f"the reply begins with {first[:40]!r}, which is no HTTP/1.1")
        self.reply.status = int(rest[:3])
        for line in lines:
            name, _, value = line.partition(":")
            self.reply.headers[name.strip().lower()] = value.strip()
        self._body = True
        self._chunked = self.reply.headers.get("transfer-encoding", "").lower() == "chunked"
        if not self._chunked and "content-length" in self.reply.headers:
            self._left = int(self.reply.headers["content-length"])
            self.done = self._left == 0
        return True

    def _chunks(self, at: float) -> None:
        while not self.done:
            if self._left is None:
                end = self._buffer.find(b"\r\n")
                if end < 0:
                    return
                try:
                    self._left = int(bytes(self._buffer[:end]).split(b";")[0], 16)
                except ValueError:
                    raise BadReply(f"{bytes(self._buffer[:20])!r} is no size of a chunk") from None
                del self._buffer[: end + 2]
            if len(self._buffer) < self._left + 2:
                return
            if self._left == 0:
                self.done = True
                return
            self._take(at, self._left)
            del self._buffer[:2]
            self._left = None

    def _take(self, at: float, count: int) -> int:
        if count:
            self.reply.pieces.append((at, bytes(self._buffer[:count])))
            del self._buffer[:count]
        return count


class _Line(asyncio.Protocol):
    """One connection for one request. The clock is read before anything else is done with the bytes, of this
    connection and of all others that have some: they are unpacked in the loop's next turn."""

    def __init__(self, heard: Callable[[], None] | None):
        self.unpacker, self.heard = Unpacker(), heard
        self._loop = asyncio.get_running_loop()
        self._came: list[tuple[float, bytes]] = []
        self.ended: asyncio.Future[float] = self._loop.create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        at = time.perf_counter()
        if not self._came:
            self._loop.call_soon(self._unpack)
        self._came.append((at, data))

    def _unpack(self) -> None:
        came, self._came = self._came, []
        for at, data in came:
            if self.ended.done():
                return
            try:
                self.unpacker.feed(at, data)
                if self.heard is not None:
                    self.heard()
            except (BadReply, ValueError) as error:
                self._fail(error)
                return
            if self.unpacker.done:
                self.ended.set_result(at)

    def connection_lost(self, error: Exception | None) -> None:
        self._unpack()
        if self.ended.done():
            return
        try:
            self.unpacker.eof()
            self.ended.set_result(time.perf_counter())
        except BadReply as early:
            self._fail(error or early)

    def _fail(self, error: Exception) -> None:
        self.ended.set_exception(BadReply(str(error)))
        self.ended.exception()  # taken, so that the loop does not report it where its caller was cancelled


class Connection:
    """A connection that sends one request; whoever opened it closes it."""

    def __init__(self, to: Target, heard: Callable[[], None] | None = None):
        self._to, self._heard = to, heard
        self._line: _Line | None = None

    async def open(self) -> None:
        """Connect; BadReply where nobody listens."""
        loop = asyncio.get_running_loop()
        try:
            _, self._line = await loop.create_connection(
                lambda: _Line(self._heard), self._to.host, self._to.port
            )
        except OSError as error:
            raise BadReply(f"cannot connect to {self._to.url}: {error.strerror or error}") from None

    def send(
        self, path: str, body: bytes = b"", method: str = "POST", headers: Mapping[str, str] | None = None
    ) -> float:
        """Write the request; the time just before."""
        to = self._to
        head = [
            f"{method} {path} HTTP/1.1",
            f"host: {to.host}:{to.port}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
        ]
        head += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if to.api_key:
            head.append(f"authorization: Bearer {to.api_key}")
        data = "\r\n".join(head).encode() + b"\r\n\r\n" + body
        at = time.perf_counter()
        self._line.transport.write(data)
        return at

    async def finished(self) -> float:
        """Time of the last byte; BadReply where the server broke off."""
        await asyncio.wait((self._line.ended,))  # whoever is cancelled here leaves the future as it is
        return self._line.ended.result()

    @property
    def reply(self) -> Reply:
        """What has come so far."""
        return self._line.unpacker.reply if self._line else Reply()

    def close(self) -> None:
        """End the connection at once; the server sees its client leave."""
        if self._line is not None:
            self._line.transport.abort()


async def fetch(to: Target, path: str) -> tuple[int, bytes]:
    """(status, body) of a GET; BadReply where there is no answer."""
    return await _exchange(to, path, b"", "GET", {})


async def post(to: Target, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """(status, body) of a POST of JSON; BadReply where there is no answer."""
    return await _exchange(to, path, body, "POST", headers)


async def _exchange(
    to: Target, path: str, body: bytes, method: str, headers: Mapping[str, str]
) -> tuple[int, bytes]:
    line = Connection(to)
    try:
        await line.open()
        line.send(path, body, method, headers)
        await line.finished()
        return line.reply.status, line.reply.body
    finally:
        line.close()
