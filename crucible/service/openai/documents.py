"""What this face replies with, as its OpenAPI document shows it; fields beyond OpenAI's say so."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

_OWN = "this service's own: "


class Reply(BaseModel):
    """Base of the documents: what is not named here is not sent."""

    model_config = ConfigDict(extra="forbid")


class ModelCard(Reply):
    """The model of this service."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context: int = Field(description=_OWN + "positions of prompt and answer together")
    chat: bool = Field(description=_OWN + "whether it has a chat template")
    system_fingerprint: str = Field(description=_OWN + "that of its replies with the default sampler")


class ModelList(Reply):
    """All models of this service: one."""

    object: Literal["list"]
    data: list[ModelCard]


class CachedTokens(Reply):
    """Prompt tokens that were not computed again."""

    cached_tokens: int


class Usage(Reply):
    """Tokens of each prompt, once however many choices it has, and of all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Choice(Reply):
    """What choices of both kinds hold."""

    index: int
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] = Field([], description=_OWN + "with return_token_ids")
    prompt_token_ids: list[int] = Field([], description=_OWN + "with return_token_ids")
    logits_digests: list[str] = Field([], description=_OWN + "with digests, one a token")


class CompletionLogprobs(Reply):
    """One entry a token in each list."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Choice):
    """A continuation."""

    text: str
    logprobs: CompletionLogprobs | None


class TopLogprob(Reply):
    """A token, its bytes (null for a control token) and the log of its probability."""

    token: str
    bytes: list[int] | None
    logprob: float


class TokenLogprob(TopLogprob):
    """A generated token and the likeliest ones in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Reply):
    """One entry a token."""

    content: list[TokenLogprob]
    refusal: None


class AnswerMessage(Reply):
    """The assistant's message; it can be sent back as it is."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(Choice):
    """An answer."""

    message: AnswerMessage
    logprobs: ChatLogprobs | None


class Frame(Reply):
    """What replies of both kinds hold."""

    id: str
    created: int
    model: str
    system_fingerprint: str = Field(description="equal ones and equal seeds give equal tokens, anywhere")
    seed: int = Field(description=_OWN + "S; choice i of each prompt used S + i modulo 2^64")
    usage: Usage


class Completion(Frame):
    """Reply of /v1/completions."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ChatCompletion(Frame):
    """Reply of /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


_STREAM = (
    "with stream true: chunks of one choice each, the usage in a last one without a choice where "
    "stream_options.include_usage asks for it, then [DONE]; an error object ends a stream that failed"
)


def streamed(model: type[Reply], description: str) -> dict[int, dict[str, Any]]:
    """Responses of a route that answers whole or as a stream."""
    schema = {"type": "string", "description": _STREAM}
    content = {"text/event-stream": {"schema": schema}}
    return {200: {"model": model, "description": description, "content": content}}
