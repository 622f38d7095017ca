"""Bodies of this face's requests, field by field; `unsupported` holds what only has a neutral value."""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from crucible.service.body import Body


class StreamOptions(Body):
    """Of a streamed reply: a last chunk with the usage; obfuscation is never added."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Common(Body):
    """Fields that completions and chat completions share; null is the same as leaving a field out.

    top_k, sampler, ignore_eos, stop_token_ids, digests and return_token_ids are this service's own.
    """

    model: str
    temperature: float | None = Field(None, description="0 is greedy; 1 without it")
    top_p: float | None = Field(None, description="greater than 0, at most 1; 1 without it")
    n: int | None = Field(None, description="choices a prompt; choice i uses seed + i")
    seed: int | None = Field(None, description="64 bits; without it one is drawn, and reported as `seed`")
    stop: str | list[str] | None = Field(None, description="at most 4 texts of 1 to 256 characters")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    top_k: int | None = Field(None, description="the k likeliest tokens; 0, all of them, without it")
    sampler: str | None = Field(None, description="inverse-cdf (without it) or gumbel-id")
    ignore_eos: bool | None = Field(None, description="go on after the model's own end tokens")
    stop_token_ids: list[int] | None = Field(None, description="token ids that end the text as well")
    digests: bool | None = Field(None, description="report the digest of each step's logits")
    return_token_ids: bool | None = Field(None, description="report token ids of prompt and choice")
    user: str | None = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    logit_bias: Any = None


class CompletionBody(Common):
    """POST /v1/completions: a prompt is text or token ids; a list of prompts is answered prompt by prompt."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = Field(None, description="16 without it")
    logprobs: int | None = Field(None, description="0 to 20 likeliest tokens beside the chosen one")
    echo: bool | None = None
    best_of: int | None = None
    suffix: Any = None


class Part(Body):
    """A part of a message's content; only text is supported."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None


class Message(Body):
    """One message; its content is text or a list of text parts, which are joined by line feeds."""

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
    """POST /v1/chat/completions: messages, oldest first."""

    messages: list[Message]
    max_completion_tokens: int | None = Field(None, description="all that fit without it")
    max_tokens: int | None = Field(None, description="the older name of max_completion_tokens")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, description="0 to 20; needs logprobs")
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
