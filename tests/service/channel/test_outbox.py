"""What goes out together, and how long anything waits."""

from collections import deque

import pytest

from crucible.service.channel import outbox
from crucible.service.channel.outbox import Outbox


class Turns:
    """An event loop's clock and queue, a turn at a time."""

    def __init__(self):
        self.now, self.sent, self._ready = 0.0, [], deque()
        self.box = Outbox(self, self.sent.append)

    def time(self) -> float:
        return self.now

    def call_soon(self, call) -> None:
        self._ready.append(call)

    def turn(self, *messages: bytes, seconds: float = 0.0) -> None:
        """What was ready runs; then these messages are added, as by tasks that run behind it."""
        for _ in range(len(self._ready)):
            self._ready.popleft()()
        for message in messages:
            self.box.add(message)
        self.now += seconds

    @property
    def idle(self) -> bool:
        return not self._ready


@pytest.fixture
def loop():
    return Turns()


def test_messages_of_turns_without_a_pause_go_out_together_in_their_order(loop):
    for messages in ((b"1",), (b"2", b"3"), (), (b"4",)):
        loop.turn(*messages)
    assert loop.sent == []
    for _ in range(outbox._QUIET + 1):
        loop.turn()
    assert loop.sent == [[b"1", b"2", b"3", b"4"]] and loop.idle


def test_a_message_alone_goes_out_after_a_few_turns_and_nothing_goes_on_turning(loop):
    loop.turn(b"1")
    turns = 0
    while not loop.sent:
        loop.turn()
        turns += 1
    assert turns <= outbox._QUIET + 1 and loop.sent == [[b"1"]] and loop.idle


def test_no_message_waits_longer_than_its_time_for_those_that_keep_coming(loop):
    added = {}
    for number in range(200):
        message = b"%d" % number
        added[message] = loop.now
        loop.turn(message, seconds=0.001)
        assert len(loop._ready) <= 1, "one look at the box a turn is enough"
        for gone in loop.sent:
            for one in gone:
                assert loop.now - added.pop(one) <= outbox._LONGEST + 0.002
        loop.sent.clear()
    assert len(added) <= 1 + outbox._LONGEST / 0.001


def test_one_slow_turn_does_not_hold_back_what_it_sent_before(loop):
    loop.turn(b"1", seconds=1.0)
    loop.box.add(b"2")
    assert loop.sent == [[b"1", b"2"]]
