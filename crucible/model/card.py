"""A model without its weights: what turns text into requests, and what names the bits that come back."""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crucible.errors import ContextError, InputError
from crucible.model.checkpoint import Checkpoint
from crucible.model.config import ModelConfig
from crucible.model.fetch import SOURCES, models_dir, sha256
from crucible.model.tokenizer import Tokenizer, decode
from crucible.model.transformer import listed_ids
from crucible.numerics.contract import CONTRACT_VERSION


@dataclass(eq=False, kw_only=True)
class Card:
    """Name, config, tokenizer and chat template of a checkpoint, and the arithmetic (`mode`) it runs in.

    `foreign` is the digest of a user's kernel that takes part, whose bits the contract does not fix.
    """

    name: str
    config: ModelConfig
    mode: str
    load_tokenizer: Callable[[], Tokenizer] = field(repr=False)
    eos_ids: tuple[int, ...] = ()
    chat_template: str | None = field(default=None, repr=False)
    source: Path | None = None
    bos: str = ""
    eos: str = ""
    foreign: str = ""

    @classmethod
    def of(cls, checkpoint: Checkpoint, mode: str) -> "Card":
        """The card of an opened checkpoint; no tensor is read."""
        return cls(mode=mode, **described(checkpoint))

    def file_digests(self) -> dict[str, str]:
        """{file name: sha256} of the files that make the model: GGUF, or a folder's weights and JSON files.

        Empty for a synthetic model, which has none.
        """
        if self.source is None:
            return {}
        for known in SOURCES.values():  # checked when it was opened
            if self.source == models_dir() / known.filename:
                return {known.filename: known.sha256}
        if self.source.is_file():
            return {self.source.name: sha256(self.source)}
        files = (p for p in self.source.iterdir() if p.suffix in (".safetensors", ".json", ".jinja"))
        return {path.name: sha256(path) for path in sorted(files)}

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer, loaded when first needed: token ids alone do without."""
        return self.load_tokenizer()

    def encode(self, text: str, fit: bool = False) -> list[int]:
        """Token ids of `text`; InputError for text that is not Unicode (a lone surrogate).

        With `fit`, ContextError without encoding where its length alone shows that the context is too short.
        """
        if not isinstance(text, str):
            raise InputError(f"the prompt must be text, got {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the prompt is not valid Unicode text at character {error.start}") from None
        if fit:
            self.refuse_longer(text)
        return self.tokenizer.encode(text)

    def refuse_longer(self, prompt: str) -> None:
        """ContextError for a text that has more tokens than the context, as far as its length shows that."""
        least, context = self.tokenizer.at_least(prompt), self.config.context
        if least > context:
            raise ContextError(
                f"the prompt alone has at least {least} tokens, above the context of {context}; shorten it"
            )

    def chat(self, prompt: str, system: str | None = None) -> list[int]:
        """`prompt` as a user message, after a system message if any, encoded as `encode_chat` does."""
        messages = [{"role": "system", "content": system}] if system is not None else []
        return self.encode_chat([*messages, {"role": "user", "content": prompt}])

    def render(self, messages: Sequence[Mapping[str, str]], continued: bool = False) -> str:
        """Prompt text of messages (role, content each), as crucible.model.chat.render: for reading, as
        encode_chat keeps the messages apart from the template and this text does not."""
        from crucible.model.chat import render

        return render(self.chat_template, messages, self.bos, self.eos, continued)

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], continued: bool = False, fit: bool = False
    ) -> list[int]:
        """Token ids of the prompt of messages, as crucible.model.chat.encode: what a message says never
        becomes a control token. UnsupportedError without a chat template; `fit` as in `encode`."""
        from crucible.model.chat import encode

        look = self.refuse_longer if fit else None
        return encode(self.tokenizer, self.chat_template, messages, self.bos, self.eos, continued, look)

    def decode(self, tokens) -> str:
        """Text of token ids; InputError for one outside the vocabulary."""
        return decode(self.tokenizer, listed_ids(tokens, self.config.vocab))

    def fingerprint(self, sampler: str = "inverse-cdf") -> str:
        """Names all that decides a request's tokens but the request: two services with equal fingerprints
        give equal tokens to equal requests with equal seeds, whatever machine or device they run on."""
        made, key = self._fingerprints, (sampler, self.foreign)
        if key not in made:
            own = {"foreign": self.foreign} if self.foreign else {}
            made[key] = "fp_" + _sha256({**self._identity, **own, "sampler": sampler})[:24]
        return made[key]

    @functools.cached_property
    def _fingerprints(self) -> dict[tuple[str, str], str]:
        return {}

    @functools.cached_property
    def _identity(self) -> dict[str, object]:
        return {
            "contract": int(CONTRACT_VERSION),
            "mode": self.mode,
            # Contents, not the names they happen to have here; a synthetic model is what its name says.
            "model": sorted(self.file_digests().values()) or self.name,
            "config": repr(self.config),
            "eos": sorted(self.eos_ids),
            "tokenizer": self._tokenizer_digest(),
            "chat_template": _sha256([self.chat_template, self.bos, self.eos]),
        }

    def _tokenizer_digest(self) -> str:
        """Of the bytes of every token, and of how one text with words, digits and controls is cut."""
        tokenizer, mark = self.tokenizer, hashlib.sha256()
        for token in range(self.config.vocab):
            spelled = tokenizer.token_bytes(token)
            mark.update(len(spelled).to_bytes(4, "little") + spelled)
        probe = " The  1234 caf\u00e9s don't\n\t\u4f60\u597d \U0001f600 <|im_start|>x<|end|>"
        mark.update(repr(tokenizer.encode(probe)).encode())
        return mark.hexdigest()


def described(checkpoint: Checkpoint) -> dict[str, object]:
    """The fields of a Card that a checkpoint gives."""
    names = ("name", "config", "load_tokenizer", "eos_ids", "chat_template", "source", "bos", "eos")
    return {name: getattr(checkpoint, name) for name in names}


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
