"""Generate tokens from a prompt: whole, chunked or on shuffled pages, always the same bits."""

import functools
import math
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from crucible.attention.run import Launch
from crucible.attention.variants import default, find
from crucible.errors import ContextError, InputError
from crucible.kv.slices import Slice
from crucible.model.cache import KVCache, pages_for
from crucible.model.card import Card
from crucible.model.decoding import Decoding
from crucible.model.model import Model
from crucible.model.tokenizer import StreamDecoder
from crucible.model.transformer import Chosen, listed_ids
from crucible.numerics.checks import real, whole
from crucible.numerics.digest import digest
from crucible.sampling.params import SamplingParams
from crucible.sampling.sample import Sample

# Rows of a prompt that run at once when no chunk is asked for: bounds the scratch memory, moves no bit.
DEFAULT_CHUNK = 512
_SEED_BITS = 53  # of a drawn seed, so that every JSON reader keeps it whole


@dataclass(frozen=True)
class Options:
    """How to generate; fields other than the sampling ones move no bit.

    temperature 0 is greedy; `seed` None is drawn and reported; `stop` are token ids that end the
    text beside the model's own; `chunk` prompt rows run at a time (None: 512); `page_seed` shuffles
    the physical pages and poisons the rest with NaN; `variant` demands an attention variant (None:
    CRUCIBLE_PREFILL_ATTN, else auto; only a diagnostic moves bits); `digests` False saves their time.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    sampler: str = "inverse-cdf"
    stop: tuple[int, ...] = ()
    ignore_eos: bool = False
    chunk: int | None = None
    page_seed: int | None = None
    variant: str | None = None
    digests: bool = True

    def sampling(self) -> SamplingParams:
        """As `sampling`."""
        return sampling(self.temperature, self.top_k, self.top_p, self.seed, self.sampler)


def sampling(temperature: float, top_k: int, top_p: float, seed: int | None, sampler: str) -> SamplingParams:
    """The validated sampling parameters; a seed is drawn where one is needed and none was given."""
    if seed is None:
        seed = 0 if real("temperature", temperature) == 0 else secrets.randbits(_SEED_BITS)
    fields = (temperature, top_k, top_p, seed, sampler)
    if tuple(map(type, fields)) == _PLAIN and temperature == 0 and math.copysign(1, temperature) > 0:
        return _greedy(*fields)
    return SamplingParams(*fields)


_PLAIN = (float, int, float, int, str)  # what JSON gives: equal values of other types are not the same
_greedy = functools.lru_cache(256)(SamplingParams)  # the parameters of most requests are made once


@dataclass(frozen=True)
class Timings:
    """Seconds, apart from all that the contract fixes; decode_seconds spans sampling and every step."""

    load_seconds: float
    prefill_seconds: float
    decode_seconds: float


@dataclass(frozen=True)
class RandomState:
    """All that decides the next draw: the seed (None where greedy uses none) and its number."""

    seed: int | None
    next_draw: int


@dataclass(frozen=True)
class Step:
    """One generated token: the text it completes, its step's logits digest (None without digests)."""

    token: int
    text: str
    kept: int
    logits_digest: str | None


@dataclass(frozen=True)
class Generation:
    """A finished generation.

    Digests are those of contract section 9 (None without digests): `logits_digests[i]` are the
    logits that token i was taken from, the first being the prompt's; prompt and final K/V digests
    cover [layers][positions][kv_dim] of the positions stored by then. `attention` lists the launches
    that ran, each once. `finish_reason` is "stop" or "length".
    """

    text: str
    tokens: list[int]
    prompt_tokens: list[int]
    finish_reason: str
    random_state: RandomState
    logits_digests: list[str] | None
    prompt_k_digest: str | None
    prompt_v_digest: str | None
    k_digest: str | None
    v_digest: str | None
    attention: tuple[Launch, ...] = field(compare=False)
    timings: Timings = field(compare=False)

    @property
    def prompt_logits_digest(self) -> str | None:
        """Digest of the logits of the prompt's last position."""
        return self.logits_digests[0] if self.logits_digests else None


def check_request(
    model: Card, prompt: str | Sequence[int], options: Options
) -> tuple[list[int], SamplingParams]:
    """Token ids and sampling parameters of a request, or InputError for the first rule it breaks."""
    params = options.sampling()
    whole("max_tokens", options.max_tokens, 1)
    if options.chunk is not None:
        whole("chunk", options.chunk, 1)
    if options.page_seed is not None:
        whole("page_seed", options.page_seed, 0)
    if options.variant is None:
        default()  # refuse a bad environment before anything runs
    else:
        find(options.variant)
    return check_prompt(model, prompt, options.max_tokens, options.stop), params


def check_prompt(model: Card, prompt: str | Sequence[int], max_tokens: int, stop: Sequence[int]) -> list[int]:
    """Token ids of a prompt that `max_tokens` may follow; InputError for the first rule that it, or a token
    of `stop`, breaks."""
    listed_ids(stop, model.config.vocab)
    ids = model.encode(prompt, fit=True) if isinstance(prompt, str) else prompt
    ids = listed_ids(ids, model.config.vocab)
    if not ids:
        raise InputError("the prompt is empty; give at least one token")
    context, count = model.config.context, len(ids)
    if count >= context:
        raise ContextError(
            f"the prompt alone has {count} tokens and leaves no room in the context of {context}; shorten it"
        )
    if count + max_tokens > context:
        raise ContextError(
            f"{count} prompt tokens and max_tokens {max_tokens} exceed the context of {context}; "
            f"shorten the prompt or ask for at most {context - count} tokens"
        )
    return ids


def prefill(
    model: Model,
    ids: Sequence[int],
    cache: KVCache,
    request: int,
    params: SamplingParams,
    options: Options,
    launches: set[Launch],
) -> Chosen:
    """Run the prompt in chunks; the first token and its logits. `launches` gains what attention ran."""
    chunk = options.chunk or DEFAULT_CHUNK
    last = (len(ids) - 1) // chunk * chunk
    for start in range(0, last, chunk):
        part = ids[start : start + chunk]
        slices = [Slice(request, start, len(part))]
        model.transformer.forward(part, slices, cache, rows=(), variant=options.variant)
        launches |= model.transformer.launches
    part = ids[last:]
    slices = [Slice(request, last, len(part))]
    chosen = model.transformer.choose(part, slices, cache, [params], [0], variant=options.variant)
    launches |= model.transformer.launches
    return chosen


def stream(
    model: Model, prompt: str | Sequence[int], options: Options | None = None, **changes
) -> Iterator[Step | Generation]:
    """Yield a Step per token as it is made, then one Generation.

    `options` or its fields as keywords. Raises InputError for a request that breaks a rule (before
    the first token); the cache is released however the iteration ends.
    """
    unknown = set(changes) - {f.name for f in fields(Options)}
    if unknown:
        raise InputError(
            f"unknown option {min(unknown)!r}; options are {', '.join(f.name for f in fields(Options))}"
        )
    if options is not None and not isinstance(options, Options):
        raise InputError(f"options is {type(options).__name__}; pass Options, or its fields as keywords")
    options = Options(**{**({} if options is None else vars(options)), **changes})
    ids, params = check_request(model, prompt, options)
    return _stream(model, ids, params, options)


def _stream(
    model: Model, ids: list[int], params: SamplingParams, options: Options
) -> Iterator[Step | Generation]:
    positions = len(ids) + options.max_tokens
    # A shuffled map draws from more pages than it needs, so that gaps lie between them.
    spare = 1 if options.page_seed is None else 2
    cache = model.new_cache(pages_for(positions) * spare, page_seed=options.page_seed)
    cache.reserve(0, positions)
    stops = {*options.stop, *(() if options.ignore_eos else model.eos_ids)}
    decoder = StreamDecoder(model.tokenizer)
    tokens: list[int] = []
    pieces: list[str] = []
    digests: list[str] = []

    started = time.perf_counter()
    launches: set[Launch] = set()
    chosen = prefill(model, ids, cache, 0, params, options, launches)
    prefilled = time.perf_counter()
    prompt_kv = _kv_digests(cache, len(ids)) if options.digests else (None, None)

    decode_started, decode_seconds, reason = time.perf_counter(), 0.0, "length"
    for sampled, logits in _steps(model, cache, chosen, len(ids), params, options, launches):
        mark = digest(model.device.download(logits[0])) if options.digests else None
        tokens.append(sampled.token)
        digests += [mark] if mark else []
        stopped = sampled.token in stops
        done = stopped or len(tokens) == options.max_tokens
        text = decoder.push(sampled.token) + (decoder.finish() if done else "")
        pieces.append(text)
        decode_seconds += time.perf_counter() - decode_started
        yield Step(sampled.token, text, sampled.kept, mark)
        decode_started = time.perf_counter()
        if done:
            reason = "stop" if stopped else "length"
            break
    kv = _kv_digests(cache, len(ids) + len(tokens) - 1) if options.digests else (None, None)
    yield Generation(
        text="".join(pieces),
        tokens=tokens,
        prompt_tokens=ids,
        finish_reason=reason,
        random_state=RandomState(None if params.greedy else params.seed, 0 if params.greedy else len(tokens)),
        logits_digests=digests if options.digests else None,
        prompt_k_digest=prompt_kv[0],
        prompt_v_digest=prompt_kv[1],
        k_digest=kv[0],
        v_digest=kv[1],
        attention=tuple(sorted(launches, key=lambda launch: (launch.variant, launch.reason))),
        timings=Timings(model.load_seconds, prefilled - started, decode_seconds),
    )


def _steps(
    model: Model,
    cache: KVCache,
    first: Chosen,
    position: int,
    params: SamplingParams,
    options: Options,
    launches: set[Launch],
) -> Iterator[tuple[Sample, Any]]:
    """(token, logits [1][V] that it was taken from, None without digests), one for each of max_tokens.

    Without digests steps may run ahead of the host: what is not asked for any more is lost.
    """
    transformer, (sampled,) = model.transformer, first.samples
    yield sampled, first.logits
    if options.digests:
        for draw in range(1, options.max_tokens):
            slices = [Slice(0, position + draw - 1, 1)]
            chosen = transformer.choose(
                [sampled.token], slices, cache, [params], [draw], variant=options.variant
            )
            launches |= transformer.launches
            (sampled,) = chosen.samples
            yield sampled, chosen.logits
        return
    decoding = Decoding(transformer, cache, [0], [sampled.token], [params], [1], options.variant)
    left = options.max_tokens - 1
    while left or decoding.pending:
        while left and decoding.pending < 2 and decoding.runs_ahead:
            decoding.enqueue()
            launches |= transformer.launches
            left -= 1
        (sampled,) = decoding.collect()
        yield sampled, None


def _kv_digests(cache: KVCache, length: int) -> tuple[str, str]:
    k, v = cache.read(0, length)
    return digest(k), digest(v)


def generate(
    model: Model, prompt: str | Sequence[int], options: Options | None = None, **changes
) -> Generation:
    """Run a request to its end; `options` or its fields as keywords, errors as `stream`."""
    *_, last = stream(model, prompt, options, **changes)
    assert isinstance(last, Generation)
    return last
