"""Results and tokens as the native face gives them."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from crucible.engine.events import Result, Token
from crucible.engine.request import Checked
from crucible.service.sse import event
from crucible.service.tally import Counted


@dataclass(frozen=True)
class Reply:
    """What every reply to one request says beside its result."""

    id: str
    model: str
    fingerprint: str
    request: Checked
    seed: int | None
    prompt_ids: bool

    def whole(self, result: Result) -> dict[str, Any]:
        """The object of a non-streaming reply, and of a stream's last event."""
        return {
            "id": self.id,
            "model": self.model,
            "fingerprint": self.fingerprint,
            "tokens": result.tokens,
            "text": result.text,
            "finish_reason": result.finish_reason,
            "stopped_by": result.stopped_by,
            "seed": self.seed,
            "random_state": result.random_state,
            "usage": {
                "prompt_tokens": len(result.prompt_tokens),
                "completion_tokens": len(result.tokens),
                "cached_rows": result.cached_rows,
            },
            "prompt_ids": result.prompt_tokens if self.prompt_ids else None,
            "logprobs": result.logprobs,
            "logits_digests": result.logits_digests,
            "k_digest": result.k_digest,
            "v_digest": result.v_digest,
            "timings": result.timings,
        }

    def part(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """The object of a stream's event: `index` of its first token, then lists to append."""
        made: dict[str, Any] = {
            "index": tokens[0].index,
            "tokens": [one.token for one in tokens],
            "text": "".join(one.text for one in tokens),
        }
        if self.request.digests:
            made["logits_digests"] = [one.logits_digest for one in tokens]
        if self.request.logprobs is not None:
            made["logprobs"] = [one.logprobs for one in tokens]
        return made

    async def events(self, stream: Counted) -> AsyncGenerator[bytes, None]:
        """`tokens` events, all that is ready in one, then the `end` event."""
        async for batch in stream:
            result = batch[-1] if isinstance(batch[-1], Result) else None
            tokens = batch if result is None else batch[:-1]
            if tokens:
                yield event(self.part(tokens), "tokens")
            if result is not None:
                yield event(self.whole(result), "end")
