"""Run a plan of the model gate on a device: pages, packed calls, sampling, and what each sequence came to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from crucible.gates.model_plan import Admit, Call, Operation, Part, Policy, Release, Request, plan
from crucible.kv.slices import Slice
from crucible.model.cache import KVCache
from crucible.model.model import Model
from crucible.numerics.digest import digest
from crucible.sampling.rows import make_batch, sample_rows
from crucible.sampling.sample import Sample, refuse, sample


@dataclass(frozen=True)
class Workload:
    """Requests that share a run, and the operations that run them.

    `variant` demands an attention variant, None is auto; `graph` lets calls be recorded and replayed;
    `pages` is the size of the pool.
    """

    section: str
    name: str
    requests: Sequence[Request]
    operations: Sequence[Operation]
    pages: int = 512
    variant: str | None = None
    graph: bool = True

    @property
    def complete(self) -> list[int]:
        """The requests that run to their end."""
        return [op.request for op in self.operations if isinstance(op, Release) and not op.cancelled]


@dataclass(frozen=True)
class Outcome:
    """What a complete sequence came to; digests are those of contract section 9.

    `draws` is the number of the next draw, which with the seed is the whole random state; `uniforms` are
    the draws used; `logits` are digests step by step and `final` the last step's values [V]; k and v
    cover [layers][positions][kv_dim].
    """

    tokens: tuple[int, ...]
    draws: int
    uniforms: tuple[float | None, ...]
    logits: tuple[str, ...]
    k: str
    v: str
    final: np.ndarray = field(repr=False, compare=False)

    def differences(self, other: "Outcome") -> list[str]:
        """Names of the fields that are not equal."""
        return [name for name in FIELDS if getattr(self, name) != getattr(other, name)]


FIELDS = ("tokens", "draws", "uniforms", "logits", "k", "v")

# Chooses a token for each row of logits [R][V]: (device, logits, requests, draw numbers) -> samples.
Chooser = Callable[[Any, Any, Sequence[Request], Sequence[int]], list[Sample]]


def choose(device, logits, requests: Sequence[Request], draws: Sequence[int]) -> list[Sample]:
    """The contract's choice for every row, in one launch where the device has one."""
    params = [request.sampling for request in requests]
    if device.name == "cpu":
        rows = enumerate(zip(params, draws, strict=True))
        return [sample(device, logits[i], one, draw) for i, (one, draw) in rows]
    made = sample_rows(device, logits, make_batch(device, params, list(draws)))
    found = (device.download(array).tolist() for array in (made.token, made.kept, made.u, made.status))
    chosen = []
    for one, token, kept, u, status in zip(params, *found, strict=True):
        refuse(status, one.temperature)
        chosen.append(Sample(token, kept, u if u >= 0 else None))
    return chosen


@dataclass
class Meddling:
    """What a negative control does to a run: every hook is optional.

    before(state, call) sees the run before a call; logits(array) may change the logits [R][V] after it;
    choose stands in for the sampler.
    """

    before: Callable[["State", Call], None] | None = None
    logits: Callable[[Any], None] | None = None
    choose: Chooser = choose


@dataclass
class State:
    """A run in progress: `row[request]` is its page table, `tokens` what it made."""

    model: Model
    workload: Workload
    cache: KVCache
    row: dict[int, int] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    uniforms: dict[int, list[float | None]] = field(default_factory=dict)
    logits: dict[int, list[str]] = field(default_factory=dict)
    final: dict[int, np.ndarray] = field(default_factory=dict)

    def ids(self, part: Part) -> Sequence[int]:
        """The tokens that a part feeds: of the prompt, or the last one made."""
        prompt = self.workload.requests[part.request].prompt
        if part.start < len(prompt):
            return prompt[part.start : part.start + part.length]
        return self.tokens[part.request][-1:]


def run(model: Model, workload: Workload, cache: KVCache, meddling: Meddling | None = None):
    """{request: Outcome} of every sequence that ran to its end.

    Without meddling tokens are chosen as in production, in the pass itself (and in its graph); with it,
    after the pass. The cache must be free of requests, and is again afterwards; what they stored stays in
    its pages.
    """
    state, outcomes = State(model, workload, cache), {}
    assert not cache.pages.used, "the cache of a workload still holds requests"
    try:
        for op in workload.operations:
            if isinstance(op, Admit):
                used = set(state.row.values())
                row = next(i for i in range(len(cache.stored)) if i not in used)
                cache.reserve(row, op.positions)
                state.row[op.request] = row
                for made in (state.tokens, state.uniforms, state.logits):
                    made[op.request] = []
            elif isinstance(op, Call):
                for parts in [op.parts] if op.packed else [(part,) for part in op.parts]:
                    _call(state, Call(parts), meddling)
            else:
                if not op.cancelled:
                    outcomes[op.request] = _outcome(state, op.request)
                cache.release(state.row.pop(op.request))
        cache.pages.check()
        assert not cache.pages.used, "a page was not given back"
    finally:
        for row in state.row.values():
            cache.release(row)
    return outcomes


def _call(state: State, call: Call, meddling: Meddling | None) -> None:
    workload, device = state.workload, state.model.device
    for part in call.parts:
        state.cache.reserve(state.row[part.request], part.start + part.length)
    if meddling and meddling.before:
        meddling.before(state, call)
    drawing = [part.request for part in call.parts if part.draws]
    requests = [workload.requests[r] for r in drawing]
    draws = [len(state.tokens[r]) for r in drawing]
    ids = [token for part in call.parts for token in state.ids(part)]
    slices = [Slice(state.row[part.request], part.start, part.length) for part in call.parts]
    ends = np.cumsum([part.length for part in call.parts]) - 1
    rows = [int(end) for end, part in zip(ends, call.parts, strict=True) if part.draws]
    options = {"variant": workload.variant, "graph": workload.graph}
    if len(drawing) < len(call.parts) or (device.name == "cpu" and not workload.graph):
        options["rows"] = rows  # else the default, every last row; on cpu only that is recorded
    transformer = state.model.transformer
    if drawing and meddling is None:
        params = [request.sampling for request in requests]
        made = transformer.choose(ids, slices, state.cache, params, draws, **options)
        logits, chosen = made.logits, made.samples
    else:
        logits = transformer.forward(ids, slices, state.cache, **options)
        if not drawing:
            return
        if meddling.logits:
            meddling.logits(logits)
        chosen = meddling.choose(device, logits, requests, draws)
    for r, values, sampled in zip(drawing, device.download(logits), chosen, strict=True):
        state.tokens[r].append(sampled.token)
        state.uniforms[r].append(sampled.u)
        state.logits[r].append(digest(values))
        if len(state.tokens[r]) == workload.requests[r].steps:
            state.final[r] = np.array(values)


def _outcome(state: State, request: int) -> Outcome:
    asked, tokens = state.workload.requests[request], state.tokens[request]
    assert len(tokens) == asked.steps, "a plan released a sequence before its end"
    k, v = state.cache.read(state.row[request], asked.positions)
    return Outcome(
        tuple(tokens),
        0 if asked.sampling.greedy else len(tokens),
        tuple(state.uniforms[request]),
        tuple(state.logits[request]),
        digest(k),
        digest(v),
        state.final[request],
    )


def alone(model: Model, request: Request, cache: KVCache) -> Outcome:
    """The reference: the request by itself, its prompt in one call, reference attention, nothing replayed,
    tokens chosen apart from the pass."""
    operations = plan([request], Policy(chunk=len(request.prompt), rows=len(request.prompt)))
    workload = Workload(
        "reference", "alone", [request], operations, cache.pages.num_pages, "reference", False
    )
    return run(model, workload, cache, Meddling())[0]


def differing(expected: Mapping[int, Outcome], actual: Mapping[int, Outcome]) -> dict[int, list[str]]:
    """{request: fields that differ} of the requests that do."""
    found = {r: expected[r].differences(actual[r]) for r in expected}
    return {r: names for r, names in found.items() if names}
