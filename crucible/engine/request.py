"""A request and the rules it must keep; whatever breaks one is refused before anything is kept of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from crucible.attention.variants import default
from crucible.engine.scheduler import Limits, pages_for
from crucible.errors import InputError
from crucible.model.card import Card
from crucible.model.generate import check_prompt, sampling
from crucible.numerics.checks import whole
from crucible.numerics.contract import PAGE_SIZE
from crucible.sampling.params import SamplingParams

TOP_LOGPROBS = 64
STOP_STRINGS = 16
STOP_LENGTH = 256


@dataclass(frozen=True)
class Request:
    """A prompt (text or token ids) and how to continue it.

    temperature 0 is greedy; `seed` None is drawn and reported; `stop` are token ids and `stop_strings`
    texts that end it, beside the model's own end tokens unless `ignore_eos`; `logprobs` n reports the
    chosen token's and the n likeliest tokens' log-probabilities; `digests` those of each step's logits,
    `kv_digests` those of the final K and V.
    """

    prompt: str | Sequence[int]
    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    sampler: str = "inverse-cdf"
    stop: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    digests: bool = False
    kv_digests: bool = False


@dataclass(frozen=True)
class Checked:
    """A request that keeps every rule: prompt ids, sampling parameters with their seed, and what ends it."""

    prompt: list[int]
    params: SamplingParams
    max_tokens: int
    stop_tokens: frozenset[int]
    stop_strings: tuple[str, ...]
    logprobs: int | None
    digests: bool
    kv_digests: bool = False


def as_request(request: "Request | str | Sequence[int]", changes: dict) -> Request:
    """A Request, or a prompt with the other fields as keywords; InputError for a field that there is not."""
    names = [f.name for f in fields(Request)]
    unknown = set(changes) - set(names[1:])
    if unknown:
        # Never passed over: a penalty or a bias that is not applied would be another request.
        raise InputError(f"unknown request field {min(unknown)!r}; fields are {', '.join(names)}")
    if isinstance(request, Request):
        return Request(**{**vars(request), **changes})
    return Request(request, **changes)


def as_list(requests: "Sequence[Request | str | Sequence[int]]") -> list:
    """The requests of a list; InputError for a single one, whose letters or fields are no requests."""
    if isinstance(requests, Request | str | bytes | Mapping):
        raise InputError(
            f"requests must be a list of them, not one {type(requests).__name__}; put it in a list"
        )
    if not isinstance(requests, Iterable):
        raise InputError(f"requests must be a list of prompts, got {type(requests).__name__}")
    return list(requests)


def check(model: Card, request: Request, limits: Limits) -> Checked:
    """The request with its text encoded and its seed drawn; InputError for the first rule it breaks."""
    for name in ("ignore_eos", "digests", "kv_digests"):
        if not isinstance(getattr(request, name), bool):
            raise InputError(f"{name} {getattr(request, name)!r} must be True or False")
    strings = _stop_strings(request.stop_strings)
    logprobs = request.logprobs
    if logprobs is not None:
        logprobs = whole("logprobs", logprobs, 0, min(TOP_LOGPROBS, model.config.vocab))
    params = sampling(request.temperature, request.top_k, request.top_p, request.seed, request.sampler)
    max_tokens = whole("max_tokens", request.max_tokens, 1)
    default()  # refuse a bad environment before anything runs
    ids = check_prompt(model, request.prompt, max_tokens, request.stop)
    positions = len(ids) + max_tokens - 1  # the last token is never stored
    if pages_for(positions) > limits.pages:
        raise InputError(
            f"{len(ids)} prompt tokens and max_tokens {max_tokens} need {pages_for(positions)} pages of "
            f"{PAGE_SIZE}, the engine has {limits.pages}; shorten the request or give the engine more pages"
        )
    ends = {*request.stop, *(() if request.ignore_eos else model.eos_ids)}
    return Checked(
        ids,
        params,
        max_tokens,
        frozenset(map(int, ends)),
        strings,
        logprobs,
        request.digests,
        request.kv_digests,
    )


def _stop_strings(strings) -> tuple[str, ...]:
    if isinstance(strings, str) or not isinstance(strings, Sequence):
        raise InputError(f"stop_strings must be a list of texts, got {type(strings).__name__}")
    if len(strings) > STOP_STRINGS:
        raise InputError(f"{len(strings)} stop_strings are too many; give at most {STOP_STRINGS}")
    for text in strings:
        if not isinstance(text, str) or not 1 <= len(text) <= STOP_LENGTH:
            raise InputError(
                f"a stop string is a text of 1 to {STOP_LENGTH} characters, not {str(text)[:40]!r}"
            )
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise InputError(f"stop string {text[:40]!r} is no Unicode text; no answer ever holds it")
    return tuple(strings)
