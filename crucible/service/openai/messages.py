"""Messages of a chat to the text of its prompt, as the model's own template has it."""

from typing import Any

from crucible.errors import UnsupportedError
from crucible.model.card import Card
from crucible.service.failure import Refusal
from crucible.service.openai.errors import naming
from crucible.service.openai.schemas import ChatBody, Message
from crucible.service.openai.unsupported import refuse_unsupported


def rendered(card: Card, body: ChatBody) -> str:
    """The prompt; Refusal 400 for content that is no text, and for roles that the template refuses.

    A developer message is a system message to a template that does not know the newer name.
    """
    if not card.chat_template:
        message = f"model {body.model!r} has no chat template; send its prompt to /v1/completions"
        raise Refusal(400, message, "messages", "no_chat_template")
    if not body.messages:
        raise Refusal(400, "messages is empty; give at least one", "messages", "invalid_value")
    developer = "developer" if "developer" in card.chat_template else "system"
    plain = [_plain(one, f"messages.{at}.", developer) for at, one in enumerate(body.messages)]
    with naming("messages"):
        try:
            return card.render(plain)
        except UnsupportedError as error:
            raise Refusal(400, str(error), "messages", "unsupported") from None


def _plain(message: Message, where: str, developer: str) -> dict[str, str]:
    refuse_unsupported(message, where)
    role = developer if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": _text(message, where + "content")}
    for name in ("name", "tool_call_id"):
        if getattr(message, name) is not None:
            plain[name] = getattr(message, name)
    return plain


def _text(message: Message, where: str) -> str:
    if message.content is None:
        raise Refusal(400, f"{where} is missing; give a text", where, "invalid_value")
    if isinstance(message.content, str):
        return message.content
    texts = []
    for at, part in enumerate(message.content):
        if part.type != "text":
            shown = f"{where}.{at} has type {part.type[:40]!r}, which is not supported"
            raise Refusal(400, f"{shown}; send text", f"{where}.{at}", "unsupported_content")
        if part.text is None or part.model_extra:
            named = "text" if part.text is None else min(part.model_extra)
            why = (
                "is missing; give it" if part.text is None else "is not a field of a text part; leave it out"
            )
            raise Refusal(400, f"{where}.{at}.{named} {why}", f"{where}.{at}.{named}", "invalid_value")
        texts.append(part.text)
    return "\n".join(texts)
