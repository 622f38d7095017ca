"""A tiny model with two KV heads for drift tests."""

import functools

import pytest

from crucible import device
from crucible.drift.corpus import Corpus, prompts_of
from crucible.model import synthetic
from crucible.model.config import ModelConfig
from crucible.model.model import Model

CONFIG = ModelConfig(
    architecture="llama",
    layers=2,
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=32,
    ffn=96,
    vocab=300,
    context=128,
    rope_theta=10000.0,
    eps=1e-5,
    tied=True,
)


@functools.cache
def _tiny(on: str) -> Model:
    return Model.from_checkpoint(synthetic.open_synthetic(CONFIG, 7, "tiny"), device.get(on))


@pytest.fixture
def tiny() -> Model:
    """The tiny model on cpu."""
    return _tiny("cpu")


@pytest.fixture
def tiny_simt() -> Model:
    """The tiny model on simt."""
    return _tiny("simt")


@pytest.fixture
def corpus(tiny) -> Corpus:
    """Short requests of the tiny model."""
    return Corpus(prompts_of(tiny), 6, lengths=(40, 21))
