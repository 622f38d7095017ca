"""What the turns of an event loop send, gathered so that requests which come together arrive together."""

import asyncio
from collections.abc import Callable
from typing import Any

_LONGEST = 0.006  # seconds that a message may wait for others
_QUIET = 2  # turns of the loop that bring no further message: the next one's work may be under way after one


class Outbox:
    """Messages on their way to `send`, which gets all that came in turns of the loop without a pause.

    Of requests that came together each takes a turn or two until it is checked; an engine that had only the
    first would run a step for it alone while the others wait. A turn in which nothing happens takes
    microseconds, and no message waits longer than _LONGEST.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[list[Any]], None]):
        self._loop, self._send = loop, send
        self._messages: list[Any] = []
        self._seen = self._quiet = 0  # messages at the last turn, and turns since there were fewer
        self._until = 0.0
        self._turning = False

    def add(self, message: Any) -> None:
        """Send a message soon, behind those that wait."""
        now = self._loop.time()
        if not self._messages:
            self._seen = self._quiet = 0
            self._until = now + _LONGEST
            self._turn_again()
        self._messages.append(message)
        if now >= self._until:
            self._flush()

    def _turn(self) -> None:
        self._turning = False
        count = len(self._messages)
        self._quiet = self._quiet + 1 if count == self._seen else 0
        self._seen = count
        if self._quiet == _QUIET or self._loop.time() >= self._until:
            self._flush()
        if self._messages:
            self._turn_again()

    def _turn_again(self) -> None:
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _flush(self) -> None:
        messages, self._messages = self._messages, []
        if messages:
            self._send(messages)
