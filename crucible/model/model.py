"""A loaded model: config, tokenizer and transformer, opened by name or by path."""

import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from crucible import device as devices
from crucible.errors import InputError
from crucible.files import brief, shown
from crucible.model.cache import KVCache
from crucible.model.checkpoint import Checkpoint
from crucible.model.config import ModelConfig
from crucible.model.fetch import SOURCES, models_dir, sha256, verified
from crucible.model.tokenizer import Tokenizer, decode
from crucible.model.transformer import Transformer, check_ids
from crucible.model.weights import MODES, load_weights

SYNTHETIC = "synthetic-12x768"


def open_checkpoint(path_or_name: str | Path) -> Checkpoint:
    """Checkpoint of a known name (smollm2, synthetic-12x768), a GGUF file or a Hugging Face folder.

    Raises InputError when there is nothing of that name, when a known model is not fetched yet, or
    when the file is damaged; UnsupportedError for a model outside version 1 of the contract.
    """
    from crucible.model.gguf import open_gguf
    from crucible.model.safetensors import open_safetensors

    if not isinstance(path_or_name, str | Path) or not str(path_or_name):
        raise InputError(f"a model is named by a text or a path, not by {brief(path_or_name)}")
    name = str(path_or_name)
    if name == SYNTHETIC:
        from crucible.model.synthetic import open_synthetic

        return open_synthetic()
    if name in SOURCES:
        path = verified(name)
        if path is None:
            raise InputError(f"model {name} is not on this machine yet; run: crucible fetch {name}")
        return open_gguf(path)
    path = Path(os.path.expanduser(path_or_name))
    if os.path.isdir(path):
        return open_safetensors(path)
    if not os.path.exists(path):  # False, and not an error, for a name that no file can have
        known = ", ".join((*SOURCES, SYNTHETIC))
        raise InputError(
            f"no model at {shown(name)}; give a .gguf file, a Hugging Face folder or one of {known}"
        )
    if path.suffix == ".safetensors" or path.name == "config.json":
        return open_safetensors(path.parent)
    return open_gguf(path)


@dataclass(eq=False)
class Model:
    """A model ready to run; `load_seconds` is the time that opening and packing took."""

    name: str
    config: ModelConfig
    mode: str
    device: devices.Device
    transformer: Transformer = field(repr=False)
    load_tokenizer: Callable[[], Tokenizer] = field(repr=False)
    eos_ids: tuple[int, ...] = ()
    chat_template: str | None = field(default=None, repr=False)
    load_seconds: float = 0.0
    source: Path | None = None
    bos: str = ""
    eos: str = ""

    @classmethod
    def load(
        cls,
        path_or_name: str | Path,
        device: str = "auto",
        mode: str = "f32",
        progress: Callable[[int, int], None] | None = None,
    ) -> "Model":
        """Open and pack a model; `mode` is f32 or int8 (contract section 6). Errors as `open_checkpoint`.

        `device` is cpu, cuda, simt (the CUDA sources on the host: slow, for tests) or auto. InputError for
        another name, UnavailableError for one that this machine lacks.
        """
        start = time.perf_counter()
        if not isinstance(mode, str) or mode not in MODES:
            raise InputError(f"unknown mode {mode!r}; choose one of {', '.join(MODES)}")
        target = devices.get(device)
        checkpoint = open_checkpoint(path_or_name)
        return cls.from_checkpoint(checkpoint, target, mode, progress, start)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        device: devices.Device,
        mode: str = "f32",
        progress: Callable[[int, int], None] | None = None,
        start: float | None = None,
    ) -> "Model":
        """Pack an opened checkpoint for a device."""
        start = time.perf_counter() if start is None else start
        weights = load_weights(device, checkpoint, mode, progress)
        return cls(
            name=checkpoint.name,
            config=checkpoint.config,
            mode=mode,
            device=device,
            transformer=Transformer(device, checkpoint.config, weights),
            load_tokenizer=checkpoint.load_tokenizer,
            eos_ids=checkpoint.eos_ids,
            chat_template=checkpoint.chat_template,
            load_seconds=time.perf_counter() - start,
            source=checkpoint.source,
            bos=checkpoint.bos,
            eos=checkpoint.eos,
        )

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

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; InputError for text that is not Unicode (a lone surrogate)."""
        if not isinstance(text, str):
            raise InputError(f"the prompt must be text, got {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the prompt is not valid Unicode text at character {error.start}") from None
        return self.tokenizer.encode(text)

    def chat(self, prompt: str, system: str | None = None) -> str:
        """`prompt` as a user message, after a system message if any, by the checkpoint's chat template."""
        from crucible.model.chat import render

        messages = [{"role": "system", "content": system}] if system is not None else []
        return render(
            self.chat_template, [*messages, {"role": "user", "content": prompt}], self.bos, self.eos
        )

    def decode(self, tokens) -> str:
        """Text of token ids; InputError for one outside the vocabulary."""
        return decode(self.tokenizer, check_ids(tokens, self.config.vocab).tolist())

    def new_cache(self, num_pages: int, max_requests: int = 1, page_seed: int | None = None) -> KVCache:
        """An empty paged K/V cache for this model; `page_seed` as in `KVCache.create`."""
        return KVCache.create(self.device, self.config, num_pages, max_requests, page_seed)
