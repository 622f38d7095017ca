"""What the HTTP process and the engine's process say to each other: msgpack, tagged structs in a list."""

import functools
from collections.abc import Hashable, Sequence

import msgspec
from msgspec import Struct

from crucible.engine.events import EngineStopped, QueueFull, RequestError, Result, TemperatureTooLow, Token
from crucible.engine.request import Checked
from crucible.engine.scheduler import Limits
from crucible.engine.stats import Stats
from crucible.errors import CrucibleError, InputError, UnavailableError, UnsupportedError
from crucible.sampling.params import SamplingParams

# Errors that cross the channel by name, special ones before what they are a case of.
_KINDS = (
    *(QueueFull, EngineStopped, TemperatureTooLow, RequestError),
    *(InputError, UnsupportedError, UnavailableError),
)
ERRORS: dict[str, type[CrucibleError]] = {kind.__name__: kind for kind in _KINDS}
_params = functools.lru_cache(SamplingParams)  # those of a burst are mostly equal


class Message(Struct, array_like=True, tag=True, frozen=True):
    """Base of all messages: an array that begins with the type's name."""


class Load(Message):
    """To the engine, first: which model on which device, how much it may use, which attention variant."""

    model: str
    device: str
    mode: str
    limits: Limits
    share_prefixes: bool = True
    attention: str | None = None


class Asked(Struct, array_like=True, frozen=True):
    """A checked request under the caller's key."""

    key: int
    prompt: list[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    sampler: str
    max_tokens: int
    stop_tokens: frozenset[int]
    stop_strings: tuple[str, ...]
    logprobs: int | None
    digests: bool
    kv_digests: bool

    @classmethod
    def of(cls, key: int, request: Checked) -> "Asked":
        """The request as it travels; its temperature is a float32, which a float holds as it is."""
        p = request.params
        sampling = (float(p.temperature), p.top_k, p.top_p, p.seed, p.sampler)
        ends = (request.max_tokens, request.stop_tokens, request.stop_strings)
        wanted = (request.logprobs, request.digests, request.kv_digests)
        return cls(key, request.prompt, *sampling, *ends, *wanted)

    def checked(self) -> Checked:
        """The request as it was."""
        return Checked(
            self.prompt,
            _params(self.temperature, self.top_k, self.top_p, self.seed, self.sampler),
            self.max_tokens,
            self.stop_tokens,
            self.stop_strings,
            self.logprobs,
            self.digests,
            self.kv_digests,
        )


class Submit(Message):
    """To the engine: queue all of these or none."""

    id: int
    requests: list[Asked]


class Cancel(Message):
    """To the engine: end these at the next step boundary; a key that has ended is passed over."""

    keys: list[int]


class StatsRequest(Message):
    """To the engine: its counters, and the last steps one by one if `timeline`."""

    id: int
    timeline: bool = False


class Shutdown(Message):
    """To the engine: take nothing more, let what runs end for `drain` seconds, cancel the rest, end."""

    drain: float = 0.0


class Loading(Message):
    """From the engine: tensors packed so far."""

    done: int
    total: int


class Ready(Message):
    """From the engine: it takes requests."""

    device: str
    limits: Limits
    versions: dict[str, str]
    load_seconds: float


class Accepted(Message):
    """From the engine: a Submit's requests are queued."""

    id: int


class Refused(Message):
    """From the engine: nothing of a Submit (or StatsRequest) was kept, and why."""

    id: int
    kind: str
    why: str


class StatsReply(Message):
    """From the engine: its counters."""

    id: int
    stats: Stats


class Ended(Struct, array_like=True, frozen=True):
    """A request's end: its result, or the kind and the sentence of its error."""

    key: int
    result: Result | None = None
    kind: str = ""
    why: str = ""


class Events(Message):
    """From the engine: all that one step brought, `keys[i]` having got `tokens[i]`, then what ended."""

    keys: list[int]
    tokens: list[Token]
    ended: list[Ended]


class Stopped(Message):
    """From the engine, last: it ended because it was told to, holding `pages_used` pages."""

    pages_used: int


class Fatal(Message):
    """From the engine, last: why it cannot load, or can run no more."""

    kind: str
    why: str


ToEngine = Load | Submit | Cancel | StatsRequest | Shutdown
FromEngine = Loading | Ready | Accepted | Refused | StatsReply | Events | Stopped | Fatal

# A frame holds the messages that came together: each frame costs both sides a call and a wake-up.
encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(list[ToEngine]).decode
decode_from_engine = msgspec.msgpack.Decoder(list[FromEngine]).decode


def events(news: Sequence[tuple[Hashable, Token | Result | Exception]]) -> Events:
    """One message of all events of a step; a request has one token a step at most, and ends after it."""
    keys, tokens, ended = [], [], []
    for key, event in news:
        if type(event) is Token:
            keys.append(key)
            tokens.append(event)
        elif isinstance(event, Result):
            ended.append(Ended(key, event))
        else:
            ended.append(Ended(key, None, *spelled(event)))
    return Events(keys, tokens, ended)


def spelled(error: BaseException) -> tuple[str, str]:
    """(kind, sentence) of an error; one that is none of Crucible's is told with its type."""
    kind = next((name for name, known in ERRORS.items() if isinstance(error, known)), "")
    return kind, str(error) if isinstance(error, CrucibleError) else f"{type(error).__name__}: {error}"


def error(kind: str, why: str) -> CrucibleError:
    """The error that `spelled` told."""
    return ERRORS.get(kind, CrucibleError)(why)
