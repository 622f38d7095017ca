"""Messages of a chat as the model's own template takes them."""

import re
from typing import Any

import fastapi

from crucible.errors import UnsupportedError
from crucible.model.card import Card
from crucible.service.admit import apart
from crucible.service.failure import Refusal
from crucible.service.openai.errors import naming
from crucible.service.openai.schemas import ChatBody, Message, Part
from crucible.service.openai.unsupported import refuse_unsupported

MESSAGES = 4096
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # spells no control token


async def encode_messages(request: fastapi.Request, card: Card, body: ChatBody) -> list[int]:
    """Token ids of the prompt; Refusal 400 for content that is no text, and for what the template refuses.

    A developer message is a system message to a template that does not know the newer name.
    """
    if not card.chat_template:
        message = f"model {body.model!r} has no chat template; send its prompt to /v1/completions"
        raise Refusal(400, message, "messages", "no_chat_template")
    count = len(body.messages)
    if not 1 <= count <= MESSAGES:
        message = f"messages holds {count}; give 1 to {MESSAGES}"
        raise Refusal(400, message, "messages", "invalid_value")
    developer = "developer" if "developer" in card.chat_template else "system"

    def work() -> list[int]:
        plain = [_plain(one, f"messages.{at}.", developer) for at, one in enumerate(body.messages)]
        return card.encode_chat(plain, fit=True)

    try:
        with naming("messages"):
            return await apart(request, work)
    except UnsupportedError as error:
        raise Refusal(400, str(error), "messages", "unsupported") from None


def _plain(message: Message, where: str, developer: str) -> dict[str, str]:
    refuse_unsupported(message, where)
    role = developer if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": _text(message, where + "content")}
    for name in ("name", "tool_call_id"):
        value = getattr(message, name)
        if value is not None and not _NAME.fullmatch(value):
            sentence = f"{where}{name} {value[:40]!r} must be 1 to 64 letters, digits, - and _"
            raise Refusal(400, sentence, where + name, "invalid_value")
        if value is not None:
            plain[name] = value
    return plain


def _text(message: Message, where: str) -> str:
    if message.content is None:
        raise Refusal(400, f"{where} is missing; give a text", where, "invalid_value")
    if isinstance(message.content, str):
        return message.content
    return "\n".join(_part(part, f"{where}.{at}") for at, part in enumerate(message.content))


def _part(part: Part, where: str) -> str:
    if part.type != "text":
        message = f"{where} has type {part.type[:40]!r}, which is not supported; send text"
        raise Refusal(400, message, where, "unsupported_content")
    if part.text is None:
        raise Refusal(400, f"{where}.text is missing; give it", f"{where}.text", "invalid_value")
    if part.model_extra:
        name = f"{where}.{min(part.model_extra)[:40]}"
        raise Refusal(400, f"{name} is not a field of a text part; leave it out", name, "invalid_value")
    return part.text
