"""An answer as a whole message, or as the events in which it grows."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from crucible.engine.events import Result, Token
from crucible.engine.request import Checked
from crucible.service.failure import Refusal
from crucible.service.sse import event
from crucible.service.tally import Counted


@dataclass(frozen=True)
class Reply:
    """What every reply to one request says; seed, fingerprint and logits_digests are this service's own."""

    id: str
    model: str
    fingerprint: str
    seed: int | None
    request: Checked

    def whole(self, result: Result) -> dict[str, Any]:
        """The message of a finished answer: one block of text, be it empty."""
        return {
            **self._message([{"type": "text", "text": result.text}], len(result.tokens)),
            **self._end(result),
            **self._digests(result),
        }

    async def events(self, stream: Counted) -> AsyncGenerator[bytes, None]:
        """Server-sent events in the order that Anthropic's clients expect; what is ready together goes out
        together, and the first three as soon as the request is admitted."""
        yield b"".join(
            (
                _event("message_start", message=self._message([], 0)),
                _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
                _event("ping"),
            )
        )
        async for batch in stream:
            text = "".join(one.text for one in batch if isinstance(one, Token))
            grown = b""
            if text:
                grown = _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
            if isinstance(batch[-1], Result):
                yield grown + self._closing(batch[-1])
            elif grown:
                yield grown

    def _closing(self, result: Result) -> bytes:
        end = {"delta": self._end(result), "usage": self._usage(len(result.tokens)), **self._digests(result)}
        return b"".join(
            (_event("content_block_stop", index=0), _event("message_delta", **end), _event("message_stop"))
        )

    def _message(self, content: list[dict[str, Any]], output_tokens: int) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(output_tokens),
            "seed": self.seed,
            "fingerprint": self.fingerprint,
        }

    def _usage(self, output_tokens: int) -> dict[str, int]:
        # Rows that the prefix cache saved are input as well: what a client asked for, and counts by itself.
        return {
            "input_tokens": len(self.request.prompt),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": output_tokens,
        }

    def _end(self, result: Result) -> dict[str, str | None]:
        match result.finish_reason, result.stopped_by:
            case "length", _:
                return {"stop_reason": "max_tokens", "stop_sequence": None}
            case "stop", str(sequence):
                return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
            case "stop", _:
                return {"stop_reason": "end_turn", "stop_sequence": None}
        # Half an answer is not passed off as one.
        raise Refusal(503, "the service cancelled the request; send it again", code="cancelled")

    def _digests(self, result: Result) -> dict[str, list[str] | None]:
        return {"logits_digests": result.logits_digests} if self.request.digests else {}


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)
