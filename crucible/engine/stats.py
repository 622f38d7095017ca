"""What the engine did: counters, the state of its queue and pages, and the last steps one by one."""

from dataclasses import dataclass, field
from typing import NamedTuple


class StepRecord(NamedTuple):
    """One step: seconds since the engine began, rows, pages held and cached, seconds in the pass and out."""

    at: float
    prefill_rows: int
    decode_rows: int
    waiting: int
    running: int
    pages_used: int
    pages_cached: int
    pass_seconds: float
    host_seconds: float


@dataclass
class Counters:
    """Running totals; pass_seconds is time inside the runner, host_seconds all other time of the steps."""

    steps: int = 0
    prefill_rows: int = 0
    decode_rows: int = 0
    tokens: int = 0
    submitted: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    preemptions: int = 0
    recomputed_rows: int = 0
    pass_seconds: float = 0.0
    host_seconds: float = 0.0


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
