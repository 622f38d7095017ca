"""How few tokens a text can have, told from its bytes: a prompt far beyond a context needs no encoding."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# Steps that cut a text into words and take nothing away from it.
_KEEPS = {"Sequence", "Split", "ByteLevel", "Digits"}


@dataclass(frozen=True)
class Shortest:
    """`longest` bytes of text that one token stands for at most, 0 where that is unknown; `lost` bytes give
    no token at all."""

    longest: int
    lost: bytes = b""

    def tokens(self, text: str) -> int:
        """The fewest tokens that `text` can have; 0 where nothing is known."""
        if not self.longest:
            return 0
        count = len(text.encode("utf-8", "surrogatepass").translate(None, self.lost))
        return -(-count // self.longest)


def shortest(inner: Any, spelled: Iterable[bytes], controls: Iterable[str]) -> Shortest:
    """Of a byte-level `tokenizers` tokenizer whose tokens have the bytes `spelled`.

    Nothing is known where it rewrites a text, takes white space away or ends it early.
    """
    added = inner.get_added_tokens_decoder().values()
    strips = any(token.lstrip or token.rstrip for token in added)
    if inner.normalizer is not None or inner.truncation is not None or strips or not _keeps(inner):
        return Shortest(0)
    words = [*spelled, *(name.encode() for name in controls)]
    lost = {bytes([byte]) for byte in range(256)}.difference(words)
    return Shortest(max(map(len, words)), b"".join(sorted(lost)))


def _keeps(inner: Any) -> bool:
    if inner.pre_tokenizer is None:
        return True
    steps = [json.loads(inner.pre_tokenizer.__getstate__())]
    for step in steps:
        steps += step.get("pretokenizers", ())
    return all(step["type"] in _KEEPS and step.get("behavior") != "Removed" for step in steps)
