"""Byte-level BPE: the tokenizers of GGUF files and of tokenizer.json."""

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from crucible.errors import InputError, UnsupportedError
from crucible.files import brief, read_text
from crucible.model import config as configs
from crucible.model.shortest import Shortest, shortest

_SHORT = 4096  # characters that are encoded faster than other threads would notice


def _ids(inner: Any, text: str) -> list[int]:
    """Token ids of a text; other threads run while a long one is encoded."""
    if len(text) <= _SHORT:
        return inner.encode(text, add_special_tokens=False).ids
    # The library keeps the interpreter to itself for one text, and lets go of it for a batch.
    return inner.encode_batch_fast([text], add_special_tokens=False)[0].ids


@functools.cache
def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 as itself, the rest counted up from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    hidden = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update((chr(0x100 + index), byte) for index, byte in enumerate(hidden))
    return alphabet


class BpeTokenizer:
    """A `tokenizers` tokenizer whose tokens stand for bytes (byte-level BPE, or BPE with byte fallback)."""

    def __init__(self, inner: Any, vocab: int, control: Iterable[int], byte_level: bool, bos: int | None):
        self._inner, self.vocab, self._bos = inner, vocab, bos
        self._control, self._byte_level = frozenset(control), byte_level
        self._added = {i for i, token in inner.get_added_tokens_decoder().items() if not token.special}

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with the begin-of-text token in front where the checkpoint asks for it."""
        ids = _ids(self._inner, text)
        return ids if self._bos is None or ids[:1] == [self._bos] else [self._bos, *ids]

    @functools.cached_property
    def controls(self) -> dict[str, int]:
        """Spelling and id of the control tokens."""
        named = ((self._inner.id_to_token(token), token) for token in sorted(self._control))
        return {name: token for name, token in named if name}

    def encode_letters(self, text: str) -> list[int]:
        """Token ids of `text` without control tokens; UnsupportedError where its parts do not stand alone."""
        if not self._byte_level or any(
            token.special and (token.lstrip or token.rstrip or token.single_word)
            for token in self._inner.get_added_tokens_decoder().values()
        ):
            raise UnsupportedError(
                "a message spells a control token, which this tokenizer cannot tell from text; leave it out"
            )
        bare, places = self._bare
        ids = [places.get(token, token) for token in _ids(bare, text)]
        if not self._control.isdisjoint(ids):
            raise UnsupportedError("a message spells a control token that this vocabulary has as a word too")
        return ids

    @functools.cached_property
    def _bare(self) -> tuple[Any, dict[int, int]]:
        """The same model without control tokens, and its ids of other added tokens -> their ids here."""
        inner, bare = self._inner, type(self._inner)(self._inner.model)
        if inner.normalizer is not None:
            bare.normalizer = inner.normalizer
        if inner.pre_tokenizer is not None:
            bare.pre_tokenizer = inner.pre_tokenizer
        others = {i: token for i, token in inner.get_added_tokens_decoder().items() if not token.special}
        bare.add_tokens(list(others.values()))
        return bare, {bare.token_to_id(token.content): i for i, token in others.items()}

    def at_least(self, text: str) -> int:
        """As Tokenizer.at_least."""
        return self._shortest.tokens(text)

    @functools.cached_property
    def _shortest(self) -> Shortest:
        if not self._byte_level:
            return Shortest(0)
        return shortest(self._inner, map(self.token_bytes, range(self.vocab)), self.controls)

    @functools.lru_cache(maxsize=1 << 16)  # noqa: B019 - lives as long as the model
    def token_bytes(self, token: int) -> bytes:
        """Bytes of a token; an id that the vocabulary does not name (a padding row) adds nothing."""
        spelled = self._inner.id_to_token(token)
        if spelled is None or token in self._control:
            return b""
        if token in self._added:
            return spelled.encode()
        if not self._byte_level:
            if len(spelled) == 6 and spelled.startswith("<0x") and spelled.endswith(">"):
                return bytes([int(spelled[3:5], 16)])
            return spelled.replace("\u2581", " ").encode()
        alphabet = _byte_alphabet()
        if any(character not in alphabet for character in spelled):
            return spelled.encode()
        return bytes(alphabet[character] for character in spelled)

    def name(self, token: int) -> str:
        """The vocabulary's own spelling."""
        return self._inner.id_to_token(token) or f"<unused {token}>"


# Pre-tokenizer of a GGUF file -> pattern that splits text into words before BPE (None: the GPT-2 pattern).
_LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PRE_TOKENIZERS = {
    "gpt-2": None,
    "smollm": None,
    "llama-bpe": _LLAMA3_PATTERN,
    "qwen2": _LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}"),
}
_CONTROL_TYPE = 3  # tokenizer.ggml.token_type
_USER_DEFINED_TYPE = 4


def gguf_strings(metadata: Mapping[str, Any], key: str) -> list[str] | None:
    """The list of texts at `key` of GGUF metadata, or None; InputError for anything else."""
    found = metadata.get(key)
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(entry, str) for entry in found):
        raise InputError(f"GGUF metadata: {key} is {brief(found)}, it must be a list of texts")
    return found


def _token_types(metadata: Mapping[str, Any], count: int) -> list[int]:
    key = "tokenizer.ggml.token_type"
    if metadata.get(key) is None:
        return [1] * count
    kinds = np.asarray(metadata[key]) if isinstance(metadata[key], np.ndarray | list) else np.zeros(())
    if kinds.ndim != 1 or kinds.dtype.kind not in "iu":
        raise InputError(f"GGUF metadata: {key} is {brief(metadata[key])}, it must be a list of integers")
    return kinds.tolist()


def from_gguf(metadata: Mapping[str, Any], vocab: int) -> BpeTokenizer:
    """Byte-level BPE rebuilt from GGUF metadata.

    Raises UnsupportedError naming the tokenizer model or pre-tokenizer that is not covered, and
    InputError when the lists do not fit.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

    where = "GGUF metadata"
    kind = configs.optional(configs.text, metadata, "tokenizer.ggml.model", where)
    pre = configs.optional(configs.text, metadata, "tokenizer.ggml.pre", where, "gpt-2")
    if kind != "gpt2":
        raise UnsupportedError(
            f"GGUF tokenizer.ggml.model {brief(kind)} is not covered; 'gpt2' (byte-level BPE) is"
        )
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        raise UnsupportedError(f"GGUF tokenizer.ggml.pre {brief(pre)} is not covered; {known} are")
    tokens, merges = (gguf_strings(metadata, f"tokenizer.ggml.{key}") for key in ("tokens", "merges"))
    if not tokens or merges is None:
        raise InputError("GGUF metadata lacks tokenizer.ggml.tokens or tokenizer.ggml.merges")
    kinds = _token_types(metadata, len(tokens))
    if len(kinds) != len(tokens) or len(tokens) > vocab:
        raise InputError(
            f"GGUF tokenizer has {len(tokens)} tokens and {len(kinds)} types for a vocabulary of {vocab}"
        )
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    if any(len(pair) != 2 for pair in pairs):
        raise InputError("GGUF tokenizer.ggml.merges holds an entry without two parts")
    ids = {token: index for index, token in enumerate(tokens)}
    try:
        inner = Tokenizer(models.BPE(vocab=ids, merges=pairs, ignore_merges=pre == "llama-bpe"))
    except Exception as error:  # the library raises bare Exception for a merge outside the vocabulary
        raise InputError(f"GGUF tokenizer cannot be built: {brief(str(error), 200)}") from None
    pattern = _PRE_TOKENIZERS[pre]
    steps = []
    if pre == "smollm":
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if pattern:
        steps.append(pre_tokenizers.Split(Regex(pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None))
    inner.pre_tokenizer = pre_tokenizers.Sequence(steps)
    control = [index for index, kind in enumerate(kinds) if kind == _CONTROL_TYPE]
    inner.add_special_tokens([AddedToken(tokens[i], normalized=False, special=True) for i in control])
    user = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _USER_DEFINED_TYPE]
    inner.add_tokens([AddedToken(token, normalized=False) for token in user])
    adds_bos = configs.optional(configs.flag, metadata, "tokenizer.ggml.add_bos_token", where)
    key = "tokenizer.ggml.bos_token_id"
    bos = configs.optional(configs.integer, metadata, key, where) if adds_bos else None
    if bos is not None and not 0 <= bos < vocab:
        raise InputError(f"{where}: {key} is {bos}, outside the vocabulary 0..{vocab - 1}")
    return BpeTokenizer(inner, vocab, control, byte_level=True, bos=bos)


def _decoder_types(decoder: Mapping[str, Any] | None) -> set[str]:
    """Types named in the decoder of a tokenizer.json, through its sequences."""
    if not decoder:
        return set()
    inner = [t for part in decoder.get("decoders", ()) for t in _decoder_types(part)]
    return {decoder.get("type", ""), *inner}


def from_json(path: Path, vocab: int) -> BpeTokenizer:
    """The tokenizer of a tokenizer.json with byte-level or byte-fallback tokens; errors say what is off."""
    from tokenizers import Tokenizer

    text = read_text(path)
    try:
        types = _decoder_types(json.loads(text).get("decoder"))
        inner = Tokenizer.from_str(text)
    except Exception as error:  # json and the tokenizers library's bare Exception
        raise InputError(f"{path.name} is not a tokenizer file: {brief(str(error), 200)}") from None
    if not types & {"ByteLevel", "ByteFallback"}:
        shown = ", ".join(sorted(types)) or "none"
        raise UnsupportedError(f"{path.name}: decoder {shown} is not covered; ByteLevel and ByteFallback are")
    if inner.get_vocab_size(with_added_tokens=True) > vocab:
        raise InputError(f"{path.name} has {inner.get_vocab_size()} tokens, the model has {vocab}")
    control = [i for i, token in inner.get_added_tokens_decoder().items() if token.special]
    prefix = inner.encode("").ids  # what the file's post-processor puts in front of every text
    bos = prefix[0] if prefix else None
    return BpeTokenizer(inner, vocab, control, byte_level="ByteLevel" in types, bos=bos)
