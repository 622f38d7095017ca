"""Teacher-forced negative log-likelihood of text under a model."""

from collections.abc import Sequence

import numpy as np

from crucible.errors import InputError
from crucible.kv.slices import Slice
from crucible.model.cache import pages_for
from crucible.model.model import Model
from crucible.model.transformer import check_ids
from crucible.numerics.checks import whole
from crucible.sampling.sample import logprobs


def nll(model: Model, ids: Sequence[int], window: int = 1024, rows: int = 64) -> tuple[float, int]:
    """(mean negative log-likelihood in nats per token, tokens scored) of `ids`, teacher forced.

    Every token but the first of each window of `window` positions is scored from the tokens before
    it in the window, by the log-probabilities of contract section 8. `rows` logits rows are alive
    at a time.
    """
    tokens = check_ids(ids, model.config.vocab).tolist()
    window = min(whole("window", window, 2), model.config.context)
    if len(tokens) < 2:
        raise InputError(f"a likelihood needs at least 2 tokens, got {len(tokens)}")
    total, count = np.float64(0), 0
    for first in range(0, len(tokens) - 1, window):
        part = tokens[first : first + window]
        cache = model.new_cache(pages_for(len(part)))
        cache.reserve(0, len(part))
        for start in range(0, len(part) - 1, rows):
            inputs = part[start : min(start + rows, len(part) - 1)]
            logits = model.transformer.forward(
                inputs, [Slice(0, start, len(inputs))], cache, rows=range(len(inputs))
            )
            for row, target in enumerate(part[start + 1 : start + 1 + len(inputs)]):
                total -= logprobs(model.device, logits[row])[target]
                count += 1
    return float(total / count), count
