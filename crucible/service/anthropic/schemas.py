"""Bodies of this face's requests, field by field; `unsupported` holds what only has a neutral value."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from crucible.engine.request import STOP_LENGTH, STOP_STRINGS
from crucible.sampling.params import SEED_LIMIT
from crucible.service.body import Body

_LARGEST = (1 << 31) - 1
_MOST = 4096  # messages, and blocks of one


class CacheControl(Body):
    """Where a client would have its prompt cached; prefixes are shared without being asked for."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Block(Body):
    """A part of a content; only text is supported."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None
    cache_control: CacheControl | None = None
    citations: Any = None


Blocks = Annotated[list[Block], Field(max_length=_MOST)]


class Message(Body):
    """One turn, or a part of one: turns of one role that follow each other are one turn."""

    role: str = Field(description="user or assistant")
    content: str | Blocks


class Metadata(Body):
    """About the request, for nobody here."""

    user_id: str | None = None


class Prompt(Body):
    """What is asked; null is the same as leaving a field out. Counting tokens takes this and no more."""

    model: str
    messages: list[Message] = Field(max_length=_MOST)
    system: str | Blocks | None = None
    cache_control: CacheControl | None = None
    tools: Any = None
    tool_choice: Any = None
    thinking: Any = None
    output_config: Any = None
    output_format: Any = None
    context_management: Any = None
    mcp_servers: Any = None
    speed: Any = None


class MessagesBody(Prompt):
    """POST /v1/messages. seed, sampler, ignore_eos and digests are this service's own.

    temperature, top_p and top_k have the names and limits of version 2023-06-01 in every version; SDKs of
    newer ones send them by `extra_body`.
    """

    max_tokens: int = Field(ge=1, le=_LARGEST)
    temperature: float | None = Field(None, ge=0, le=1, description="0 is greedy; 1 without it")
    top_p: float | None = Field(None, gt=0, le=1, description="1 without it")
    top_k: int | None = Field(None, ge=0, le=_LARGEST, description="0, the whole vocabulary, without it")
    stop_sequences: list[Annotated[str, Field(min_length=1, max_length=STOP_LENGTH)]] | None = Field(
        None, max_length=STOP_STRINGS
    )
    stream: bool | None = None
    metadata: Metadata | None = None
    container: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    service_tier: Any = None
    user_profile_id: Any = None
    seed: int | None = Field(None, ge=0, le=SEED_LIMIT - 1, description="drawn and reported where null")
    sampler: Literal["inverse-cdf", "gumbel-id"] | None = Field(None, description="inverse-cdf without it")
    ignore_eos: bool | None = Field(None, description="go on after the model's own end tokens")
    digests: bool | None = Field(None, description="report the digest of each step's logits")


class TextBlock(BaseModel):
    """A part of an answer."""

    type: Literal["text"]
    text: str


class Usage(BaseModel):
    """Tokens in and out; caching is not charged here, so that all of the input is input_tokens."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class Answer(BaseModel):
    """The assistant's message. seed, fingerprint and logits_digests are this service's own."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence"]
    stop_sequence: str | None
    usage: Usage
    seed: int | None
    fingerprint: str
    logits_digests: list[str] | None = Field(None, description="only where digests were asked for")
