"""SmolLM2 behind `crucible serve`, in processes of its own: the published tokens and digests, by the SDK."""

from pathlib import Path

import numpy as np
import openai
import pytest

from crucible.model.card import Card
from crucible.model.model import open_checkpoint

EXTRA = {"ignore_eos": True, "digests": True, "return_token_ids": True}


@pytest.fixture(scope="module")
def vector() -> dict[str, np.ndarray]:
    """The whole-model vector: one prompt, its tokens and the digests of its logits."""
    with np.load(Path(__file__).parents[2] / "vectors" / "smollm2_chat.npz") as found:
        return dict(found)


@pytest.fixture(scope="module")
def smollm2(smollm2_url):
    """The SDK's client of the service."""
    with openai.OpenAI(base_url=f"{smollm2_url}/v1", api_key="any", max_retries=0, timeout=60) as client:
        yield client


def test_a_chat_has_the_published_prompt_tokens_and_digests(smollm2, vector):
    reply = smollm2.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Why is the sky blue? Answer briefly."}],
        temperature=0,
        max_completion_tokens=16,
        extra_body=EXTRA,
    )
    choice = reply.choices[0]
    assert choice.prompt_token_ids == vector["ids"].tolist()
    assert choice.token_ids == vector["int8_greedy"].tolist()
    assert choice.logits_digests == vector["int8_greedy_step_digests"].tolist()


def test_a_streamed_completion_has_the_published_tokens_and_digests(smollm2, vector, gathered):
    stream = smollm2.completions.create(
        model="smollm2",
        prompt=vector["ids"].tolist(),
        temperature=float(vector["temperature"]),
        seed=int(vector["seed"]),
        max_tokens=16,
        stream=True,
        extra_body={**EXTRA, "top_k": int(vector["top_k"])},
    )
    (choice,) = gathered(stream)
    assert choice["token_ids"] == vector["int8_seeded"].tolist()
    assert choice["digests"] == vector["int8_seeded_step_digests"].tolist()


def test_the_published_tokens_come_as_a_later_choice_too(smollm2, vector):
    reply = smollm2.completions.create(
        model="smollm2",
        prompt=vector["ids"].tolist(),
        temperature=float(vector["temperature"]),
        seed=int(vector["seed"]) - 2,
        n=3,
        max_tokens=16,
        extra_body={**EXTRA, "top_k": int(vector["top_k"])},
    )
    assert reply.choices[2].token_ids == vector["int8_seeded"].tolist()
    assert reply.choices[1].token_ids != reply.choices[2].token_ids


def test_the_fingerprint_is_that_of_the_same_model_anywhere(smollm2):
    card = Card.of(open_checkpoint("smollm2"), "int8")
    assert smollm2.models.retrieve("smollm2").system_fingerprint == card.fingerprint()
