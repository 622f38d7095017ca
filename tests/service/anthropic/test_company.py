"""Many clients at once, sync and async: each gets what it would get alone, and leavers leave nothing."""

import asyncio

import anthropic
import pytest

from crucible.engine.scheduler import Limits

PROMPTS = ["Hello", "naïve 你好", "All the world's a stage, " * 9, "<|end|>", "1 2 3", "Why?"]


def fields(n: int) -> dict:
    return {
        "model": "tiny",
        "max_tokens": 8 + 5 * n,
        "messages": [{"role": "user", "content": PROMPTS[n]}],
        "system": "Be brief." if n % 2 else "",
        "extra_body": {"seed": n},
    }


@pytest.fixture
def expected(alone, meant):
    """expected(n) -> text of request n alone."""

    def make(n):
        system = [{"role": "system", "content": "Be brief."}] if n % 2 else []
        turns = [*system, {"role": "user", "content": PROMPTS[n]}]
        return alone(meant(turns, seed=n, max_tokens=8 + 5 * n)).text

    return make


def in_company(server, work) -> list:
    """Results of work(client, n) for every prompt, all at once on one async client."""

    async def run():
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0) as client:
            return await asyncio.gather(*(work(client, n) for n in range(len(PROMPTS))))

    return asyncio.run(run())


async def created(client, n):
    return (await client.messages.create(**fields(n))).content[0].text


async def streamed(client, n):
    async with client.messages.stream(**fields(n)) as events:
        return "".join([piece async for piece in events.text_stream])


async def final(client, n):
    async with client.messages.stream(**fields(n)) as events:
        return (await events.get_final_message()).content[0].text


@pytest.mark.parametrize("work", [created, streamed, final], ids=["create", "text-stream", "final-message"])
def test_answers_in_company_are_those_alone(tiny_server, expected, work):
    assert in_company(tiny_server, work) == [expected(n) for n in range(len(PROMPTS))]


def test_answers_on_few_pages_are_those_alone(serve, tiny, expected):
    server = serve(tiny, limits=Limits(pages=24))
    assert in_company(server, streamed) == [expected(n) for n in range(len(PROMPTS))]


def test_streams_that_start_together_share_steps(serve, tiny, gate, connected, expected):
    server = serve(tiny, gate=gate)
    with connected(server) as client:
        # Each is admitted before the next is asked for, and none runs before all are.
        streams = [client.messages.create(**fields(n), stream=True) for n in range(len(PROMPTS))]
        gate.open()
        for n, events in enumerate(streams):
            deltas = [event.delta.text for event in events if event.type == "content_block_delta"]
            assert "".join(deltas) == expected(n)
    server.idle()
    totals = server.engine.stats().totals
    assert totals.steps < totals.tokens / 2


def test_one_that_leaves_changes_nobody_else(tiny_server, expected):
    async def leaving(client, n):
        if n != 2:
            return await streamed(client, n)
        async with client.messages.stream(**{**fields(n), "max_tokens": 500}) as events:
            async for _ in events.text_stream:
                return None

    texts = in_company(tiny_server, leaving)
    assert texts == [None if n == 2 else expected(n) for n in range(len(PROMPTS))]
    tiny_server.idle()


def test_a_client_that_leaves_its_stream_frees_its_pages(serve, tiny, gate, connected, until):
    server = serve(tiny, gate=gate)
    gate.let(8)
    with connected(server) as client:
        with client.messages.stream(**{**fields(0), "max_tokens": 900}) as events:
            next(iter(events.text_stream))
        until(lambda: server.service.inflight == 0, "the service sees that the client left")
        gate.open()
        until(lambda: server.engine.stats().totals.cancelled == 1, "the request is cancelled")
        server.idle()


def test_a_client_that_leaves_before_the_reply_frees_its_pages(serve, tiny, gate, until, leave):
    server = serve(tiny, gate=gate)
    client = anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0)
    leave(server, client, lambda: client.messages.create(**fields(0)))
    gate.open()
    until(lambda: server.engine.stats().totals.cancelled == 1, "the request is cancelled")
    server.idle()


def test_async_counts_and_models_are_the_plain_ones(tiny_server, client):
    messages = [{"role": "user", "content": "a"}]

    async def run():
        async with anthropic.AsyncAnthropic(base_url=tiny_server.url, api_key="any", max_retries=0) as one:
            count = await one.messages.count_tokens(model="tiny", messages=messages)
            return count, [model async for model in one.models.list()], await one.models.retrieve("tiny")

    count, listed, model = asyncio.run(run())
    assert count == client.messages.count_tokens(model="tiny", messages=messages)
    assert listed == [model] == [client.models.retrieve("tiny")]


def test_async_errors_are_of_the_same_classes(tiny_server):
    async def run():
        async with anthropic.AsyncAnthropic(base_url=tiny_server.url, api_key="any", max_retries=0) as one:
            with pytest.raises(anthropic.NotFoundError):
                await one.messages.create(**{**fields(0), "model": "other"})
            with pytest.raises(anthropic.BadRequestError):
                async with one.messages.stream(**{**fields(0), "max_tokens": 0}) as events:
                    await events.get_final_message()

    asyncio.run(run())
