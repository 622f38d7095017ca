"""One request of a whole model in many arrangements: in chunks, on other pages, packed beside neighbours."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crucible.kv.slices import Slice
from crucible.model.cache import pages_for
from crucible.model.model import Model
from crucible.numerics.digest import digest
from crucible.sampling.params import SamplingParams
from crucible.sampling.sample import sample

GREEDY = SamplingParams()


@dataclass(frozen=True)
class Made:
    """What one arrangement gave: tokens, logits f32 [steps][V], K and V f32 [layers][positions][kv_dim]."""

    tokens: list[int]
    logits: np.ndarray
    k: np.ndarray
    v: np.ndarray

    @property
    def values(self) -> np.ndarray:
        """Logits of every step, then K, then V, as one f32 vector."""
        return np.concatenate([self.logits.ravel(), self.k.ravel(), self.v.ravel()])

    @property
    def digest(self) -> str:
        """One digest of all of them."""
        return digest(self.values)


def run(
    model: Model,
    ids: Sequence[int],
    steps: int,
    chunk: int | None = None,
    page_seed: int | None = None,
    neighbours: Sequence[Sequence[int]] = (),
) -> Made:
    """Prefill `ids` and decode `steps` greedy tokens; `neighbours` are texts (ids) that share every batch.

    A neighbour's prompt is read beside the first chunk, before the followed request for every other
    one, after it for the rest; with each later batch it reads one token more of its own text.
    """
    longest = max(len(ids), *(len(n) for n in neighbours)) + steps if neighbours else len(ids) + steps
    pages = pages_for(longest) * (2 if page_seed is not None else 1) * (1 + len(neighbours))
    cache = model.new_cache(pages, max_requests=1 + len(neighbours), page_seed=page_seed)
    for request, text in enumerate((ids, *neighbours)):
        cache.reserve(request, len(text) + steps)
    read = [0] * len(neighbours)

    def forward(part: Sequence[int], start: int) -> np.ndarray:
        batch = [(list(part), Slice(0, start, len(part)))]
        for i, text in enumerate(neighbours):
            take = text[: len(text) // 2] if not read[i] else text[read[i] : read[i] + 1]
            if take:
                batch.insert(0 if i % 2 else len(batch), (list(take), Slice(i + 1, read[i], len(take))))
                read[i] += len(take)
        tokens = [token for piece, _ in batch for token in piece]
        ours = next(i for i, (_, piece) in enumerate(batch) if piece.table_index == 0)
        last = sum(piece.length for _, piece in batch[: ours + 1]) - 1
        logits = model.transformer.forward(tokens, [piece for _, piece in batch], cache, rows=(last,))
        return np.array(model.device.download(logits)[0])

    size = chunk or len(ids)
    for start in range(0, len(ids), size):
        row = forward(ids[start : start + size], start)
    tokens, rows = [], [row]
    while True:
        tokens.append(sample(model.device, model.device.upload(rows[-1]), GREEDY, draw=len(tokens)).token)
        if len(tokens) == steps:
            break
        rows.append(forward(tokens[-1:], len(ids) + len(tokens) - 1))
    k, v = cache.read(0, len(ids) + steps - 1)
    return Made(tokens, np.stack(rows), k, v)


def all_of(
    model: Model, ids: Sequence[int], steps: int, neighbours: Sequence[Sequence[int]]
) -> dict[str, Made]:
    """The arrangements that must not differ in a bit; the first is the request alone and whole."""
    return {
        "whole": run(model, ids, steps),
        "in chunks of 7": run(model, ids, steps, chunk=7),
        "token by token": run(model, ids, steps, chunk=1),
        "on shuffled pages": run(model, ids, steps, page_seed=3),
        "packed beside neighbours": run(model, ids, steps, neighbours=neighbours),
        "all at once": run(model, ids, steps, chunk=7, page_seed=11, neighbours=neighbours),
    }
