"""Interleaved measurement: every round takes each contender once, and every second round in reverse."""

import time
from collections.abc import Callable, Mapping, Sequence

from crucible.errors import InputError

# A thread pool may spin for a while after its work; the next contender waits that out.
PAUSE = 0.02  # seconds
# Rounds thrown away, by device: on cuda an engine captures passes that came several times (model.graphs).
WARMUPS = {"cpu": 1, "simt": 1, "cuda": 6}


def order(names: Sequence[str], round_number: int) -> list[str]:
    """The order of one round: A B C, then C B A, so that a drift of the machine falls on all alike."""
    return list(names) if round_number % 2 == 0 else list(reversed(names))


def interleave(
    contenders: Mapping[str, Callable[[], float]],
    rounds: int,
    pause: float = PAUSE,
    progress: Callable[[], None] | None = None,
    warmups: int = 1,
) -> dict[str, list[float]]:
    """{name: one sample a round}; a contender is called without arguments and returns its sample.

    `warmups` first rounds are taken and thrown away: they pay for first touches, caches and captures. Ctrl-C
    ends the measurement: the rounds that are complete come back, and with none it is raised again.
    """
    if rounds < 1:
        raise InputError(f"rounds must be at least 1, got {rounds}")
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    try:
        for number in range(-warmups, rounds):
            for name in order(list(contenders), number):
                time.sleep(pause)
                sample = contenders[name]()
                if number >= 0:
                    samples[name].append(sample)
                if progress:
                    progress()
    except KeyboardInterrupt:
        complete = min(len(taken) for taken in samples.values())
        if complete == 0:
            raise
        samples = {name: taken[:complete] for name, taken in samples.items()}
    return samples


def seconds_per_call(call: Callable[[], object], at_least: float = 0.05) -> float:
    """Mean wall seconds of `call` over as many calls as take `at_least` seconds (one at the least).

    One call before is not timed: it wakes the threads that slept through the neighbours' turns.
    """
    call()
    calls, start = 0, time.perf_counter()
    while True:
        call()
        calls += 1
        elapsed = time.perf_counter() - start
        if elapsed >= at_least:
            return elapsed / calls
