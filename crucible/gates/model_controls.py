"""Negative controls of the model gate: what a broken engine would do, which the gate must see."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from crucible import device as devices
from crucible.gates.model_cases import Corpus
from crucible.gates.model_plan import Call, Policy, Request, plan
from crucible.gates.model_run import Meddling, Outcome, State, Workload, choose, differing, run
from crucible.model.cache import KVCache
from crucible.model.model import Model
from crucible.sampling.philox import philox
from crucible.sampling.sample import Sample, rank

ONLINE = "online-q2-k32"


def caught(
    model: Model, workload: Workload, cache: KVCache, expected: Mapping[int, Outcome]
) -> Iterator[tuple[str, str]]:
    """Break a workload in every way; yields (name, what gave it away), "" where nothing did."""
    for name, (meddling, variant) in CONTROLS.items():
        # A recording could pass over what a control does to a call, so nothing is replayed.
        changed = replace(workload, graph=False, variant=variant)
        found = differing(expected, run(model, changed, cache, meddling))
        yield name, "; ".join(f"request {r}: {', '.join(names)}" for r, names in found.items())


def small(corpus: Corpus) -> Workload:
    """Four requests that decode together, with the sampler whose noise is indexed by token."""
    lengths = (33, 18, 47, 21)
    requests = [corpus.request(200 + i, n, sampling=6 + i) for i, n in enumerate(lengths)]
    requests = [replace(request, steps=max(request.steps, 4)) for request in requests]
    return Workload("controls", "four together", requests, plan(requests, Policy(32)))


def _pages(state: State, request: int) -> list[int]:
    row = state.row[request]
    return [int(page) for page in state.cache.tables.array[row] if page >= 0]


def _decoding(call: Call) -> bool:
    return all(part.draws and part.length == 1 for part in call.parts)


def _neighbours_page(state: State, call: Call) -> None:
    """From the first decode call on, the first page of request 0 holds what its neighbour's page holds."""
    if _decoding(call) and len(state.tokens[0]) == 1:
        mine, other = _pages(state, 0)[0], _pages(state, 1)[0]
        for pool in (state.cache.kpool, state.cache.vpool):
            pool[mine] = pool[other]


def _stored_bit(state: State, call: Call) -> None:
    """The last bit of one stored key flips before the first decode call."""
    if _decoding(call) and len(state.tokens[0]) == 1:
        slot = state.cache.kpool[_pages(state, 0)[0], 0, 3]
        slot[5:6].view(np.uint32)[...] ^= 1


def _logit_ulp(logits) -> None:
    """The last bit of one logit of the call's first row flips."""
    logits[0, 5:6].view(np.uint32)[...] ^= 1


def _shared_draws(device, logits, requests: Sequence[Request], draws: Sequence[int]) -> list[Sample]:
    """One stream of draws for the whole batch: a row's place in it moves its noise."""
    return choose(device, logits, requests, [draw * len(draws) + i for i, draw in enumerate(draws)])


def _noise_by_rank(device, logits, requests: Sequence[Request], draws: Sequence[int]) -> list[Sample]:
    """The second sampler with its noise indexed by rank instead of by token id."""
    cpu = devices.get("cpu")
    right = choose(device, logits, requests, draws)
    return [
        replace(one, token=_by_rank(cpu, values, request, draw, one.kept))
        for one, values, request, draw in zip(right, device.download(logits), requests, draws, strict=True)
    ]


def _by_rank(cpu, logits: np.ndarray, request: Request, draw: int, kept: int) -> int:
    seed, temperature = request.sampling.seed, request.sampling.temperature
    logits = np.ascontiguousarray(logits)
    ids = rank(cpu, logits, temperature, kept)
    counter = np.array([[draw, place, 1, 0] for place in range(kept)], np.uint32)
    words = philox(cpu, counter, np.array([[seed & 0xFFFFFFFF, seed >> 32]] * kept, np.uint32))
    w = words[:, 0].astype(np.uint64) << np.uint64(32) | words[:, 1].astype(np.uint64)
    v = ((w >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    z = logits[ids] / temperature
    return int(ids[np.argmin(-np.log(v) / np.exp((z - z[0]).astype(np.float64)))])


CONTROLS: dict[str, tuple[Meddling, str | None]] = {
    "a neighbour's page": (Meddling(before=_neighbours_page), None),
    "one bit of one stored key": (Meddling(before=_stored_bit), None),
    "one logit off by an ulp": (Meddling(logits=_logit_ulp), None),
    "noise indexed by rank": (Meddling(choose=_noise_by_rank), None),
    "draws shared by the batch": (Meddling(choose=_shared_draws), None),
    "online attention": (Meddling(), ONLINE),
}
