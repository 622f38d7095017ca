"""Prompts of A/B, sweep and load: what a service has cached of earlier ones changes no later pass."""

import itertools

import pytest

from crucible.bench import ab_workloads, sweep
from crucible.engine.scheduler import Limits, pages_for
from crucible.kv.prefix import PrefixPool
from crucible.service.load import plan

ONE_LENGTH = [w.name for w in ab_workloads.standard() if w.name[0].isdigit()]
SETS = {
    "standard": ab_workloads.standard(),
    "few bursts": ab_workloads.standard(bursts=4),
    "many bursts": ab_workloads.choose(ab_workloads.standard(bursts=12), ONE_LENGTH),
    "out of order": ab_workloads.choose(ab_workloads.standard(), ["16x33", "arrival", "3x77", "2x33"]),
    "quick": ab_workloads.quick(),
    "sweep": sweep.workloads(False, 64, 6),
    "quick sweep": sweep.workloads(True, 8, 3),
}


def found(bursts) -> int:
    """Prompts of bursts that find a row of an earlier burst's in the pages that a service has by default."""
    pool, numbers, hits = PrefixPool(Limits().pages), itertools.count(), 0
    for burst in bursts:
        hits += sum(pool.match(ask.prompt, "").rows > 0 for ask in burst)
        held = {next(numbers): (*ask.prompt, *(0,) * ask.max_tokens) for ask in burst}
        for holder, tokens in held.items():
            pool.allocate(pages_for(len(tokens)), holder)
        for holder, tokens in held.items():
            pool.commit(holder, tokens, len(tokens) - 1, "")
            pool.release(holder)
    return hits


@pytest.mark.parametrize("name", SETS)
def test_no_prompt_of_a_set_finds_a_row_of_an_earlier_one(name):
    assert found(w.asks(i) for w in SETS[name] for i in range(w.all_bursts)) == 0


def test_the_same_prompts_asked_again_would_be_found():
    first = SETS["quick"][0]
    assert found([first.asks(0), first.asks(0)]) == 2


def test_no_two_workloads_or_bursts_share_a_beginning():
    heads = [ask.prompt[:6] for w in ab_workloads.standard() for i in range(7) for ask in w.asks(i)]
    assert len(set(heads)) == len(heads)
    assert ab_workloads.standard()[3].asks(2) == ab_workloads.standard()[3].asks(2)


def test_warmups_of_arrivals_begin_as_none_that_is_timed():
    made = plan.arriving("fixed", 10.0, 20, [64, 33], 8, 3, seed=5)
    assert found(made.bursts) == 0


def test_bursts_of_the_client_beside_begin_as_none_of_ours():
    ours = plan.closed("4x64", 3, 8, 1, seed=5)
    theirs = plan.closed("4x64", 3, 8, 1, seed=5, begin=ours.count)
    assert found(burst for pair in zip(ours.bursts, theirs.bursts, strict=True) for burst in pair) == 0
