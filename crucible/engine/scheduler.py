"""The scheduler: a pure function from the state of all requests to the plan of one step.

It knows numbers only, no device and no tokens. A step preempts, admits, gives pages to decode rows, and runs
one packed forward: a row of every decoding request and, beside them, prompt rows within the budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crucible.numerics.checks import whole
from crucible.numerics.contract import PAGE_SIZE

_MOST = (1 << 31) - 1


def pages_for(positions: int) -> int:
    """Pages that hold `positions` positions."""
    return -(-positions // PAGE_SIZE)


@dataclass(frozen=True)
class Limits:
    """What a step and the engine may use.

    queue: requests that wait at most; prefill_budget: prompt rows a step, over all requests; chunk_cap:
    prompt rows of one request a step (None: no cap); decode_batch: requests that run at once; pages:
    the pool, 16 positions each. InputError for a value that allows nothing, or has more than 31 bits.
    """

    queue: int = 64
    prefill_budget: int = 1024
    chunk_cap: int | None = None
    decode_batch: int = 64
    pages: int = 1024

    def __post_init__(self):
        for name in ("queue", "prefill_budget", "decode_batch", "pages"):
            object.__setattr__(self, name, whole(name, getattr(self, name), 1, _MOST))
        if self.chunk_cap is not None:
            object.__setattr__(self, "chunk_cap", whole("chunk_cap", self.chunk_cap, 1, _MOST))


class Waiting(NamedTuple):
    """A queued request: rows to have stored, and what the prefix cache holds of them.

    hit_pages whole pages, live_pages of which somebody holds (they cost nothing), and tail_rows rows by
    a copy of one more page; tail_cost is 1 if keeping that page for the copy takes it from the pool.
    """

    id: int
    rows: int
    hit_pages: int = 0
    live_pages: int = 0
    tail_rows: int = 0
    tail_cost: int = 0


class Running(NamedTuple):
    """An admitted request: positions stored, the end of its prompt rows (decoding from there on), pages.

    exclusive: pages that become available if it alone is preempted; needs to be right only when fewer
    pages are available than requests run.
    """

    id: int
    stored: int
    end: int
    pages: int
    exclusive: int = 0


class State(NamedTuple):
    """Everything a plan depends on; both lists with the oldest arrival first."""

    waiting: Sequence[Waiting]
    running: Sequence[Running]
    available: int


class Chunk(NamedTuple):
    """Prompt rows start .. start+length-1 of a request; `last` if its next token comes of them."""

    id: int
    start: int
    length: int
    last: bool


class Admission(NamedTuple):
    """A request that starts: hit_pages from the cache, tail rows by a copy, new pages from the pool."""

    id: int
    hit_pages: int
    tail_rows: int
    new_pages: int


class Plan(NamedTuple):
    """One step, to be applied in the order of the fields."""

    preempt: list[int]
    admit: list[Admission]
    grow: list[int]
    decode: list[int]
    prefill: list[Chunk]

    @property
    def idle(self) -> bool:
        """Nothing to run."""
        return not (self.decode or self.prefill)


def plan(state: State, limits: Limits) -> Plan:
    """The next step.

    Every decoding request gets its row, the oldest its page first; where no page is left the youngest
    request is preempted, never the oldest. Then the budget goes to unfinished prompts, the oldest first,
    then to the queue in its order; a request that does not fit holds up those behind it. Admission leaves
    a page for each running request, so that a newcomer is not preempted at once.
    """
    alive = list(state.running)
    available = state.available
    preempt, grow, decode = _decode_rows(alive, available)
    available -= len(grow)
    budget = limits.prefill_budget
    cap = limits.chunk_cap or budget
    prefill: list[Chunk] = []
    for r in alive:
        left = r.end - r.stored
        if left > 0 and budget > 0:
            length = min(left, budget, cap)
            prefill.append(Chunk(r.id, r.stored, length, length == left))
            budget -= length
    admit: list[Admission] = []
    for w in () if preempt else state.waiting:
        running = len(alive) + len(admit)
        if budget <= 0 or running >= limits.decode_batch:
            break
        room = available - running
        total = pages_for(w.rows)
        need, tail, cost = total - w.live_pages, w.tail_rows, w.tail_cost
        if need + cost > room:
            tail = cost = 0
        if need > room:
            break
        available -= need + cost
        start = w.hit_pages * PAGE_SIZE + tail
        length = min(w.rows - start, budget, cap)
        admit.append(Admission(w.id, w.hit_pages, tail, total - w.hit_pages))
        prefill.append(Chunk(w.id, start, length, start + length == w.rows))
        budget -= length
    return Plan(preempt, admit, grow, decode, prefill)


def _decode_rows(alive: list[Running], available: int) -> tuple[list[int], list[int], list[int]]:
    """(preempted, growing, decoding) ids; takes the preempted, the youngest first, out of `alive`."""
    preempt: list[int] = []
    grow: list[int] = []
    decode: list[int] = []
    i = 0
    while i < len(alive):
        r = alive[i]
        if r.stored >= r.end:
            if r.stored == r.pages * PAGE_SIZE:
                while available <= 0 and len(alive) > i + 1:
                    victim = alive.pop()
                    preempt.append(victim.id)
                    available += victim.exclusive
                # The oldest, alone at last, always finds its page: a request larger than the pool is
                # refused when it is submitted, and `exclusive` counts too few where the preempted shared.
                if available <= 0 and i > 0:
                    preempt.append(alive.pop().id)
                    break
                grow.append(r.id)
                available -= 1
            decode.append(r.id)
        i += 1
    return preempt, grow, decode
