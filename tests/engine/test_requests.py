"""Requests that break a rule are refused in one sentence, and nothing of them is kept."""

import math

import pytest

from crucible.engine.engine import Engine
from crucible.engine.events import EngineStopped
from crucible.engine.request import Request
from crucible.engine.runner import ModelRunner
from crucible.engine.scheduler import Limits
from crucible.errors import CrucibleError, InputError, UnsupportedError


@pytest.fixture(scope="module")
def engine(model):
    with Engine(model, Limits(pages=10)) as engine:
        yield engine


WRONG = [
    ("", {}, "empty"),
    ([], {}, "empty"),
    (None, {}, "list of integers"),
    ("x" * 192, {"max_tokens": 1}, "context of 192"),
    ("x" * 100, {"max_tokens": 93}, "at most 92"),
    ("x" * 150, {"max_tokens": 12}, "need 11 pages of 16, the engine has 10"),
    ([300], {}, "300"),
    ([5, -1], {}, "-1 at position 1"),
    ([1.5], {}, "integers"),
    ([True], {}, "integers"),
    ("\ud800", {}, "Unicode"),
    ("a", {"temperature": math.nan}, "temperature"),
    ("a", {"temperature": -0.5}, "temperature"),
    ("a", {"temperature": math.inf}, "temperature"),
    ("a", {"max_tokens": 0}, "max_tokens"),
    ("a", {"max_tokens": True}, "max_tokens"),
    ("a", {"top_k": -1}, "top_k"),
    ("a", {"top_p": 0}, "top_p"),
    ("a", {"top_p": math.nan}, "top_p"),
    ("a", {"seed": -1, "temperature": 1.0}, "seed"),
    ("a", {"seed": 1 << 64, "temperature": 1.0}, "seed"),
    ("a", {"seed": "5", "temperature": 1.0}, "seed"),
    ("a", {"seed": 5.0, "temperature": 1.0}, "seed"),
    ("a", {"seed": True}, "seed"),
    ("a", {"sampler": "dice"}, "dice"),
    ("a", {"stop": (300,)}, "300"),
    ("a", {"stop": "x"}, "token ids"),
    ("a", {"stop_strings": "end"}, "list of texts"),
    ("a", {"stop_strings": ("",)}, "1 to 256"),
    ("a", {"stop_strings": (5,)}, "1 to 256"),
    ("a", {"stop_strings": ("x",) * 17}, "at most 16"),
    ("a", {"stop_strings": ("a\ud800",)}, "Unicode"),
    ("a", {"logprobs": -1}, "logprobs"),
    ("a", {"logprobs": 65}, "logprobs"),
    ("a", {"logprobs": True}, "logprobs"),
    ("a", {"ignore_eos": "no"}, "ignore_eos"),
    ("a", {"digests": 1}, "digests"),
    ("a", {"presence_penalty": 0.5}, "presence_penalty"),
    ("a", {"logit_bias": {}}, "logit_bias"),
    ("a", {"sead": 5}, "sead"),
    ("a", {"variant": "online-k32"}, "variant"),
]


@pytest.mark.parametrize(("prompt", "fields", "named"), WRONG)
def test_a_request_that_breaks_a_rule_is_refused_whole(engine, prompt, fields, named):
    before = engine.stats()
    with pytest.raises(CrucibleError) as refused:
        engine.submit(prompt, **fields)
    assert named in str(refused.value) and "\n" not in str(refused.value)
    after = engine.stats()
    assert (after.totals.submitted, after.waiting, after.pages_used) == (before.totals.submitted, 0, 0)


def test_one_wrong_request_of_a_list_refuses_the_list_before_any_runs(engine):
    before = engine.stats().totals.submitted
    with pytest.raises(InputError, match="empty"):
        engine.generate(["fine", ""], max_tokens=2)
    assert engine.stats().totals.submitted == before


@pytest.mark.parametrize("one", ["hello", Request("hello"), b"hello", {"a": 1}, None, 5])
def test_a_single_request_is_no_list_of_its_letters(engine, one):
    before = engine.stats().totals.submitted
    with pytest.raises(InputError, match="requests must be a list"):
        engine.generate(one, max_tokens=2)
    assert engine.stats().totals.submitted == before


def test_a_request_that_was_not_checked_is_refused_and_stops_nobody(engine):
    good = engine.check("a", max_tokens=1)
    for wrong in (Request("a"), "a", None):
        with pytest.raises(InputError, match="no checked request"):
            engine.submit_all([(0, good), (1, wrong)], lambda news: None)
    assert engine.failure is None and len(engine.submit("a", max_tokens=1).result(60).tokens) == 1


def test_the_last_position_of_the_context_and_of_the_pages_can_be_used(model):
    with Engine(model, Limits(pages=12)) as engine:  # 192 positions
        assert len(engine.submit("x" * 100, max_tokens=92, ignore_eos=True).result(60).tokens) == 92
    with Engine(model, Limits(pages=10)) as engine:  # the last token is not stored
        assert len(engine.submit("x" * 150, max_tokens=11, ignore_eos=True).result(60).tokens) == 11


def test_a_diagnostic_attention_is_refused_and_not_served_under_the_promise(model, monkeypatch):
    monkeypatch.setenv("CRUCIBLE_PREFILL_ATTN", "q2-k32")
    with pytest.raises(UnsupportedError, match="online-q2-k32 does not keep the contract's bits"):
        Engine(model)
    monkeypatch.setenv("CRUCIBLE_PREFILL_ATTN", "reference")
    runner = ModelRunner(model, 4, 1)
    assert runner.variant == "reference"


def test_a_request_is_its_fields_and_changes_make_another(engine):
    request = Request("abc", max_tokens=3)
    assert engine.check(request, max_tokens=4).max_tokens == 4 and request.max_tokens == 3


@pytest.mark.parametrize("wrong", [{"limits": {"pages": 4}}, {"limits": 4}, {"share_prefixes": "no"}])
def test_an_engine_of_other_things_than_it_takes_is_refused(model, wrong):
    (name,) = wrong
    with pytest.raises(InputError, match=f"{name} .* must be a "):
        Engine(model, **wrong)
    with pytest.raises(InputError, match="model 'smollm2' must be a Model"):
        Engine("smollm2")


def test_a_closed_engine_takes_nothing(model):
    engine = Engine(model, Limits(pages=4))
    engine.close()
    engine.close()
    with pytest.raises(EngineStopped, match="closed"):
        engine.submit("a", max_tokens=1)
