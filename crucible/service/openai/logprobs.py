"""Log-probabilities of tokens in the two shapes of this face."""

import math
from collections.abc import Sequence

from crucible.engine.events import Logprobs
from crucible.model.tokenizer import StreamDecoder, Tokenizer

TOP = 20
_NEVER = -9999.0  # JSON has no -inf


def spelled(tokenizer: Tokenizer, token: int) -> tuple[str, list[int] | None]:
    """A token as text and its bytes; bytes that are no text read `bytes:\\xe4`, and a control token, which
    adds none, reads as the vocabulary spells it."""
    raw = tokenizer.token_bytes(token)
    if not raw:
        return tokenizer.name(token), None
    try:
        return raw.decode(), list(raw)
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), list(raw)


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[int], found: Sequence[Logprobs]) -> dict:
    """Of a chat choice: every generated token, the last one too where it ended the text."""
    content = []
    for token, step in zip(tokens, found, strict=True):
        top = [_entry(tokenizer, one.token, one.logprob) for one in step.top]
        content.append({**_entry(tokenizer, token, step.chosen), "top_logprobs": top})
    return {"content": content, "refusal": None}


class LegacyLogprobs:
    """Of a completion's choice, which may come in parts.

    text_offset: the character of the choice's text at which a token begins (for a token inside of a
    character, that character); what a stop string cuts off keeps the place that it would have had.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer, self._decoder = tokenizer, StreamDecoder(tokenizer)
        self._offset = 0

    def part(self, tokens: Sequence[int], found: Sequence[Logprobs]) -> dict:
        """The next tokens; top_logprobs hold the likeliest tokens and the chosen one."""
        names, offsets, top = [], [], []
        for token, step in zip(tokens, found, strict=True):
            name = spelled(self._tokenizer, token)[0]
            names.append(name)
            offsets.append(self._offset)
            self._offset += len(self._decoder.push(token))
            likeliest: dict[str, float] = {}
            for one in step.top:
                likeliest.setdefault(spelled(self._tokenizer, one.token)[0], _finite(one.logprob))
            likeliest.setdefault(name, _finite(step.chosen))
            top.append(likeliest)
        return {
            "tokens": names,
            "token_logprobs": [_finite(step.chosen) for step in found],
            "top_logprobs": top,
            "text_offset": offsets,
        }


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict:
    text, raw = spelled(tokenizer, token)
    return {"token": text, "bytes": raw, "logprob": _finite(logprob)}


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _NEVER
