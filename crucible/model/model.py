"""A loaded model: its card and its transformer, opened by name or by path."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from crucible import device as devices
from crucible.errors import InputError
from crucible.files import brief, shown
from crucible.model.cache import KVCache
from crucible.model.card import Card, described
from crucible.model.checkpoint import Checkpoint
from crucible.model.fetch import SOURCES, verified
from crucible.model.transformer import Transformer
from crucible.model.weights import MODES, load_weights

SYNTHETIC = "synthetic-12x768"
TINY = "synthetic-2x64"  # two layers, for tests


def open_checkpoint(path_or_name: str | Path) -> Checkpoint:
    """Checkpoint of a known name (smollm2, synthetic-12x768, synthetic-2x64), a GGUF file or a folder.

    Raises InputError when there is nothing of that name, when a known model is not fetched yet, or
    when the file is damaged; UnsupportedError for a model outside version 1 of the contract.
    """
    from crucible.model.gguf import open_gguf
    from crucible.model.safetensors import open_safetensors

    if not isinstance(path_or_name, str | Path) or not str(path_or_name):
        raise InputError(f"a model is named by a text or a path, not by {brief(path_or_name)}")
    name = str(path_or_name)
    if name in (SYNTHETIC, TINY):
        from crucible.model.synthetic import open_named

        return open_named(name)
    if name in SOURCES:
        path = verified(name)
        if path is None:
            raise InputError(f"model {name} is not on this machine yet; run: crucible fetch {name}")
        return open_gguf(path)
    path = Path(os.path.expanduser(path_or_name))
    if os.path.isdir(path):
        return open_safetensors(path)
    if not os.path.exists(path):  # False, and not an error, for a name that no file can have
        known = ", ".join((*SOURCES, SYNTHETIC, TINY))
        raise InputError(
            f"no model at {shown(name)}; give a .gguf file, a Hugging Face folder or one of {known}"
        )
    if path.suffix == ".safetensors" or path.name == "config.json":
        return open_safetensors(path.parent)
    return open_gguf(path)


@dataclass(eq=False, kw_only=True)
class Model(Card):
    """A model ready to run; `load_seconds` is the time that opening and packing took."""

    device: devices.Device
    transformer: Transformer = field(repr=False)
    load_seconds: float = 0.0

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
            mode=mode,
            device=device,
            transformer=Transformer(device, checkpoint.config, weights),
            load_seconds=time.perf_counter() - start,
            **described(checkpoint),
        )

    def new_cache(self, num_pages: int, max_requests: int = 1, page_seed: int | None = None) -> KVCache:
        """An empty paged K/V cache for this model; `page_seed` as in `KVCache.create`."""
        return KVCache.create(self.device, self.config, num_pages, max_requests, page_seed)
