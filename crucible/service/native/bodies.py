"""What the native face takes and gives, as its OpenAPI document shows it."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from crucible.engine.request import STOP_LENGTH, STOP_STRINGS, TOP_LOGPROBS, Request
from crucible.sampling.params import SEED_LIMIT
from crucible.service.body import Body

_MOST_TEXT = 1 << 22  # characters: as many as a body of the default size could hold
_MOST_TOKENS = 1 << 20
_LARGEST = (1 << 31) - 1

Text = Annotated[str, Field(max_length=_MOST_TEXT)]
TokenId = Annotated[int, Field(ge=0, le=_LARGEST)]
Ids = Annotated[list[TokenId], Field(max_length=_MOST_TOKENS)]


class Message(Body):
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: Text


Messages = Annotated[list[Message], Field(min_length=1, max_length=4096)]


def _one_of(*names: str) -> dict:
    """JSON schema of: one of the fields is given, the others are absent or null."""
    null = {"type": "null"}
    others = lambda name: {other: null for other in names if other != name}  # noqa: E731
    return {
        "oneOf": [{"required": [n], "properties": {n: {"not": null}, **others(n)}} for n in names],
    }


_ONE_PROMPT, _ONE_TEXT = _one_of("prompt", "messages"), _one_of("text", "messages")


class Generate(Body, json_schema_extra=_ONE_PROMPT):
    """A prompt and how to continue it: `prompt` as text or token ids, or `messages` for the chat template."""

    prompt: Text | Ids | None = Field(None, description="text, or token ids as the model takes them")
    messages: Messages | None = Field(None, description="in place of prompt, for the model's chat template")
    max_tokens: int = Field(128, ge=1, le=_LARGEST)
    temperature: float = Field(0.0, ge=0, le=3e38, description="0 takes the likeliest token")
    top_k: int = Field(0, ge=0, le=_LARGEST, description="0 keeps the whole vocabulary")
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = Field(None, ge=0, le=SEED_LIMIT - 1, description="drawn and reported where null")
    sampler: Literal["inverse-cdf", "gumbel-id"] = "inverse-cdf"
    # A default that can change would be copied for every request.
    stop: list[TokenId] = Field((), max_length=1024, description="token ids that end the text")
    stop_strings: list[Annotated[str, Field(min_length=1, max_length=STOP_LENGTH)]] = Field(
        (), max_length=STOP_STRINGS, description="texts that end the text before themselves"
    )
    ignore_eos: bool = Field(False, description="go on after the model's own end tokens")
    logprobs: int | None = Field(None, ge=0, le=TOP_LOGPROBS, description="likeliest tokens of each step")
    digests: bool = Field(False, description="of each step's logits")
    kv_digests: bool = Field(False, description="of the final K and V")
    prompt_ids: bool = Field(False, description="give the prompt's token ids back")
    stream: bool = Field(False, description="server-sent events in place of one object")

    def request(self, prompt: str | list[int]) -> Request:
        """The engine's request for a prompt."""
        return Request(
            prompt=prompt,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            sampler=self.sampler,
            stop=tuple(self.stop),
            stop_strings=tuple(self.stop_strings),
            ignore_eos=self.ignore_eos,
            logprobs=self.logprobs,
            digests=self.digests,
            kv_digests=self.kv_digests,
        )


class Tokenize(Body, json_schema_extra=_ONE_TEXT):
    """A text, or messages for the chat template."""

    text: Text | None = None
    messages: Messages | None = None


class Detokenize(Body):
    """Token ids."""

    tokens: Ids


class Tokenized(BaseModel):
    """Token ids and their number."""

    tokens: list[int]
    count: int


class Detokenized(BaseModel):
    """The text of token ids; bytes that are not UTF-8 become U+FFFD."""

    text: str


class TopLogprob(BaseModel):
    """A token and the log of its probability."""

    token: int
    logprob: float | None


class Logprobs(BaseModel):
    """Of one step: the chosen token's, and the likeliest tokens."""

    chosen: float | None
    top: list[TopLogprob]


class RandomState(BaseModel):
    """All that decides the next draw; the seed is null where greedy uses none."""

    seed: int | None
    next_draw: int


class Usage(BaseModel):
    """Tokens in and out; `cached_rows` prompt rows were not computed again."""

    prompt_tokens: int
    completion_tokens: int
    cached_rows: int


class Times(BaseModel):
    """Seconds from the engine's taking the request to its first step, its first token and its end."""

    queued: float
    first_token: float | None
    total: float


class Generated(BaseModel):
    """A finished generation; all but `id`, `usage.cached_rows` and `timings` depends on the request alone."""

    id: str
    model: str
    fingerprint: str
    tokens: list[int]
    text: str
    finish_reason: Literal["stop", "length", "cancelled"]
    stopped_by: int | str | None
    seed: int | None
    random_state: RandomState
    usage: Usage
    prompt_ids: list[int] | None
    logprobs: list[Logprobs] | None
    logits_digests: list[str] | None
    k_digest: str | None
    v_digest: str | None
    timings: Times | None


class Problem(BaseModel):
    """What was wrong: an HTTP status, a short name for programs, a sentence, and the field where one is."""

    status: int
    code: str | None
    message: str
    param: str | None


class Refused(BaseModel):
    """A request that got no result."""

    error: Problem
    request_id: str
