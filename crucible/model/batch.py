"""Generate for several requests without an engine: prompts packed into calls, then all decode together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from crucible.errors import InputError
from crucible.kv.slices import Slice
from crucible.model.cache import KVCache, check_cache, pages_for
from crucible.model.decoding import Decoding
from crucible.model.model import Model
from crucible.model.transformer import listed_ids
from crucible.numerics.checks import listed, whole
from crucible.sampling.params import SamplingParams
from crucible.sampling.rows import check_params

ROWS, SEGMENTS = 1024, 16  # of one packed call


@dataclass(frozen=True)
class Part:
    """Prompt tokens start .. start+length-1 of a request; `last` where the prompt ends in them."""

    request: int
    start: int
    length: int
    last: bool


def packed_parts(lengths: Sequence[int], rows: int = ROWS, segments: int = SEGMENTS) -> Iterator[list[Part]]:
    """Calls of at most `rows` rows and `segments` parts that run prompts of these lengths in order."""
    call: list[Part] = []
    room = rows
    for request, length in enumerate(lengths):
        start = 0
        while start < length:
            taken = min(room, length - start)
            call.append(Part(request, start, taken, start + taken == length))
            start, room = start + taken, room - taken
            if room == 0 or len(call) == segments:
                yield call
                call, room = [], rows
    if call:
        yield call


def generate_batch(
    model: Model,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    max_tokens: int,
    stops: Sequence[int] = (),
    cache: KVCache | None = None,
    rows: int = ROWS,
    segments: int = SEGMENTS,
    ahead: int = 1,
    variant: str | None = None,
) -> list[list[int]]:
    """The tokens of every request, up to `max_tokens` each or the first of `stops` (which is kept).

    The same as one request at a time. `cache` has a table row for each request and none of them in use; it is
    empty again afterwards, and its captures serve the next call. `rows` and `segments` bound a prompt call,
    `ahead` is how many steps may be under way beside the one that is waited for. InputError as `forward`, and
    PoolExhausted where the cache has too few pages; however it ends, what it reserved is given back.
    """
    whole("max_tokens", max_tokens, 1)
    whole("ahead", ahead, 0)
    rows, segments = whole("rows", rows, 1), whole("segments", segments, 1)
    prompts, params = listed("prompts", prompts), listed("params", params)
    if len(prompts) != len(params) or not prompts:
        raise InputError(f"{len(prompts)} prompts have {len(params)} sampling parameters; give one each")
    check_params(params)
    ends = frozenset(listed_ids(stops, model.config.vocab))
    prompts = [listed_ids(prompt, model.config.vocab) for prompt in prompts]
    if not all(prompts):
        raise InputError(f"prompt {prompts.index([])} is empty; give at least one token")
    positions = [len(prompt) + max_tokens for prompt in prompts]
    if cache is None:
        cache = model.new_cache(sum(map(pages_for, positions)), len(prompts))
    _check_free(cache, len(prompts))
    tokens: list[list[int]] = [[] for _ in prompts]
    try:
        for request, count in enumerate(positions):
            cache.reserve(request, count)
        _prefill(model, prompts, params, cache, tokens, rows, segments, variant)
        _decode(model, params, cache, tokens, max_tokens, ends, ahead, variant)
    finally:
        for request in range(len(prompts)):
            if cache.pages.pages_of(request):  # an error may have come before its pages
                cache.release(request)
    return tokens


def _check_free(cache, count: int) -> None:
    """InputError unless table rows 0 .. count-1 of the cache exist and none of them is in use."""
    check_cache(cache)
    for request in range(count):
        cache.tables.check(request, 0)
        if used := len(cache.pages.pages_of(request)):
            raise InputError(
                f"request {request} of the cache holds {used} pages already; release it, or pass a cache "
                f"whose rows 0..{count - 1} are free"
            )


def _prefill(model, prompts, params, cache, tokens, rows: int, segments: int, variant) -> None:
    for parts in packed_parts([len(prompt) for prompt in prompts], rows, segments):
        ids = [t for p in parts for t in prompts[p.request][p.start : p.start + p.length]]
        slices = [Slice(p.request, p.start, p.length) for p in parts]
        ends, at = [], 0
        for part in parts:
            at += part.length
            ends.append(at - 1)
        done = [(part.request, end) for part, end in zip(parts, ends, strict=True) if part.last]
        wanted = None if len(done) == len(parts) else [end for _, end in done]
        given = [params[request] for request, _ in done]
        chosen = model.transformer.choose(ids, slices, cache, given, [0] * len(done), wanted, variant)
        for (request, _), sample in zip(done, chosen.samples, strict=True):
            tokens[request].append(sample.token)


def _decode(
    model, params, cache, tokens, max_tokens: int, stops: frozenset[int], ahead: int, variant
) -> None:
    while live := [r for r, made in enumerate(tokens) if len(made) < max_tokens and made[-1] not in stops]:
        last, draws = [tokens[r][-1] for r in live], [len(tokens[r]) for r in live]
        decoding = Decoding(model.transformer, cache, live, last, [params[r] for r in live], draws, variant)
        # Until one ends: then the others go on as a smaller batch.
        left = max_tokens - max(len(tokens[r]) for r in live)
        ended = False
        while not ended and (left or decoding.pending):
            while left and decoding.pending <= ahead and decoding.runs_ahead:
                decoding.enqueue()
                left -= 1
            for request, sample in zip(live, decoding.collect(), strict=True):
                tokens[request].append(sample.token)
                ended |= sample.token in stops
        while decoding.pending:  # steps that were under way; of the ended requests they are nothing
            for request, sample in zip(live, decoding.collect(), strict=True):
                if tokens[request][-1] not in stops:
                    tokens[request].append(sample.token)
