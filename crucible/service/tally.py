"""What is counted of one HTTP request: for its line in the log and for the metrics."""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from crucible.engine.events import Result, Token
from crucible.errors import CrucibleError
from crucible.service.backend import Stream, last_of
from crucible.service.failure import failure_of


@dataclass
class Tally:
    """Face, id and start of a request; `gaps` are seconds between two arrivals of tokens of one stream."""

    face: str
    request_id: str
    began: float = field(default_factory=time.perf_counter)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_rows: int = 0
    first_token: float | None = None
    gaps: list[float] = field(default_factory=list)
    finish: list[str] = field(default_factory=list)
    code: str | None = None


class Counted:
    """A Stream whose arrivals are noted in a Tally; used as the stream itself."""

    def __init__(self, stream: Stream, tally: Tally, clock: Callable[[], float] = time.perf_counter):
        self._stream, self._tally, self._clock = stream, tally, clock

    @property
    def ended(self) -> bool:
        """As Stream.ended."""
        return self._stream.ended

    def cancel(self) -> None:
        """As Stream.cancel."""
        self._stream.cancel()

    async def __aiter__(self) -> AsyncIterator[list[Token | Result]]:
        tally, last = self._tally, None
        async for batch in self._noting_failure():
            now = self._clock()
            made = len(batch)
            if isinstance(batch[-1], Result):
                made -= 1
                tally.finish.append(batch[-1].finish_reason)
                tally.cached_rows += batch[-1].cached_rows
            if made:
                tally.completion_tokens += made
                if tally.first_token is None:
                    tally.first_token = now - tally.began
                if last is not None:
                    tally.gaps.append(now - last)
                last = now
            yield batch

    async def _noting_failure(self) -> AsyncIterator[list[Token | Result]]:
        try:
            async for batch in self._stream:
                yield batch
        except CrucibleError as error:
            self._tally.code = failure_of(error).code
            raise

    async def result(self) -> Result:
        """As Stream.result."""
        return await last_of(self)
