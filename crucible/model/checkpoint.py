"""A checkpoint opened for reading: its config, its tensors one at a time, its tokenizer and chat template."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from crucible.errors import InputError
from crucible.model.config import ModelConfig
from crucible.model.tokenizer import Tokenizer


@dataclass(frozen=True)
class Checkpoint:
    """An opened model file.

    `read_tensor(name)` returns one tensor as f32, C-contiguous, in the canonical name and layout
    ([out][in] for linears, Q and K rows in half-split RoPE order); tensors stay on disk until read.
    `read_stored(name)` returns the same tensor as the file has it: (storage, rows uint8 [out][bytes]),
    a storage of crucible.linear.weights.STORAGES whose weights widen to what `read_tensor` returns.
    `load_tokenizer()` builds the tokenizer; `chat_template` is Jinja text or None, `bos` and `eos` the
    tokens it may spell out ("" where the file names none); `eos_ids` stop a generation. `spelled` turns a
    canonical tensor name into the file's.
    """

    name: str
    source: Path | None
    config: ModelConfig
    read_tensor: Callable[[str], np.ndarray] = field(repr=False)
    load_tokenizer: Callable[[], Tokenizer] = field(repr=False)
    eos_ids: tuple[int, ...] = ()
    chat_template: str | None = field(default=None, repr=False)
    bos: str = ""
    eos: str = ""
    stored: Callable[[str], tuple[str, np.ndarray] | None] = field(default=lambda name: None, repr=False)
    spelled: Callable[[str], str] = field(default=str, repr=False)

    def read_stored(self, name: str) -> tuple[str, np.ndarray]:
        """Tensor `name` [out][in] in its storage; f32 where the file's own type has no storage."""
        return self.stored(name) or ("f32", self.read_tensor(name).view(np.uint8))

    def with_tensors(self, read_tensor: Callable[[str], np.ndarray]) -> "Checkpoint":
        """The same checkpoint with other weights, of which nothing is stored but what `read_tensor` gives."""
        return replace(self, read_tensor=read_tensor, stored=lambda name: None)


def check_tensors(
    where: str,
    config: ModelConfig,
    found: Mapping[str, tuple[int, ...]],
    spelled: Callable[[str], str] = str,
    ignore: Callable[[str], bool] = lambda name: False,
) -> None:
    """Refuse a missing, surplus or misshapen tensor by name.

    found: name -> shape as the file has them; `spelled` turns a canonical name into the file's;
    `ignore` tells surplus tensors that do no harm.
    """
    # Before the config's own list is made: a damaged layer count would make it endless.
    if config.layers > len(found):
        raise InputError(
            f"{where}: the config claims {config.layers} layers, the file has {len(found)} tensors"
        )
    expected = {spelled(name): shape for name, shape in config.tensor_shapes().items()}
    for name, shape in expected.items():
        if name not in found:
            raise InputError(f"{where} lacks the tensor {name}")
        if tuple(found[name]) != shape:
            raise InputError(
                f"{where}: tensor {name} has shape {list(found[name])}, the config needs {list(shape)}"
            )
    for name in found:
        if name not in expected and not ignore(name):
            raise InputError(f"{where}: tensor {name} has no place in this architecture")
