"""Five faces, one batch: whatever a request came through, it shares its steps and keeps its own tokens."""

import asyncio
import dataclasses
import threading

import anthropic
import httpx
import openai
import pytest

from crucible.engine.request import Request
from crucible.engine.scheduler import Limits
from crucible.service.tui.remote import RemoteSource
from crucible.service.tui.source import Sampling

COUNT = 12
LONG = [256 + n * n % 5 if n % 50 == 0 else 97 + n * 7 % 26 for n in range(941)]
OWN = {"seed": 7, "top_k": 40, "digests": True}


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@dataclasses.dataclass
class Got:
    """What a client read: text, and tokens and digests where its face tells them."""

    text: str
    tokens: list[int] | None = None
    digests: list[str] | None = None


def native(url: str) -> Got:
    body = {"prompt": "native asks", "max_tokens": COUNT, "temperature": 0.9, "top_p": 0.8, **OWN}
    reply = httpx.post(f"{url}/v1/generate", json=body, timeout=60).json()
    return Got(reply["text"], reply["tokens"], reply["logits_digests"])


def completion(url: str) -> Got:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60) as client:
        own = {"return_token_ids": True, "digests": True, "top_k": 40}
        (choice,) = client.completions.create(
            model="tiny", prompt="completion asks", max_tokens=COUNT, temperature=0.9, top_p=0.8, seed=7,
            extra_body=own,
        ).choices  # fmt: skip
    return Got(choice.text, choice.token_ids, choice.logits_digests)


def chat_completion(url: str) -> Got:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60) as client:
        chunks = client.chat.completions.create(
            model="tiny", messages=chat("chat asks"), max_tokens=COUNT, temperature=0.9, top_p=0.8, seed=7,
            stream=True, extra_body={"top_k": 40},
        )  # fmt: skip
        return Got("".join(c.choices[0].delta.content or "" for c in chunks if c.choices))


def messages(url: str) -> Got:
    with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0, timeout=60) as client:
        reply = client.messages.create(
            model="tiny", messages=chat("anthropic asks"), max_tokens=COUNT,
            extra_body={"temperature": 0.9, "top_p": 0.8, **OWN},
        )  # fmt: skip
    return Got("".join(block.text for block in reply.content), None, reply.logits_digests)


def terminal(url: str) -> Got:
    async def ask():
        source = RemoteSource(url)
        try:
            sampling = Sampling(temperature=0.9, top_p=0.8, top_k=40, seed=7, max_tokens=COUNT)
            *pieces, end = [piece async for piece in source.ask(chat("terminal asks"), sampling)]
        finally:
            await source.close()
        assert "".join(piece.text for piece in pieces) == end.text
        return Got(end.text, list(end.tokens))

    return asyncio.run(ask())


FACES = {
    "native": (native, "native asks", "native"),
    "completion": (completion, "completion asks", "openai"),
    "chat": (chat_completion, "chat asks", "openai"),
    "messages": (messages, "anthropic asks", "anthropic"),
    "terminal": (terminal, "terminal asks", "native"),
}


@pytest.fixture(scope="module")
def together(serve_once, tiny, make_gate, until):
    """(what each face got, the engine's stats): all five came while a prompt of 941 tokens blocked."""
    gate = make_gate()
    server = serve_once(tiny, Limits(prefill_budget=1024, decode_batch=8, pages=128), gate=gate)
    got: dict[str, Got] = {}

    def run(name, ask):
        got[name] = ask(server.url)

    def block(url):
        reply = httpx.post(f"{url}/v1/generate", json={"prompt": LONG, "max_tokens": 30}, timeout=60).json()
        return Got(reply["text"], reply["tokens"])

    asking = [threading.Thread(target=run, args=("long", block), daemon=True)]
    asking[0].start()
    until(lambda: gate.holding, "the long prompt runs")
    asking += [threading.Thread(target=run, args=(n, ask), daemon=True) for n, (ask, _, _) in FACES.items()]
    for thread in asking[1:]:
        thread.start()
    until(lambda: len(server.engine._live) == 6, "all five wait")
    gate.open()
    for thread in asking:
        thread.join(60)
    server.idle()
    return got, server.engine.stats(), httpx.get(f"{server.url}/stats").json()


@pytest.mark.parametrize("name", FACES)
def test_a_face_gets_what_its_request_gets_alone(together, tiny, alone, name):
    got = together[0][name]
    text = FACES[name][1]
    prompt = text if name in ("native", "completion") else tuple(tiny.encode_chat(chat(text)))
    result = alone(Request(prompt, COUNT, temperature=0.9, top_k=40, top_p=0.8, seed=7, digests=True))
    assert got.text == result.text and result.tokens
    assert got.tokens in (None, result.tokens) and got.digests in (None, result.logits_digests)


def test_the_long_prompt_gets_its_own_too(together, alone):
    assert together[0]["long"].tokens == alone(Request(tuple(LONG), 30)).tokens


def test_the_second_batch_of_prompts_holds_all_five(together):
    first, second, *rest = together[1].timeline
    assert (first.prefill_requests, first.prefill_rows, first.decode_rows) == (1, 941, 0)
    assert (second.prefill_requests, second.decode_rows, second.waiting) == (5, 1, 0)
    assert all(step.prefill_requests == 0 for step in rest)


def test_decoding_is_shared_by_all_six(together):
    rest = together[1].timeline[2:]
    assert rest[0].decode_rows == 6
    assert sum(step.decode_rows for step in rest) > 3 * len(rest) / 2


def test_the_service_tells_the_faces_and_the_kinds_of_batches(together):
    _, stats, told = together
    assert told["surfaces"] == {"native": 3, "openai": 2, "anthropic": 1}
    assert told["engine"]["batches"]["mixed"]["steps"] == 1 == stats.totals.mixed_steps
    assert told["engine"]["batches"]["mixed"]["prefill_rows"] == stats.timeline[1].prefill_rows
    assert told["engine"]["requests"]["finished"] == 6 and told["engine"]["pages"]["used"] == 0
