"""Sequences through a model by one attention: run freely, or teacher-forced along given tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from crucible.drift.candidates import Candidate
from crucible.errors import InputError
from crucible.kv.slices import Slice
from crucible.model.cache import KVCache, pages_for
from crucible.model.layers import Trace
from crucible.model.model import Model
from crucible.numerics.digest import digest
from crucible.sampling.params import SamplingParams

REFERENCE = Candidate("reference", "reference", "the contract's attention")
_ROWS = 1024  # packed rows of a call


@dataclass(frozen=True)
class Request:
    """Prompt token ids, tokens to make, how to choose them, and the number of the first draw.

    `number` is its place in a corpus and `group` the prompt it shares with its replicates.
    """

    prompt: tuple[int, ...]
    steps: int
    sampling: SamplingParams
    number: int = 0
    group: str = ""
    draw: int = 0


@dataclass(frozen=True)
class Path:
    """What a request came to: tokens, the draws used (None where greedy), and digests of each step's logits.

    `logits` f32 [steps][V] is kept where it was asked for; `next_draw` with the seed is the random state.
    """

    tokens: tuple[int, ...]
    uniforms: tuple[float | None, ...]
    digests: tuple[str, ...]
    next_draw: int
    logits: np.ndarray | None = None

    def same(self, other: "Path") -> bool:
        """Whether tokens, draws, random state and every step's logits agree, by bits."""
        mine, theirs = replace(self, logits=None), replace(other, logits=None)
        return mine == theirs


def check_lengths(model: Model, requests: Sequence[Request]) -> None:
    """InputError for a request whose prompt and steps exceed the context; costs no memory."""
    context = model.config.context
    for request in requests:
        count = len(request.prompt)
        if count + request.steps > context:
            raise InputError(
                f"{count} prompt tokens and {request.steps} steps exceed the context of {context}; "
                f"ask for at most {context - count} steps"
            )


def _cache(model: Model, requests: Sequence[Request]) -> KVCache:
    """Pages for all requests, shuffled and full of NaN; row i is request i's."""
    check_lengths(model, requests)
    lengths = [len(r.prompt) + r.steps for r in requests]
    cache = model.new_cache(sum(map(pages_for, lengths)) + 4, len(requests), page_seed=20260908)
    for row, length in enumerate(lengths):
        cache.reserve(row, length)
    return cache


def grouped(requests: Sequence[Request], rows: int = _ROWS, most: int = 64) -> Iterator[list[int]]:
    """Places of the requests in groups whose prompts and steps fit one call, at most `most` requests."""
    group: list[int] = []
    used = 0
    for place, request in enumerate(requests):
        need = len(request.prompt) + request.steps
        if group and (used + need > rows or len(group) == most):
            yield group
            group, used = [], 0
        group.append(place)
        used += need
    if group:
        yield group


def run(
    model: Model, requests: Sequence[Request], candidate: Candidate = REFERENCE, logits: bool = False
) -> list[Path]:
    """Every request to its last step, packed in company; no end token stops it."""
    found: list[Path | None] = [None] * len(requests)
    with candidate.installed() as variant:
        for group in grouped(requests):
            paths = _run(model, [requests[i] for i in group], variant, candidate.graph, logits)
            for place, path in zip(group, paths, strict=True):
                found[place] = path
    return found


def _run(model: Model, requests: list[Request], variant: str, graph: bool, keep: bool) -> list[Path]:
    cache = _cache(model, requests)
    tokens: list[list[int]] = [[] for _ in requests]
    uniforms: list[list[float | None]] = [[] for _ in requests]
    digests: list[list[str]] = [[] for _ in requests]
    kept: list[list[np.ndarray]] = [[] for _ in requests]
    active = list(range(len(requests)))
    while active:
        first = not tokens[active[0]]
        parts = [requests[i].prompt if first else tokens[i][-1:] for i in active]
        starts = [0 if first else len(requests[i].prompt) + len(tokens[i]) - 1 for i in active]
        slices = [Slice(i, start, len(part)) for i, start, part in zip(active, starts, parts, strict=True)]
        ids = [token for part in parts for token in part]
        params = [requests[i].sampling for i in active]
        draws = [requests[i].draw + len(tokens[i]) for i in active]
        made = model.transformer.choose(ids, slices, cache, params, draws, variant=variant, graph=graph)
        values = model.device.download(made.logits)
        for i, row, chosen in zip(active, values, made.samples, strict=True):
            tokens[i].append(chosen.token)
            uniforms[i].append(chosen.u)
            digests[i].append(digest(row))
            if keep:
                kept[i].append(np.array(row))
        active = [i for i in active if len(tokens[i]) < requests[i].steps]
    return [
        Path(
            tuple(tokens[i]),
            tuple(uniforms[i]),
            tuple(digests[i]),
            r.draw + (0 if r.sampling.greedy else r.steps),
            np.stack(kept[i]) if keep else None,
        )
        for i, r in enumerate(requests)
    ]


def forced(
    model: Model,
    requests: Sequence[Request],
    tokens: Sequence[Sequence[int]],
    candidate: Candidate = REFERENCE,
    rows: int = _ROWS,
) -> Iterator[tuple[int, np.ndarray]]:
    """(place, logits f32 [steps][V]) of every request along given tokens, several requests a call.

    Each request's prompt and tokens run at once: attention whose bits hang on the number of rows of a
    launch (library attention may) can differ in bits, not in kind, from a run token by token.
    """
    with candidate.installed() as variant:
        for group in grouped(requests, rows):
            some = [requests[i] for i in group]
            cache = _cache(model, some)
            ids: list[int] = []
            wanted: list[int] = []
            slices = []
            for row, (request, place) in enumerate(zip(some, group, strict=True)):
                fed = [*request.prompt, *tokens[place][: request.steps - 1]]
                slices.append(Slice(row, 0, len(fed)))
                wanted += range(len(ids) + len(request.prompt) - 1, len(ids) + len(fed))
                ids += fed
            out = model.transformer.forward(ids, slices, cache, rows=wanted, variant=variant, graph=False)
            values, at = model.device.download(out), 0
            for place, request in zip(group, some, strict=True):
                yield place, values[at : at + request.steps]
                at += request.steps


def walked(
    model: Model,
    request: Request,
    tokens: Sequence[int],
    candidate: Candidate = REFERENCE,
    trace_step: int | None = None,
    trace: Trace | None = None,
) -> tuple[np.ndarray, KVCache]:
    """(logits f32 [steps][V], cache) along given tokens as generation runs: the prompt, then one by one.

    `trace` sees the pass of step `trace_step`, which is the last that then runs. The request is row 0 of the
    cache.
    """
    cache = _cache(model, [request])
    found = []
    last = request.steps - 1 if trace_step is None else trace_step
    with candidate.installed() as variant:
        for step in range(last + 1):
            start = len(request.prompt) + step - 1 if step else 0
            ids = [tokens[step - 1]] if step else request.prompt
            seen = trace if step == trace_step else None
            slices = [Slice(0, start, len(ids))]
            out = model.transformer.forward(
                ids, slices, cache, variant=variant, trace=seen, graph=candidate.graph and seen is None
            )
            found.append(np.array(model.device.download(out)[0]))
    return np.stack(found), cache
