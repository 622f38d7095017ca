"""SmolLM2 behind `crucible serve`, in processes of its own: published tokens, digests and random state."""

from pathlib import Path

import httpx
import numpy as np
import pytest

SKY = [{"role": "user", "content": "Why is the sky blue? Answer briefly."}]


@pytest.fixture(scope="module")
def vector() -> dict[str, np.ndarray]:
    """The whole-model vector: one prompt, its tokens and the digests of its logits."""
    with np.load(Path(__file__).parents[2] / "vectors" / "smollm2_chat.npz") as found:
        return dict(found)


@pytest.fixture(scope="module")
def served(smollm2_url):
    """A client of the service."""
    with httpx.Client(base_url=smollm2_url, timeout=60, verify=False) as client:
        yield client


def test_messages_give_the_published_prompt_tokens_and_digests(served, vector):
    body = {"messages": SKY, "max_tokens": 16, "ignore_eos": True, "digests": True, "prompt_ids": True}
    reply = served.post("/v1/generate", json=body).json()
    assert reply["prompt_ids"] == vector["ids"].tolist()
    assert reply["tokens"] == vector["int8_greedy"].tolist()
    assert reply["logits_digests"] == vector["int8_greedy_step_digests"].tolist()


def test_a_stream_over_the_channel_is_the_plain_reply(served, parse_events):
    body = {"messages": SKY, "max_tokens": 16, "temperature": 0.8, "top_k": 50, "seed": 2**64 - 1}
    body |= {"logprobs": 3, "kv_digests": True, "digests": True}
    plain = served.post("/v1/generate", json=body).json()
    *parts, (_, end) = parse_events(served.post("/v1/generate", json={**body, "stream": True}).text)
    for reply in (plain, end):
        del reply["id"], reply["timings"], reply["usage"]["cached_rows"]
    assert end == plain and plain["random_state"] == {"seed": 2**64 - 1, "next_draw": len(plain["tokens"])}
    assert [token for _, part in parts for token in part["tokens"]] == plain["tokens"]
    assert len(parts) > 1


def test_the_tokenizer_is_there_without_the_engine_s_process(served, vector):
    tokens = served.post("/v1/tokenize", json={"messages": SKY}).json()["tokens"]
    assert tokens == vector["ids"].tolist()
    text = served.post("/v1/detokenize", json={"tokens": tokens}).json()["text"]
    assert SKY[0]["content"] in text and "<|im_start|>" not in text


def test_the_service_counts_what_its_engine_did(served):
    before = served.get("/stats").json()["engine"]
    served.post("/v1/generate", json={"prompt": "One two three", "max_tokens": 4, "ignore_eos": True})
    after = served.get("/stats").json()["engine"]
    assert after["tokens"] - before["tokens"] == 4 and after["pages"]["used"] == 0
    assert after["batches"]["decode_only"]["steps"] - before["batches"]["decode_only"]["steps"] == 3
