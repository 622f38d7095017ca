"""Bodies of this face's requests, field by field; what only has a neutral value is listed in `unsupported`.

Types are checked here and are a 422 where they are wrong; ranges are told here and checked by the engine.
"""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from crucible.sampling.params import SAMPLERS, SEED_LIMIT
from crucible.service.body import Body
from crucible.service.openai.unsupported import NEUTRAL


def _told(description: str, **schema: Any) -> Any:
    """An optional field whose JSON schema says more than is checked here."""
    return Field(None, description=description, json_schema_extra=schema)


def _with_neutral_values(schema: dict[str, Any]) -> None:
    for name, field in schema["properties"].items():
        if name in NEUTRAL:
            field["enum"] = [*NEUTRAL[name], None]


class StreamOptions(Body):
    """Of a streamed reply: a last chunk with the usage; obfuscation is never added."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Common(Body):
    """Fields that completions and chat completions share; null is the same as leaving a field out.

    top_k, sampler, ignore_eos, stop_token_ids, digests and return_token_ids are this service's own.
    """

    model_config = ConfigDict(json_schema_extra=_with_neutral_values)

    model: str
    temperature: float | None = _told("0 is greedy; 1 without it", minimum=0)
    top_p: float | None = _told("1 without it", exclusiveMinimum=0, maximum=1)
    n: int | None = _told("choices a prompt; choice i uses seed + i modulo 2^64", minimum=1, maximum=128)
    seed: int | None = _told(
        "without it one is drawn, and reported as `seed`", minimum=0, maximum=SEED_LIMIT - 1
    )
    stop: str | list[str] | None = _told(
        "1 to 4 texts of 1 to 256 characters, which end the text", maxItems=4, minLength=1, maxLength=256
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    top_k: int | None = _told("the k likeliest tokens; 0, all of them, without it", minimum=0)
    sampler: str | None = _told("inverse-cdf without it", enum=[*SAMPLERS, None])
    ignore_eos: bool | None = Field(None, description="go on after the model's own end tokens")
    stop_token_ids: list[int] | None = Field(None, description="token ids that end the text as well")
    digests: bool | None = Field(None, description="report the digest of each step's logits")
    return_token_ids: bool | None = Field(None, description="report token ids of prompt and choice")
    user: str | None = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    logit_bias: Any = None


class CompletionBody(Common):
    """A prompt is text or token ids; a list of prompts is answered prompt by prompt, n choices each."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = _told("16 without it", minimum=1)
    logprobs: int | None = _told("likeliest tokens beside the chosen one", minimum=0, maximum=20)
    echo: bool | None = None
    best_of: int | None = Field(None, description="n, if it is given at all")
    suffix: Any = None


class Part(Body):
    """A part of a message's content; only text is supported."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None


class Message(Body):
    """One message; its content is text or a list of text parts, which are joined by line feeds."""

    model_config = ConfigDict(json_schema_extra=_with_neutral_values)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    refusal: Any = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None
    tool_calls: Any = None


class ChatBody(Common):
    """Messages, oldest first, to be answered."""

    messages: list[Message] = Field(json_schema_extra={"minItems": 1, "maxItems": 4096})
    max_completion_tokens: int | None = _told("all that fit without it", minimum=1)
    max_tokens: int | None = _told("the older name of max_completion_tokens", minimum=1)
    logprobs: bool | None = None
    top_logprobs: int | None = _told("needs logprobs", minimum=0, maximum=20)
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    store: Any = None
    service_tier: Any = None
    response_format: Any = None
    modalities: Any = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    prediction: Any = None
    moderation: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
