"""A body's system text and messages as the turns that a chat template takes."""

from dataclasses import dataclass

from crucible.model.card import Card
from crucible.service.anthropic.errors import naming
from crucible.service.anthropic.schemas import Block, Message, Prompt
from crucible.service.anthropic.unsupported import refuse_unsupported
from crucible.service.failure import Refusal


@dataclass(frozen=True)
class Conversation:
    """Turns (role, content), after a system turn if there is one; `continued` if the answer has begun."""

    turns: list[dict[str, str]]
    continued: bool

    def encode(self, card: Card, fit: bool = False) -> list[int]:
        """Token ids of the prompt; Refusal 400 where the model's template has no place for the turns."""
        with naming("messages"):
            return card.encode_chat(self.turns, self.continued, fit)


def conversation(card: Card, body: Prompt) -> Conversation:
    """The turns of a body, or Refusal 400.

    Texts of one turn are joined by line feeds, whether they came as blocks of a message or as messages of
    one role in a row. An empty system text is the same as none. If the last turn is the assistant's, the
    answer goes on from its end; where it is empty there is nothing to go on from.
    """
    if not card.chat_template:
        message = f"model {body.model!r} has no chat template; send its prompt to /v1/completions"
        raise Refusal(400, message, "messages", "no_chat_template")
    if not body.messages:
        raise Refusal(400, "at least one message is needed", "messages", "invalid_value")
    parts: list[tuple[str, list[str]]] = []
    last = len(body.messages) - 1
    for at, message in enumerate(body.messages):
        role, text = _role(message, at), _text(message.content, f"messages.{at}.content")
        if not text and not (at == last and role == "assistant"):
            sentence = "is empty; only a last message of the assistant may be"
            raise Refusal(400, sentence, f"messages.{at}.content", "invalid_value")
        if not parts or parts[-1][0] != role:
            parts.append((role, []))
        parts[-1][1].extend([text] if text else [])
    turns = [{"role": role, "content": "\n".join(texts)} for role, texts in parts]
    if turns[-1] == {"role": "assistant", "content": ""}:
        turns.pop()
    continued = turns[-1]["role"] == "assistant"
    if continued and turns[-1]["content"][-1].isspace():
        sentence = "ends with white space, with which the answer could not begin; take it off"
        raise Refusal(400, sentence, f"messages.{last}.content", "invalid_value")
    system = "" if body.system is None else _text(body.system, "system")
    if system:
        turns.insert(0, {"role": "system", "content": system})
    return Conversation(turns, continued)


def _role(message: Message, at: int) -> str:
    if message.role == "system":
        sentence = "'system' is not a role of a message here; send its text as the field system"
    elif message.role not in ("user", "assistant"):
        sentence = f"{message.role[:40]!r} must be 'user' or 'assistant'"
    elif at == 0 and message.role != "user":
        sentence = "the first message must be the user's"
    else:
        return message.role
    raise Refusal(400, sentence, f"messages.{at}.role", "invalid_value")


def _text(content: str | list[Block], where: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_block(block, f"{where}.{at}") for at, block in enumerate(content))


def _block(block: Block, where: str) -> str:
    if block.type != "text":
        sentence = f"a block of type {block.type[:40]!r} is not supported here; send text"
        raise Refusal(400, sentence, where, "unsupported_content")
    unknown = min(block.model_extra or {}, default=None)
    if unknown is not None:
        sentence = "is not a field of a text block; leave it out"
        raise Refusal(400, sentence, f"{where}.{unknown[:40]}", "unknown_field")
    if not block.text:
        sentence = "is missing; give it" if block.text is None else "is empty; leave the block out"
        raise Refusal(400, sentence, f"{where}.text", "invalid_value")
    refuse_unsupported(block, f"{where}.")
    return block.text
