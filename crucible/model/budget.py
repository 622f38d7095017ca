"""What a template may still do: characters and rounds are paid for before they are made."""

import time
from collections.abc import Iterator, Mapping, Sequence, Set, ValuesView
from typing import Any

from jinja2.exceptions import TemplateRuntimeError

SECONDS = 1.0  # of this thread's processor time


class Budget:
    """Characters that a rendering may still make or walk over, and until when."""

    __slots__ = ("_end", "_left")

    def __init__(self, characters: int):
        self._left, self._end = characters, time.thread_time() + SECONDS

    def spend(self, amount: int) -> None:
        """Take `amount` off; TemplateRuntimeError when nothing is left or the time is over."""
        self._left -= amount
        if self._left < 0:
            raise TemplateRuntimeError("it makes more text or more steps than its input can need")
        if time.thread_time() > self._end:
            raise TemplateRuntimeError(f"it takes more than {SECONDS:g} s")

    def weigh(self, value: Any) -> None:
        """Spend the size of a value with all that is in it, as often as it is in it."""
        stack, size, walked = [value], 0, 0
        while stack:
            item = stack.pop()
            size, walked = size + 1, walked + 1
            if not walked & 0xFFF:
                self.spend(0)
            if isinstance(item, str):
                size += len(item)
            elif isinstance(item, int):
                size += item.bit_length() >> 3
            elif isinstance(item, range):
                size += len(item)
            elif isinstance(item, Mapping):
                stack += item.keys()
                stack += item.values()
            elif isinstance(item, Sequence | Set | ValuesView):
                stack += item
            if size > self._left:
                break
        self.spend(size)


class Counted:
    """What a loop goes over; each round is paid for before it runs."""

    def __init__(self, items: Any, budget: Budget, cost: int):
        self._items, self._budget, self._cost = items, budget, cost

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._budget.spend(self._cost)
            yield item
