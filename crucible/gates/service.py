"""The service gate: a service below its capacity, then far above it, with clients that leave; every answer
equals its run alone, and nothing is lost or kept."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from crucible.errors import UnavailableError
from crucible.gates import service_traffic as traffic
from crucible.gates.service_traffic import Answer, Case, Watched
from crucible.service.load import asks
from crucible.service.load.target import Target

BELOW, OVER = "below capacity", "overload"
CASES, MAX_TOKENS, LEAVE_EVERY = 16, 32, 9
_FLAT = 64 << 20  # bytes that the two processes may grow by between the phases and after them, or
_SHARE = 0.05  # this share of what they had


@dataclass(frozen=True)
class Load:
    """Poisson arrivals: `count` requests at `rate` a second."""

    name: str
    rate: float
    count: int

    @classmethod
    def lasting(cls, name: str, rate: float, seconds: float, least: int = 3 * LEAVE_EVERY) -> "Load":
        """Arrivals for `seconds`, or longer until `least` came: each way of leaving has its turn."""
        return cls(name, rate, max(least, math.ceil(rate * seconds)))


@dataclass
class Phase:
    """A load, its answers, and what was seen of the service; `settled` are its stats once it was quiet."""

    load: Load
    answers: list[Answer]
    seen: Watched
    before: dict
    settled: dict | None
    seconds: float
    memory: int

    @property
    def stayed(self) -> list[Answer]:
        """Answers of clients that did not leave."""
        return [answer for answer in self.answers if not answer.left]

    def count(self, status: int) -> int:
        """Requests of clients that stayed with an HTTP status."""
        return sum(answer.status == status and not answer.error for answer in self.stayed)


@dataclass
class ServiceGate:
    """One run against a service that listens at `to` with process `pid`; `loads` None: from its capacity.

    `sustained` seconds of each load that is made from the capacity. `seed` decides prompts, times and draws.
    """

    to: Target
    pid: int
    loads: tuple[Load, ...] | None = None
    sustained: float = 20.0
    max_tokens: int = MAX_TOKENS
    seed: int = 20260908
    phases: list[Phase] = field(default_factory=list)
    alone: dict[int, Answer] = field(default_factory=dict)
    capacity: float | None = None
    checks: dict[str, bool] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether all of it ran and every check held."""
        return bool(self.checks) and all(self.checks.values())

    async def run(self, tell: Callable[[str, int], None] = lambda what, total: None) -> None:
        """Run alone, below capacity, and over it; `tell` gets (what was done, requests in all so far)."""
        some = traffic.cases(CASES, self.max_tokens, self.seed)
        await self._alone(some, tell)
        loads = self.loads or await self._loads(some)
        total = sum(load.count for load in loads)
        for load in loads:
            self.phases.append(await self._phase(load, some, partial(tell, load.name, total)))
        self.judge(await traffic.ready(self.to))

    async def _alone(self, some: list[Case], tell: Callable[[str, int], None]) -> None:
        for case in some:
            answer = await traffic.send(self.to, case)
            if answer.status != 200 or answer.error or len(answer.tokens) != self.max_tokens:
                why = answer.error or f"status {answer.status}, {len(answer.tokens)} tokens"
                raise UnavailableError(
                    f"request {case.number} does not run alone: {why}; see the service's log"
                )
            self.alone[case.number] = answer
            tell("alone", 0)

    async def _loads(self, some: list[Case]) -> tuple[Load, ...]:
        """Half of what the service gives when it is full, and what must be too much for its queue."""
        began = time.perf_counter()
        await asyncio.gather(*(self._answered(case) for case in some))
        self.capacity = len(some) / (time.perf_counter() - began)
        limits = (await traffic.stats(self.to))["limits"]
        room = limits["queue"] + limits["decode_batch"]
        return (
            Load.lasting(BELOW, round(self.capacity / 2, 3), self.sustained),
            Load.lasting(OVER, round(max(3 * self.capacity, room), 3), self.sustained / 2, 3 * room),
        )

    async def _answered(self, case: Case) -> None:
        """Send a case until it is answered: a refusal takes no time, and would pass for a fast answer."""
        while (answer := await traffic.send(self.to, case)).status == 429:
            await asyncio.sleep(0.01)
        if answer.status != 200 or answer.error:
            why = answer.error or f"status {answer.status}"
            raise UnavailableError(f"request {case.number} is not answered among others: {why}")

    async def _phase(self, load: Load, some: list[Case], done: Callable[[], None]) -> Phase:
        before = await traffic.quiet(self.to) or {}
        times = asks.poisson(load.rate, load.count, self.seed)
        began = time.perf_counter()
        answers, seen = await traffic.phase(self.to, some, times, self.pid, LEAVE_EVERY, done)
        seconds = time.perf_counter() - began
        settled = await traffic.quiet(self.to)
        return Phase(load, answers, seen, before, settled, seconds, traffic.resident(self.pid))

    def judge(self, ready: bool) -> None:
        """Fill `checks` from what the phases brought."""
        stayed = [answer for phase in self.phases for answer in phase.stayed]
        left = [answer for phase in self.phases for answer in phase.answers if answer.left]
        whole = [answer for answer in stayed if answer.status == 200]
        below = [phase for phase in self.phases if phase.load.name == BELOW]
        over = [phase for phase in self.phases if phase.load.name == OVER]
        engines = [phase.settled["engine"] for phase in self.phases if phase.settled]
        self.checks = {
            "every client that stayed got its answer or a 429": bool(stayed)
            and all(a.status in (200, 429) and not a.error for a in stayed),
            "every answer has the tokens and the random state of its run alone": bool(whole)
            and all(self.equal(a) for a in whole),
            "what a client read before it left are the first tokens of that run": bool(left)
            and all(a.tokens == self.alone[a.case].tokens[: len(a.tokens)] for a in left),
            "below capacity nothing is refused": all(not phase.count(429) for phase in below),
            "a full queue refuses, and each refusal says when to come again": all(
                (phase.count(429) or self._kept_up(phase))
                and all(a.retry_after for a in phase.stayed if a.status == 429)
                for phase in over
            ),
            "clients that left were cancelled": any(self._moved(phase, "cancelled") for phase in self.phases),
            "the engine failed no request": not any(self._moved(phase, "failed") for phase in self.phases),
            "the queue stayed within its bound": all(
                0 < engine["queue_peak"] <= phase.before["limits"]["queue"]
                for phase, engine in zip(self.phases, engines, strict=False)
            ),
            "every page came back": len(engines) == len(self.phases)
            and not any(e["pages"]["used"] or e["queue"]["running"] for e in engines),
            "memory stayed flat": self._flat(),
            "the service answered /stats all the time": not any(p.seen.unanswered for p in self.phases),
            "the service is ready afterwards, with its first engine": ready
            and not any(p.settled and p.settled["engine_restarts"] for p in self.phases),
        }

    def equal(self, answer: Answer) -> bool:
        """Whether an answer has the bits of its case alone."""
        alone = self.alone[answer.case]
        return answer.tokens == alone.tokens and answer.random_state == alone.random_state

    def _kept_up(self, phase: Phase) -> bool:
        """Whether a rate that was given, not made from the capacity, never filled the queue."""
        if self.capacity is not None or phase.settled is None:
            return False
        return phase.settled["engine"]["queue_peak"] < phase.before["limits"]["queue"]

    @staticmethod
    def _moved(phase: Phase, counter: str) -> int:
        after = phase.settled["engine"]["requests"][counter] if phase.settled else 0
        return after - phase.before["engine"]["requests"][counter]

    def _flat(self) -> bool:
        """The last phase ends with no more memory than the first phase's second half had, within bounds."""
        if not self.phases or not self.phases[0].seen.memory:
            return False
        half = self.phases[0].seen.memory[len(self.phases[0].seen.memory) // 2 :]
        return self.phases[-1].memory <= max(half) + max(_FLAT, _SHARE * max(half))
