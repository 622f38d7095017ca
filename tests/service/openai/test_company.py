"""Many clients at once, through both kinds of SDK client: nobody's reply depends on who else asks."""

import asyncio

import openai
import pytest

from crucible.engine.request import Request

IDS = {"return_token_ids": True}
PROMPTS = ["To be", "or not", "naïve 你好", "x" * 70, "To be, or", "y", "long " * 60, "\n"]


@pytest.fixture(scope="module")
def together(tiny_server):
    """together(coroutine of an AsyncOpenAI) -> what it returns."""

    def run(main):
        async def go():
            address = f"{tiny_server.url}/v1"
            async with openai.AsyncOpenAI(base_url=address, api_key="any", max_retries=0) as client:
                return await main(client)

        return asyncio.run(go())

    return run


def of_alone(alone, index: int, prompt) -> list[int]:
    return alone(Request(prompt, 12, temperature=1.0, seed=index)).tokens


@pytest.fixture(scope="module")
def completions(together):
    """Token ids of concurrent completions, one for each prompt; every second one is streamed."""

    async def one(client, index, prompt):
        fields = {"model": "tiny", "prompt": prompt, "max_tokens": 12, "seed": index, "extra_body": IDS}
        if index % 2:
            stream = await client.completions.create(stream=True, **fields)
            return [t async for chunk in stream for t in getattr(chunk.choices[0], "token_ids", [])]
        return (await client.completions.create(**fields)).choices[0].token_ids

    async def all_of_them(client):
        return await asyncio.gather(*(one(client, *pair) for pair in enumerate(PROMPTS)))

    return together(all_of_them)


@pytest.mark.parametrize("index", range(len(PROMPTS)))
def test_a_completion_among_others_is_that_of_the_engine_alone(completions, alone, index):
    assert completions[index] == of_alone(alone, index, PROMPTS[index])


@pytest.fixture(scope="module")
def chats(together):
    """Token ids of concurrent chats, whole and streamed by turns."""

    async def one(client, index, prompt):
        fields = {
            "model": "tiny",
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 12,
            "seed": index,
            "extra_body": IDS,
        }
        if index % 2:
            stream = await client.chat.completions.create(stream=True, **fields)
            return [t async for chunk in stream for t in getattr(chunk.choices[0], "token_ids", [])]
        return (await client.chat.completions.create(**fields)).choices[0].token_ids

    async def all_of_them(client):
        return await asyncio.gather(*(one(client, *pair) for pair in enumerate(PROMPTS)))

    return together(all_of_them)


@pytest.mark.parametrize("index", range(len(PROMPTS)))
def test_a_chat_among_others_is_that_of_the_engine_alone(chats, alone, tiny, index):
    prompt = tuple(tiny.encode_chat([{"role": "user", "content": PROMPTS[index]}]))
    assert chats[index] == of_alone(alone, index, prompt)


def test_a_stream_that_is_left_does_not_change_another(together, alone):
    async def main(client):
        fields = {"model": "tiny", "max_tokens": 12, "stream": True, "extra_body": IDS}
        kept = await client.completions.create(prompt="To be", seed=0, **fields)
        left = await client.completions.create(prompt="or not", seed=1, **fields)
        async for _ in left:
            break
        await left.close()
        return [t async for chunk in kept for t in getattr(chunk.choices[0], "token_ids", [])]

    assert together(main) == of_alone(alone, 0, "To be")


def test_the_asynchronous_client_raises_what_the_other_raises(together):
    async def main(client):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model="tiny", prompt="a", n=0)
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")
        return caught.value.param

    assert together(main) == "n"


def test_the_asynchronous_client_lists_the_model(together):
    async def main(client):
        return [model.id async for model in client.models.list()]

    assert together(main) == ["tiny"]


def test_the_sdks_accumulator_reads_a_stream(saying):
    client, _, _ = saying("All is well 😀.")
    fields = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hello"}],
        "n": 2,
        "logprobs": True,
        "top_logprobs": 1,
    }
    with client.chat.completions.stream(**fields) as stream:
        gathered = stream.get_final_completion()
    whole = client.chat.completions.create(**fields)
    for one, other in zip(gathered.choices, whole.choices, strict=True):
        assert one.message.content == other.message.content == "All is well 😀."
        assert one.logprobs.content == other.logprobs.content
        assert one.finish_reason == other.finish_reason == "stop"
