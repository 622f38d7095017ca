"""Teacher-forced likelihood of text under a model: dense windows, decode, and paged prefill of one target."""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crucible import device as devices
from crucible.errors import InputError
from crucible.evidence.environment import capture
from crucible.evidence.record import Record
from crucible.kv.slices import Slice
from crucible.model.cache import pages_for
from crucible.model.model import Model
from crucible.model.transformer import listed_ids
from crucible.numerics.checks import whole
from crucible.sampling.sample import logprobs

DECODE_POSITIONS = 1024
# Context before the one scored target -> input tokens of which disjoint windows are cut.
PREFILL = {32: 1024, 256: 16384, 941: 16384}
PROTOCOLS = ("decode", *(f"prefill-{context}" for context in PREFILL))
_ROWS = 1024  # packed rows of a prefill call

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Score:
    """Cross-entropy of scored targets, in nats, and what it was taken from.

    `digest` is that of the scored rows' logits f32 [scored][V], `nonzero` and `finite` count them;
    `fed` is how many tokens the model read.
    """

    protocol: str
    variant: str
    scored: int
    fed: int
    cross_entropy: float
    digest: str
    elements: int
    finite: int
    nonzero: int

    @property
    def perplexity(self) -> float:
        """exp of the cross-entropy."""
        return math.exp(self.cross_entropy)


def surprise(model: Model, logits: Any, target: int) -> float:
    """-log p(target) in nats under logits f32 [V] of the model's device (contract section 8)."""
    return -float(logprobs(devices.get("cpu"), np.ascontiguousarray(model.device.download(logits)))[target])


def nll(model: Model, ids: Sequence[int], window: int = 1024, rows: int = 64) -> tuple[float, int]:
    """(mean negative log-likelihood in nats per token, tokens scored) of `ids`, teacher forced.

    Every token but the first of each window of `window` positions is scored from the tokens before
    it in the window, by the log-probabilities of contract section 8. `rows` logits rows are alive
    at a time.
    """
    tokens = listed_ids(ids, model.config.vocab)
    window = min(whole("window", window, 2), model.config.context)
    if len(tokens) < 2:
        raise InputError(f"a likelihood needs at least 2 tokens, got {len(tokens)}")
    total, count = 0.0, 0
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
                total += surprise(model, logits[row], target)
                count += 1
    return total / count, count


def score(
    model: Model,
    ids: Sequence[int],
    protocol: str,
    variant: str | None = None,
    progress: Progress = lambda done: None,
) -> Score:
    """Score a text's tokens by one of PROTOCOLS; `variant` demands an attention variant.

    decode feeds tokens 0..1023 one by one and scores the token after each. prefill-C cuts the first input
    tokens into disjoint windows of C + 1 and scores the last of each from the C before it, several windows
    packed in a call. InputError for a text or a context too short. `progress` gets scored targets.
    """
    if protocol not in PROTOCOLS:
        raise InputError(f"unknown protocol {protocol!r}; choose one of {', '.join(PROTOCOLS)}")
    tokens = listed_ids(ids, model.config.vocab)
    context = DECODE_POSITIONS if protocol == "decode" else int(protocol.removeprefix("prefill-"))
    need = DECODE_POSITIONS + 1 if protocol == "decode" else PREFILL[context]
    if len(tokens) < need:
        raise InputError(f"{protocol} needs {need} tokens, the text has {len(tokens)}; give a longer text")
    if context > model.config.context:
        raise InputError(f"{protocol} needs a context of {context}, {model.name} has {model.config.context}")
    rows = (
        _decode(model, tokens, variant) if protocol == "decode" else _prefill(model, tokens, context, variant)
    )
    total, scored, fed, finite, nonzero = 0.0, 0, 0, 0, 0
    seen = hashlib.blake2b(digest_size=16)
    for logits, target, read in rows:
        values = np.ascontiguousarray(model.device.download(logits))
        seen.update(values.astype("<f4", copy=False))
        finite += int(np.isfinite(values).sum())
        nonzero += int(np.count_nonzero(values))
        total += surprise(model, logits, target)
        scored, fed = scored + 1, fed + read
        progress(1)
    elements = scored * model.config.vocab
    return Score(protocol, variant or "auto", scored, fed, total / scored, seen.hexdigest(), elements, finite,
                 nonzero)  # fmt: skip


def targets(protocol: str) -> int:
    """How many targets a protocol scores."""
    if protocol == "decode":
        return DECODE_POSITIONS
    context = int(protocol.removeprefix("prefill-"))
    return PREFILL[context] // (context + 1)


def _decode(model: Model, tokens: list[int], variant: str | None) -> Iterator[tuple[Any, int, int]]:
    """(logits [V], target, tokens read for it) of every position."""
    cache = model.new_cache(pages_for(DECODE_POSITIONS))
    cache.reserve(0, DECODE_POSITIONS)
    for position in range(DECODE_POSITIONS):
        slices = [Slice(0, position, 1)]
        logits = model.transformer.forward([tokens[position]], slices, cache, variant=variant)
        yield logits[0], tokens[position + 1], 1


def _prefill(
    model: Model, tokens: list[int], context: int, variant: str | None
) -> Iterator[tuple[Any, int, int]]:
    """(logits [V], target, tokens read for it) of every window."""
    together = max(1, min(_ROWS // context, 16))
    cache = model.new_cache(pages_for(context) * together, together)
    for request in range(together):
        cache.reserve(request, context)
    count = PREFILL[context] // (context + 1)
    for first in range(0, count, together):
        windows = [
            tokens[i * (context + 1) :][: context + 1] for i in range(first, min(first + together, count))
        ]
        slices = [Slice(request, 0, context) for request in range(len(windows))]
        ids = [token for window in windows for token in window[:-1]]
        logits = model.transformer.forward(ids, slices, cache, variant=variant)
        for row, window in enumerate(windows):
            yield logits[row], window[-1], context


def record_of(model: Model, text_name: str, text_sha256: str, scores: Sequence[Score]) -> Record:
    """Evidence of one protocol by several attention variants: a pass if all scored logits have equal bits."""
    first = scores[0]
    equal = len({(s.digest, s.cross_entropy) for s in scores}) == 1
    sound = first.finite == first.elements and first.nonzero > 0
    verdict = "fail" if not (equal and sound) else "pass" if len(scores) > 1 else "measured"
    return Record(
        kind=f"held-out: {model.name} {model.mode} {first.protocol}",
        claim=f"{' and '.join(s.variant for s in scores)} attention score the held-out text with equal bits",
        compared="the logits of every scored target by digest, and the cross-entropy",
        verdict=verdict,
        elements=first.elements,
        finite=first.finite,
        nonzero=first.nonzero,
        facts={
            "text": text_name,
            "text sha256": text_sha256,
            "scored targets": first.scored,
            "tokens read": first.fed,
            "cross-entropy, nats per token": first.cross_entropy,
            "perplexity": first.perplexity,
            **{f"logits digest, {s.variant}": s.digest for s in scores},
            **{f"model file {name}": digest for name, digest in model.file_digests().items()},
        },
        not_claimed=("that the model never saw this text", "a likelihood of every token of it"),
        environment=capture(model.device.name),
    )
