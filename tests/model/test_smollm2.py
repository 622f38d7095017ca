"""SmolLM2 end to end: the published digests and tokens, the same bits however it runs, real English."""

import functools
from pathlib import Path

import numpy as np
import pytest

from crucible import device
from crucible.kv.slices import Slice
from crucible.model.evaluate import nll
from crucible.model.generate import generate
from crucible.model.gguf import open_container, open_gguf
from crucible.model.model import Model
from crucible.numerics.bits import assert_same_bits
from crucible.numerics.digest import digest

SAMPLING = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.8, "top_k": 500, "top_p": 1.0, "seed": 141025},
}
ENGLISH = (Path(__file__).parent / "english.txt").read_text()


@functools.cache
def likelihood(model: Model) -> tuple[float, int]:
    """Mean nats per token of the English text and the number of tokens scored."""
    return nll(model, model.encode(ENGLISH)[:260])


@pytest.mark.parametrize("kind", SAMPLING)
def test_tokens_and_every_digest_are_the_published_ones(smollm2, chat_vector, kind):
    mode, ids = smollm2.mode, chat_vector["ids"].tolist()
    result = generate(smollm2, ids, max_tokens=16, ignore_eos=True, **SAMPLING[kind])
    assert result.tokens == chat_vector[f"{mode}_{kind}"].tolist()
    assert result.logits_digests == chat_vector[f"{mode}_{kind}_step_digests"].tolist()
    assert result.prompt_logits_digest == chat_vector[f"{mode}_logits_digest"]
    assert result.prompt_k_digest == chat_vector[f"{mode}_k_all_digest"]
    assert result.prompt_v_digest == chat_vector[f"{mode}_v_all_digest"]
    assert result.random_state.next_draw == (16 if kind == "seeded" else 0)


def test_first_and_last_layers_keys_and_values_are_the_published_ones(smollm2, chat_vector):
    ids = chat_vector["ids"].tolist()
    cache = smollm2.new_cache(3)
    cache.reserve(0, len(ids))
    smollm2.transformer.forward(ids, [Slice(0, 0, len(ids))], cache)
    for name, array in zip("kv", cache.read(0, len(ids)), strict=True):
        for layer in (0, 29):
            assert digest(array[layer]) == chat_vector[f"{smollm2.mode}_{name}{layer}_digest"]


def test_every_step_of_the_first_layer_is_the_published_one(smollm2, chat_vector):
    ids, seen = chat_vector["ids"].tolist(), {}

    def trace(name, layer, array):
        if layer in (None, 0):
            seen[name if layer is None else f"l0_{name}"] = np.array(array[-1])

    cache = smollm2.new_cache(3)
    cache.reserve(0, len(ids))
    logits = smollm2.transformer.forward(ids, [Slice(0, 0, len(ids))], cache, trace=trace)
    prefix = f"{smollm2.mode}_trace_"
    names = [key.removeprefix(prefix) for key in chat_vector if key.startswith(prefix)]
    assert len(names) == 15
    for name in names:
        assert_same_bits(chat_vector[prefix + name], seen[name], name)
    assert_same_bits(chat_vector[f"{smollm2.mode}_logits"], logits[0], "logits")


@pytest.mark.parametrize("how", [{"chunk": 7}, {"chunk": 1}, {"page_seed": 3}, {"chunk": 13, "page_seed": 4}])
def test_chunks_and_page_order_move_no_bit(smollm2, chat_vector, how):
    mode, ids = smollm2.mode, chat_vector["ids"].tolist()
    result = generate(smollm2, ids, max_tokens=4, ignore_eos=True, **SAMPLING["seeded"], **how)
    assert result.logits_digests == chat_vector[f"{mode}_seeded_step_digests"][:4].tolist()
    assert result.prompt_k_digest == chat_vector[f"{mode}_k_all_digest"]
    assert result.prompt_v_digest == chat_vector[f"{mode}_v_all_digest"]


def test_neighbours_in_the_same_step_move_no_bit(smollm2, chat_vector):
    ids = chat_vector["ids"].tolist()
    cache = smollm2.new_cache(12, 3, page_seed=1)
    for request, length in enumerate((17, len(ids), 70)):
        cache.reserve(request, length)
    neighbours = np.random.default_rng(4).integers(0, 49152, 87).tolist()
    packed = neighbours[:17] + ids + neighbours[17:]
    slices = [Slice(0, 0, 17), Slice(1, 0, len(ids)), Slice(2, 0, 70)]
    logits = smollm2.transformer.forward(packed, slices, cache)
    assert digest(np.ascontiguousarray(logits[1])) == chat_vector[f"{smollm2.mode}_logits_digest"]
    assert digest(cache.read(1, len(ids))[0]) == chat_vector[f"{smollm2.mode}_k_all_digest"]


def test_the_chat_template_gives_the_published_prompt(smollm2_f32, chat_vector):
    from crucible.model.chat import render

    question = {"role": "user", "content": "Why is the sky blue? Answer briefly."}
    assert render(smollm2_f32.chat_template, [question]) == str(chat_vector["text"])


def test_english_text_has_the_likelihood_of_a_working_model(smollm2):
    value, count = likelihood(smollm2)
    assert count > 200 and 1.6 < value < 2.5, value


def test_a_wrong_row_permutation_is_caught_by_the_likelihood(smollm2_f32, smollm2_file):
    # The rows as the file has them: interleaved pairs under a half-split rotation. Such a model still
    # writes English and knows capitals; only the likelihood tells.
    container = open_container(smollm2_file)
    wrong = open_gguf(smollm2_file).with_tensors(container.read)
    model = Model.from_checkpoint(wrong, device.get("cpu"))
    right, _ = likelihood(smollm2_f32)
    value, _ = likelihood(model)
    assert value > 2.5 and value > right + 0.3, (right, value)
