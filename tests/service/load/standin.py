"""A stand-in for the service: tokens that depend on the prompt alone, at times that its arguments set.

It speaks the native face over its own few lines of HTTP, so that the client under test is held to something
that it does not share code with. `python standin.py --port N` runs it as a process.
"""

import argparse
import asyncio
import contextlib
import json
import zlib
from pathlib import Path


def expected(prompt, count: int) -> list[int]:
    """The tokens of a prompt."""
    return [zlib.crc32(bytes(json.dumps([*prompt, i]), "ascii")) % 700 for i in range(count)]


class StandIn:
    """`first` seconds to the first token and `gap` between events of `together` tokens; `change` (position)
    gives another token there; `refuse` answers 429; `cut` breaks off after that many tokens; `pieces` sends
    every byte string in two writes; `company` sends nothing before so many requests have come."""

    def __init__(
        self,
        first=0.0,
        gap=0.0,
        together=1,
        change=None,
        refuse=False,
        cut=None,
        pieces=False,
        hold=None,
        company=0,
    ):
        self.company = company
        self.first, self.gap, self.together = first, gap, together
        self.change, self.refuse, self.cut, self.pieces, self.hold = change, refuse, cut, pieces, hold
        self.seen: list[dict] = []
        self.left = 0

    async def start(self, port: int = 0) -> str:
        """Listen; the URL."""
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", port)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Close."""
        self._server.close()

    async def _answer(self, reader, writer) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split(" ", 2)
            length = next(int(v.split(":")[1]) for v in head.lower().split("\r\n") if "content-length" in v)
            body = await reader.readexactly(length)
            if method == "GET":
                await self._whole(writer, 200, {"status": "ready", "path": path})
            elif self.refuse:
                await self._whole(writer, 429, {"error": {"message": "as many wait as may"}})
            else:
                self.seen.append(json.loads(body))
                await self._stream(writer, self.seen[-1])
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left += 1
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):  # how a client left is no error of this loop's
                await writer.wait_closed()

    async def _whole(self, writer, status: int, body: dict) -> None:
        data = json.dumps(body).encode()
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()

    async def _stream(self, writer, asked: dict) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n"
        )
        tokens = expected(asked["prompt"], asked["max_tokens"])
        if self.change is not None and self.change < len(tokens):
            tokens[self.change] += 1
        while len(self.seen) < self.company:
            await asyncio.sleep(0)
        for at in range(0, len(tokens), self.together):
            await asyncio.sleep(self.gap if at else self.first)
            if self.cut is not None and at >= self.cut:
                return
            if self.hold is not None and at >= self.hold:
                await asyncio.sleep(60)
            batch = {"index": at, "tokens": tokens[at : at + self.together], "text": ""}
            await self._event(writer, "tokens", batch)
        total = self.first + self.gap * (len(tokens) - 1)
        timings = {"queued": 0.0, "first_token": self.first, "total": total}
        end = {"finish_reason": "length", "seed": asked.get("seed", 0), "tokens": tokens, "timings": timings}
        await self._event(writer, "end", end)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _event(self, writer, name: str, body: dict) -> None:
        data = f"event: {name}\ndata: {json.dumps(body)}\n\n".encode()
        framed = f"{len(data):x}\r\n".encode() + data + b"\r\n"
        for part in (framed[:7], framed[7:]) if self.pieces else (framed,):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)


async def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--port-file", type=Path)
    for name in ("--first", "--gap"):
        parser.add_argument(name, type=float, default=0.0)
    parser.add_argument("--change", type=int)
    asked = vars(parser.parse_known_args()[0])  # a service has more options
    port, port_file = asked.pop("port"), asked.pop("port_file")
    url = await StandIn(**asked).start(port)
    port_file.with_suffix(".part").write_text(url.rsplit(":", 1)[1])
    port_file.with_suffix(".part").replace(port_file)  # found whole
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main())
