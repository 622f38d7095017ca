"""Event streams: what is sent, how they end, and that whatever they hold is given back."""

import asyncio

import pytest

from crucible.engine.events import RequestError
from crucible.service.sse import EventStream, event, to_json
from crucible.service.tally import Tally


class Line:
    """A connection: what was sent, and when its client leaves or stops taking."""

    def __init__(self, leaves_after: int | None = None, takes: int | None = None):
        self.sent: list[dict] = []
        self._leaves_after, self._takes = leaves_after, takes
        self._gone = asyncio.Event()

    async def send(self, message: dict) -> None:
        if self._takes is not None and len(self.sent) >= self._takes:
            await asyncio.Event().wait()
        self.sent.append(message)
        if len(self.sent) == self._leaves_after:
            self._gone.set()

    async def receive(self) -> dict:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


class Source:
    """Three events, or an error in place of the third; `closed` once its generator has ended."""

    def __init__(self, error: Exception | None = None, endless: bool = False):
        self.error, self.endless, self.closed, self.cancelled = error, endless, False, 0

    async def events(self):
        try:
            yield b"1"
            yield b"2"
            if self.endless:
                await asyncio.Event().wait()
            if self.error:
                raise self.error
            yield b"3"
        finally:
            self.closed = True

    def cancel(self) -> None:
        self.cancelled += 1


def run(source: Source, line: Line, spell=lambda failure, id: f"!{failure.status} {id}".encode(), **options):
    tally = Tally("native", "req_7")
    stream = EventStream(source.events(), source.cancel, spell, **options)
    asyncio.run(stream({"type": "http", "state": {"tally": tally}}, line.receive, line.send))
    assert source.closed and source.cancelled == 1
    return tally


def test_events_go_out_one_by_one_and_the_body_ends():
    line = Line()
    tally = run(Source(), line)
    assert [m.get("body") for m in line.sent] == [None, b"1", b"2", b"3", b""]
    assert [m.get("more_body") for m in line.sent] == [None, True, True, True, False]
    assert line.sent[0]["status"] == 200 and tally.code is None


def test_no_proxy_keeps_or_gathers_events():
    line = Line()
    run(Source(), line)
    headers = dict(line.sent[0]["headers"])
    assert headers[b"cache-control"] == b"no-cache" and headers[b"x-accel-buffering"] == b"no"
    assert headers[b"content-type"].startswith(b"text/event-stream") and b"content-length" not in headers


def test_a_client_that_leaves_while_nothing_comes_ends_the_stream():
    line = Line(leaves_after=3)
    assert run(Source(endless=True), line).code == "client_gone"
    assert line.body == b"12"


def test_a_client_that_takes_nothing_is_given_up():
    line = Line(takes=2)
    assert run(Source(), line, patience=0.01).code == "client_gone"
    assert line.body == b"1"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(RequestError("no token"), 500, "request_failed"), (KeyError("secret"), 500, "internal_error")],
    ids=["foreseen", "unforeseen"],
)
def test_what_the_source_raises_is_the_last_event(error, status, code):
    line = Line()
    assert run(Source(error), line).code == code
    assert line.body == f"12!{status} req_7".encode() and line.sent[-1]["more_body"] is False


def test_without_a_spelling_a_failed_reply_stays_unfinished():
    line = Line()
    with pytest.raises(RequestError):
        run(Source(RequestError("no token")), line, spell=None)
    assert line.sent[-1] == {"type": "http.response.body", "body": b"2", "more_body": True}


def test_an_event_is_its_name_and_one_line():
    assert event({"a": "x\ny"}, "end") == b'event: end\ndata: {"a":"x\\ny"}\n\n'
    assert event(b"[DONE]") == b"data: [DONE]\n\n"


def test_numbers_that_json_has_not_are_null_and_others_keep_every_bit():
    assert to_json([float("nan"), float("-inf"), 2**64 - 1, 0.1 + 0.2]) == (
        b"[null,null,18446744073709551615,0.30000000000000004]"
    )
