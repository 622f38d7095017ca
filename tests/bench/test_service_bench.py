"""The service's benchmark: both sides do the same work, and what cannot be compared is refused."""

import dataclasses

import pytest

from crucible.bench import service as bench
from crucible.cli import bench_service
from crucible.engine.engine import Engine
from crucible.engine.scheduler import Limits
from crucible.errors import InputError, UnavailableError
from crucible.gates.engine_record import tiny_model
from crucible.model.model import TINY
from crucible.service.load.asks import closed

LIMITS = Limits(queue=4, pages=64)


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def outcomes(model):
    return bench.run(TINY, model, "3x20", 6, 2)


def test_both_sides_are_timed_in_every_round(outcomes):
    for outcome in outcomes:
        assert [c.name for c in outcome.contenders] == ["service", "engine"]
        assert all(len(c.samples) == 2 and min(c.samples) > 0 for c in outcome.contenders)
        assert not outcome.stopped


def test_what_the_service_costs_follows_from_the_samples(outcomes):
    rates, times = outcomes
    (service, engine), (late, early) = rates.contenders, times.contenders
    lost = [100 * (1 - a / b) for a, b in zip(service.samples, engine.samples, strict=True)]
    more = [a - b for a, b in zip(late.samples, early.samples, strict=True)]
    assert service.facts == {
        "percent of the engine's lost": pytest.approx(sum(lost) / 2, abs=0.01),
        "percent allowed": 10.0,
    }
    assert late.facts == {"ms more than the engine": pytest.approx(sum(more) / 2, abs=0.001)}
    assert rates.higher_is_better and not times.higher_is_better


def test_a_burst_over_http_returns_the_tokens_of_the_engine(model):
    asks = [dataclasses.replace(ask, at=0.01 * i) for i, ask in enumerate(closed([20, 5], 4, 1, 0))]
    with Engine(model, LIMITS) as engine, bench.served(TINY, "f32", "cpu", LIMITS) as to:
        here, there = bench.engine_burst(engine, asks), bench.service_burst(to, asks)
        long = dataclasses.replace(asks[0], max_tokens=5000)
        with pytest.raises(UnavailableError, match="a request to the service failed"):
            bench.service_burst(to, [long])
    assert here.tokens == there.tokens and [len(tokens) for tokens in here.tokens] == [4, 4]
    assert 0 < here.ttft < 8 / here.rate


def test_sides_that_give_other_tokens_are_not_compared(model, monkeypatch):
    wrong = bench.Burst(1.0, 1.0, [[1]])
    monkeypatch.setattr(
        bench, "interleave", lambda *_, **__: {"service": [wrong], "engine": [bench.Burst(1, 1, [[2]])]}
    )
    monkeypatch.setattr(bench, "served", lambda *_: bench.contextlib.nullcontext())
    with pytest.raises(UnavailableError, match="gave other tokens"):
        bench.run(TINY, model, "1x4", 1, 1)


def test_a_service_that_cannot_start_is_told_by_its_last_words():
    with (
        pytest.raises(UnavailableError, match="did not start: error: no model at no-such-model"),
        bench.served("no-such-model", "f32", "cpu", LIMITS),
    ):
        pass


def test_a_shape_that_is_none_is_refused_before_a_model_is_loaded(monkeypatch):
    monkeypatch.setattr("crucible.cli.generate.load_model", lambda *_: pytest.fail("a model was loaded"))
    with pytest.raises(InputError, match="REQUESTSxTOKENS"):
        bench_service.service(shape="many", rounds=1)
