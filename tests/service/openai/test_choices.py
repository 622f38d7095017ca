"""n choices of one request: choice i is the single request with seed S + i, and all run together."""

import openai
import pytest

from crucible.engine.scheduler import Limits

IDS = {"return_token_ids": True}


@pytest.fixture(params=["completion", "chat"])
def ask(request, complete, chat):
    """Either endpoint."""
    return complete if request.param == "completion" else chat


def ids(choices) -> list[list[int]]:
    return [choice.token_ids for choice in choices]


@pytest.mark.parametrize("seed", [0, 7, 2**53, 2**64 - 2], ids=["zero", "small", "beyond-f64", "wrapping"])
def test_choice_i_is_the_single_request_with_seed_s_plus_i(ask, seed):
    singles = [ask(seed=(seed + i) % 2**64, max_tokens=6, extra_body=IDS).choices[0] for i in range(4)]
    together = ask(seed=seed, n=4, max_tokens=6, extra_body=IDS).choices
    assert ids(together) == ids(singles)
    assert len({tuple(one) for one in ids(together)}) > 1


def test_choices_are_in_the_order_of_their_seeds(ask):
    assert [choice.index for choice in ask(n=5, max_tokens=1).choices] == [0, 1, 2, 3, 4]


def test_streamed_choices_are_those_of_the_whole_reply(ask, gathered):
    fields = {"seed": 21, "n": 3, "max_tokens": 6, "extra_body": IDS}
    assert [one["token_ids"] for one in gathered(ask(stream=True, **fields))] == ids(ask(**fields).choices)


def test_greedy_choices_are_equal(ask):
    first, second = ids(ask(temperature=0, n=2, max_tokens=6, extra_body=IDS).choices)
    assert first == second


def test_a_drawn_seed_is_reported_and_gives_the_reply_again(ask):
    reply = ask(n=2, max_tokens=6, extra_body=IDS)
    assert ids(ask(n=2, max_tokens=6, seed=reply.seed, extra_body=IDS).choices) == ids(reply.choices)


def test_a_streams_drawn_seed_is_in_every_chunk_and_gives_the_reply_again(ask, gathered):
    chunks = list(ask(stream=True, max_tokens=6, extra_body=IDS))
    (seed,) = {chunk.seed for chunk in chunks}
    assert [one["token_ids"] for one in gathered(chunks)] == ids(
        ask(seed=seed, max_tokens=6, extra_body=IDS).choices
    )


def test_drawn_seeds_differ_and_every_json_reader_keeps_them(ask):
    seeds = [ask(max_tokens=1).seed for _ in range(3)]
    assert len(set(seeds)) == 3 and all(0 <= seed < 2**53 for seed in seeds)


def test_a_given_seed_is_reported(ask):
    assert ask(seed=2**64 - 1, max_tokens=1).seed == 2**64 - 1


def test_best_of_equal_to_n_changes_nothing(complete):
    plain = complete(seed=1, n=2, max_tokens=4).choices
    assert complete(seed=1, n=2, best_of=2, max_tokens=4).choices == plain


def test_all_choices_run_in_one_batch(saying):
    client, server, _ = saying("abc")
    before = server.engine.stats().totals.steps
    client.completions.create(model="tiny", prompt="x", n=6)
    after = server.engine.stats()
    rows = [step.decode_rows for step in after.timeline[before - after.totals.steps :]]
    assert rows == [0, 6, 6, 6]


def test_choices_are_queued_all_or_none(scripted):
    client, server, runner = scripted("abc", limits=Limits(queue=3, decode_batch=1))
    runner.gate.clear()
    waiting = [client.completions.create(model="tiny", prompt=one, stream=True) for one in ("x", "y")]
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model="tiny", prompt="z", n=3)
    runner.gate.set()
    assert ["".join(chunk.choices[0].text for chunk in stream) for stream in waiting] == ["abc", "abc"]
    assert server.engine.stats().totals.submitted == 2


def test_more_choices_than_may_wait_at_all_are_refused_at_once(scripted):
    client, _, _ = scripted("abc", limits=Limits(queue=3))
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt=["x", "y"], n=2)
    assert (caught.value.param, caught.value.code) == ("n", "too_many_choices")
