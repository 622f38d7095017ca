"""The machine's envelope through a run: sampled beside it, summed up, and held against the other runs."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crucible.evidence import envelope
from crucible.evidence.statistics import Bracket, bracket

INTERVAL = 0.25  # seconds between two readings
# How far the median of a run may lie from the median of all runs: a share of it, or an absolute number.
# Power follows the work, which two sides may differ in, so it is shown and bounds nothing.
SHARES = {"SM clock, MHz": 0.03, "memory clock, MHz": 0.01, "CPU clock, MHz": 0.10}
STEPS = {"temperature, C": 10.0, "CPU time of others, %": 10.0}
SHOWN = ("load, 1 min", "power, W")
BOUNDS = ", ".join(
    [f"{name.split(',')[0]} {share:.0%}" for name, share in SHARES.items()]
    + [f"{name.split(',')[0]} {step:g} {name.split(', ')[1]}" for name, step in STEPS.items()]
)


@dataclass(frozen=True)
class Envelope:
    """Readings of one run: {name with its unit: one value a reading}; what a machine lacks is left out."""

    readings: Mapping[str, tuple[float, ...]]

    def brackets(self) -> dict[str, Bracket]:
        """Median, least and most of each."""
        return {name: bracket(values) for name, values in self.readings.items() if values}


class Watch:
    """Samples the envelope in a thread while its `with` block runs; `envelope` is there afterwards.

    The processor time of this process and its children is the run's own; the rest is that of others. `read`
    replaces where readings come from (tests).
    """

    def __init__(self, interval: float = INTERVAL, read: Callable[[], Mapping[str, float]] | None = None):
        self._read = read or Reader()
        self._interval, self._ended = interval, threading.Event()
        self._taken: dict[str, list[float]] = {}
        self._thread = threading.Thread(target=self._run, name="crucible-watch", daemon=True)

    def _run(self) -> None:
        while True:
            for name, value in self._read().items():
                self._taken.setdefault(name, []).append(float(value))
            if self._ended.wait(self._interval):
                return

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def envelope(self) -> Envelope:
        """What was read."""
        return Envelope({name: tuple(values) for name, values in self._taken.items()})


class Reader:
    """Reads the machine now; processor time of others counts since the reading before."""

    def __init__(self) -> None:
        self._last = (time.monotonic(), busy_seconds(), own_seconds())

    def __call__(self) -> dict[str, float]:
        """{name with its unit: value}."""
        here = envelope.read()
        found = {"load, 1 min": here.load_1min}
        if here.cpu_clock:
            found["CPU clock, MHz"] = here.cpu_clock
        now = (time.monotonic(), busy_seconds(), own_seconds())
        elapsed, busy, own = (b - a for a, b in zip(self._last, now, strict=True))
        if now[1] and elapsed >= INTERVAL / 2:  # shorter, the clock of the counters is too coarse
            found["CPU time of others, %"] = round(max(busy - own, 0.0) / elapsed / here.cores * 100, 2)
            self._last = now
        if here.gpu is not None:
            found["SM clock, MHz"] = here.gpu.sm_clock
            found["memory clock, MHz"] = here.gpu.memory_clock
            found["power, W"] = here.gpu.power
            found["temperature, C"] = here.gpu.temperature
        return found


def busy_seconds() -> float:
    """Seconds that all processors worked since the system began; 0 where it does not tell."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = (int(x) for x in fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """Processor seconds of this process and of all its descendants that live."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):  # it ended meanwhile
            continue
        pid = int(path.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    total = 0
    for pid in ticks:
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above]
        total += ticks[pid] if above == os.getpid() else 0
    return total / os.sysconf("SC_CLK_TCK")


def marks(runs: Sequence[Envelope]) -> list[list[str]]:
    """For each run a sentence for every reading whose median leaves the bounds around that of all runs."""
    medians = [{name: b.median for name, b in run.brackets().items()} for run in runs]
    found: list[list[str]] = [[] for _ in runs]
    for name, bound in {**SHARES, **STEPS}.items():
        known = [m[name] for m in medians if name in m]
        if not known:
            continue
        middle = float(np.median(known))
        allowed = bound * middle if name in SHARES else bound
        for said, each in zip(found, medians, strict=True):
            if name in each and abs(each[name] - middle) > allowed:
                said.append(f"{name} {each[name]:.4g}, of all runs {middle:.4g}, bound {allowed:.3g}")
    return found
