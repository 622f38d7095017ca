"""The synthetic model: the same weights on every machine, and logits like a trained model's."""

import numpy as np
import pytest

from crucible.model import synthetic
from crucible.model.generate import generate
from crucible.model.model import Model, open_checkpoint


@pytest.fixture(scope="module")
def model():
    return Model.load(synthetic.NAME, device="cpu", mode="int8")


@pytest.mark.parametrize(
    "name, digest",
    [(synthetic.NAME, synthetic.WEIGHTS_DIGEST), (synthetic.TINY, synthetic.TINY_WEIGHTS_DIGEST)],
)
def test_all_weights_have_the_pinned_digest(name, digest):
    checkpoint = open_checkpoint(name)
    assert checkpoint.name == name and synthetic.weights_digest(checkpoint) == digest


def test_another_seed_gives_other_weights():
    name = "blk.0.attn_k.weight"
    first = synthetic.synthetic_tensor(synthetic.CONFIG, name)
    assert np.array_equal(first, synthetic.synthetic_tensor(synthetic.CONFIG, name))
    assert (first != synthetic.synthetic_tensor(synthetic.CONFIG, name, seed=1)).mean() > 0.99


def test_logits_have_a_realistic_spread(model):
    from crucible.kv.slices import Slice

    cache = model.new_cache(2)
    cache.reserve(0, 32)
    ids = model.encode("The quick brown fox jumps over")
    logits = model.transformer.forward(ids, [Slice(0, 0, len(ids))], cache, rows=range(len(ids)))
    spread = logits.std(axis=1)
    assert (spread > 2.5).all() and (spread < 4.5).all()
    assert len(set(logits.argmax(axis=1).tolist())) > len(ids) // 2, "every position gives the same token"


def test_its_greedy_text_is_pinned_and_does_not_loop(model):
    result = generate(model, "Hello", max_tokens=24)
    assert len(set(result.tokens)) > 12
    assert result.prompt_logits_digest == PROMPT_LOGITS_DIGEST


PROMPT_LOGITS_DIGEST = "cbb47ce114fb46665c44c47ae3d5c42a"
