"""Fields of OpenAI's API that this service lacks: taken at the value that changes nothing, else refused."""

import json
from typing import Any

from crucible.files import brief
from crucible.service.body import Body
from crucible.service.failure import Refusal

# Field -> values that change nothing, the plainest first; null always is one.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "suffix": ("",),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "tool_calls": ([],),
    "annotations": ([],),
    "refusal": (),
    "audio": (),
    "prediction": (),
    "moderation": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory",),
}


def refuse_unsupported(body: Body, where: str = "") -> None:
    """Refusal 400 naming the first field of `body` whose value would have to change the reply."""
    given = vars(body)
    for name, neutral in NEUTRAL.items():
        value = given.get(name)
        if value is None or any(value == n and type(value) in _types(n) for n in neutral):
            continue
        instead = f" or send {json.dumps(neutral[0])}" if neutral else ""
        raise Refusal(
            400,
            f"{where}{name} {brief(value, 60)} is not supported here; leave it out{instead}",
            f"{where}{name}",
            "unsupported_parameter",
        )


def _types(neutral: Any) -> tuple[type, ...]:
    return (int, float) if type(neutral) is int else (type(neutral),)
