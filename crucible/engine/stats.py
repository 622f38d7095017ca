"""What the engine did: counters, the state of its queue and pages, and the last steps one by one."""

from dataclasses import dataclass, field
from typing import NamedTuple


class StepRecord(NamedTuple):
    """One step: seconds since the engine began, rows, pages held and cached, seconds in the pass and out.

    decode_rows is also the number of requests that decoded; prefill_requests those whose prompt rows ran.
    """

    at: float
    prefill_rows: int
    decode_rows: int
    waiting: int
    running: int
    pages_used: int
    pages_cached: int
    pass_seconds: float
    host_seconds: float
    prefill_requests: int = 0


@dataclass
class Counters:
    """Running totals; pass_seconds is time inside the runner, host_seconds all other time of the steps.

    Of the steps, prefill_steps had prompt rows only and mixed_steps both kinds; the others only decoded.
    """

    steps: int = 0
    prefill_steps: int = 0
    mixed_steps: int = 0
    mixed_prefill_rows: int = 0
    mixed_decode_rows: int = 0
    prefill_rows: int = 0
    decode_rows: int = 0
    tokens: int = 0
    submitted: int = 0
    queue_peak: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    preemptions: int = 0
    recomputed_rows: int = 0
    pass_seconds: float = 0.0
    host_seconds: float = 0.0

    @property
    def decode_steps(self) -> int:
        """Steps without prompt rows."""
        return self.steps - self.prefill_steps - self.mixed_steps


@dataclass(frozen=True)
class Stats:
    """A snapshot: totals, then what waits, runs and holds pages now.

    prefix_hits, saved_rows and page_copies count what prefix sharing spared; adopted pages that two
    requests filled alike and one gave back; failure is why the engine stopped, if it did.
    """

    totals: Counters
    waiting: int
    running: int
    pages: int
    pages_used: int
    pages_cached: int
    pages_free: int
    prefix_hits: int
    saved_rows: int
    page_copies: int
    evictions: int
    adopted: int
    failure: str | None = None
    timeline: tuple[StepRecord, ...] = field(default=(), repr=False)
