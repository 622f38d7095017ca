"""Plans of the model gate: complete sequences as a list of operations, made without a device or a token.

A plan knows lengths alone, so the same one runs on any device and for any model. `model_run` runs it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from crucible.model.cache import pages_for
from crucible.sampling.params import SamplingParams

GREEDY = SamplingParams()
Order = Callable[[int, list[int]], list[int]]  # (call number, active requests) -> the order they pack in


@dataclass(frozen=True)
class Request:
    """A prompt of token ids, how many tokens to make, and how to choose them; no end token stops it."""

    prompt: tuple[int, ...]
    steps: int
    sampling: SamplingParams = GREEDY

    @property
    def positions(self) -> int:
        """Positions that hold K and V in the end: the last token is never fed back."""
        return len(self.prompt) + self.steps - 1


@dataclass(frozen=True)
class Part:
    """Positions start .. start+length-1 of a request in a call; `draws`: its last row gives a token."""

    request: int
    start: int
    length: int
    draws: bool


@dataclass(frozen=True)
class Admit:
    """Give a request a page table and pages for `positions` positions."""

    request: int
    positions: int


@dataclass(frozen=True)
class Call:
    """One forward pass over parts, packed in this order; `packed` False runs them one by one."""

    parts: tuple[Part, ...]
    packed: bool = True


@dataclass(frozen=True)
class Release:
    """Take a request's pages back; `cancelled` ones have no outcome."""

    request: int
    cancelled: bool = False


Operation = Admit | Call | Release


@dataclass(frozen=True)
class Policy:
    """How a plan shares the device.

    chunk: prompt rows a request brings to a call; rows: of a call; segments: requests active at once;
    pages: that active requests may come to hold; mixed: decode rows ride along with prompt chunks.
    """

    chunk: int = 256
    rows: int = 1024
    segments: int = 16
    pages: int = 512
    packed: bool = True
    mixed: bool = False
    order: Order = lambda call, active: active


def shift(operations: Sequence[Operation], by: int) -> list[Operation]:
    """The operations with every request number raised by `by`."""
    moved: list[Operation] = []
    for op in operations:
        if isinstance(op, Call):
            parts = tuple(replace(part, request=part.request + by) for part in op.parts)
            moved.append(replace(op, parts=parts))
        else:
            moved.append(replace(op, request=op.request + by))
    return moved


def plan(
    requests: Sequence[Request], policy: Policy = Policy(), cancel: Mapping[int, int] | None = None
) -> list[Operation]:
    """Operations that run every request to its end, admitted in their order as pages and segments allow.

    `cancel` {request: calls after its admission before it is taken back}; whoever waits gets the pages at
    once. Pages are promised for a request's whole length and taken as it
    grows, so that growth never waits. ValueError for a request that can never be admitted.
    """
    waiting, active, calls, ends = list(range(len(requests))), [], 0, {}
    position = [0] * len(requests)
    made: list[Operation] = []

    def admit() -> None:
        while waiting and len(active) < policy.segments:
            promised = sum(pages_for(requests[r].positions) for r in active)
            request = requests[waiting[0]]
            if promised + pages_for(request.positions) > policy.pages:
                break
            active.append(waiting.pop(0))
            made.append(Admit(active[-1], len(request.prompt)))
            if active[-1] in (cancel or {}):
                ends[active[-1]] = calls + cancel[active[-1]]

    admit()
    while active or waiting:
        while due := [r for r in active if ends.get(r) == calls]:
            for request in due:
                active.remove(request)
                made.append(Release(request, cancelled=True))
            admit()
        if not active:
            if waiting:
                raise ValueError(f"request {waiting[0]} needs more than the {policy.pages} pages")
            break
        parts = _parts(requests, policy, policy.order(calls, list(active)), position)
        made.append(Call(tuple(parts), policy.packed))
        calls += 1
        for part in parts:
            position[part.request] = part.start + part.length
        for request in [r for r in active if position[r] == requests[r].positions]:
            active.remove(request)
            made.append(Release(request))
        admit()
    return made


def _parts(requests, policy: Policy, order: list[int], position: list[int]) -> list[Part]:
    """The parts of the next call: chunks of the prompts that are not through, else a row of everyone."""
    left, parts = policy.rows, []
    prompting = any(position[r] < len(requests[r].prompt) for r in order)
    for number in order:
        prompt, start = len(requests[number].prompt), position[number]
        length = min(policy.chunk, prompt - start, left) if start < prompt else 1
        if left and length and (start < prompt or policy.mixed or not prompting):
            parts.append(Part(number, start, length, start + length >= prompt))
            left -= length
    return parts


def waves(
    groups: Sequence[Sequence[Request]], policy: Policy = Policy()
) -> tuple[list[Request], list[Operation]]:
    """Groups of requests one after another, each admitted when the one before is through."""
    requests: list[Request] = []
    made: list[Operation] = []
    for group in groups:
        made += shift(plan(group, policy), len(requests))
        requests += group
    return requests, made
