"""Text to token ids and back: byte-level BPE from GGUF or tokenizer.json, and a byte tokenizer of our own."""

import codecs
import re
from collections.abc import Iterable, Mapping
from typing import Protocol

from crucible.errors import InputError
from crucible.model.shortest import Shortest


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer; ids are ints below `vocab`."""

    vocab: int
    controls: Mapping[str, int]  # spelling and id of the control tokens

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; control tokens written out in it are recognised."""

    def encode_letters(self, text: str) -> list[int]:
        """Token ids of `text` as a part of a prompt; control tokens written out in it are letters."""

    def at_least(self, text: str) -> int:
        """The fewest tokens that `text` can have, told at once; 0 where nothing is known."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token adds to the text; empty for a control token."""

    def name(self, token: int) -> str:
        """How the vocabulary spells a token, for displays."""


def decode(tokenizer: Tokenizer, tokens: Iterable[int]) -> str:
    """Text of `tokens`; bytes that are not UTF-8 become U+FFFD; equals the stream's pieces joined."""
    return b"".join(tokenizer.token_bytes(t) for t in tokens).decode("utf-8", "replace")


class StreamDecoder:
    """Text pieces as tokens arrive; never emits half a UTF-8 character."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that `token` completes; empty while a character is unfinished."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def finish(self) -> str:
        """What is left at the end: U+FFFD for an unfinished character, else nothing."""
        return self._decoder.decode(b"", final=True)


class ByteTokenizer:
    """Ids 0..255 are bytes, then the control tokens, then made-up words so that every id reads as text.

    Encoding uses bytes and control tokens only; a word's text encodes to its bytes.
    """

    CONTROL = ("<|begin|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
    _CONTROLS = re.compile("(" + "|".join(map(re.escape, CONTROL)) + ")")
    _SYLLABLES = tuple(c + v for c in "bdfgklmnprstvz" for v in "aeiou")

    def __init__(self, vocab: int):
        first = 256 + len(self.CONTROL)
        if vocab < first:
            raise InputError(f"a byte-level vocabulary needs {first} ids or more, got {vocab}")
        self.vocab = vocab
        self._first_word = first

    @property
    def controls(self) -> dict[str, int]:
        """Spelling and id of the control tokens."""
        return {name: self.control_id(name) for name in self.CONTROL}

    @classmethod
    def control_id(cls, name: str) -> int:
        """Id of a control token such as "<|end|>"."""
        return 256 + cls.CONTROL.index(name)

    def encode(self, text: str) -> list[int]:
        """Bytes of the UTF-8 text; control tokens written out become their ids."""
        controls, ids = self.controls, []
        for part in self._CONTROLS.split(text):
            if part in controls:
                ids.append(controls[part])
            else:
                ids += part.encode("utf-8", "surrogatepass")
        return ids

    def encode_letters(self, text: str) -> list[int]:
        """Bytes of the UTF-8 text."""
        return list(text.encode("utf-8", "surrogatepass"))

    def at_least(self, text: str) -> int:
        """As Tokenizer.at_least."""
        return Shortest(max(map(len, self.CONTROL))).tokens(text)

    def _word(self, index: int) -> str:
        count = len(self._SYLLABLES)
        places = [index % count, index // count % count]
        if index >= count**2:
            places.append(index // count**2 - 1)
        return " " + "".join(self._SYLLABLES[place] for place in places)

    def token_bytes(self, token: int) -> bytes:
        """One byte, nothing for a control token, or the made-up word."""
        if token < 256:
            return bytes([token])
        return b"" if token < self._first_word else self._word(token - self._first_word).encode()

    def name(self, token: int) -> str:
        """A readable spelling."""
        if 256 <= token < self._first_word:
            return self.CONTROL[token - 256]
        return self.token_bytes(token).decode("utf-8", "backslashreplace")
