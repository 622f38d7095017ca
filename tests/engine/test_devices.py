"""The engine where the CUDA sources run: the bits of a request alone on the cpu, by graphs and without."""

import dataclasses

import numpy as np
import pytest

from crucible import device as devices
from crucible.attention import run as attention
from crucible.engine.engine import Engine
from crucible.engine.events import RequestError
from crucible.engine.loop import Loop
from crucible.engine.request import Request
from crucible.engine.runner import ModelRunner, Part, Sampling
from crucible.engine.scheduler import Limits
from crucible.gates.engine import drive, generated_alone
from crucible.gates.engine_workloads import Workload
from crucible.model import synthetic
from crucible.model.generate import generate
from crucible.model.model import Model
from crucible.sampling.params import SamplingParams

DEVICES = ["simt", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module", params=DEVICES)
def pair(request, make_model) -> tuple[Model, Model]:
    """A tiny model on a device that runs the CUDA sources, and the same on the cpu."""
    small = {"layers": 1, "context": 64}
    judge = make_model(**small)
    checkpoint = synthetic.open_synthetic(judge.config, 7, "tiny")
    return Model.from_checkpoint(checkpoint, devices.get(request.param)), judge


WORK = [
    Request((7, 8, 9), max_tokens=3, ignore_eos=True, digests=True, kv_digests=True),
    Request(
        tuple(range(18)),
        max_tokens=3,
        temperature=1.0,
        seed=4,
        ignore_eos=True,
        digests=True,
        kv_digests=True,
    ),
    Request((*range(10), 5, 6), max_tokens=2, temperature=1.3, seed=5, sampler="gumbel-id", top_k=9),
]


@pytest.mark.parametrize("recorded", [True, False])
def test_requests_together_have_the_bits_of_the_cpu_alone(pair, recorded):
    model, judge = pair
    limits = Limits(pages=8, decode_batch=3, prefill_budget=16)
    runner = ModelRunner(model, 8, 3, page_seed=2, recorded=recorded)
    with Engine(model, limits, runner=runner) as engine:
        results = engine.generate(WORK[:2]) + engine.generate(WORK[2:])  # the last hits ten rows
        stats = engine.stats()
    for request, result in zip(WORK, results, strict=True):
        solo = generated_alone(judge, request)
        assert result.tokens == solo.tokens and result.random_state == solo.random_state
        if request.digests:
            assert result.logits_digests == solo.logits_digests
            assert (result.k_digest, result.v_digest) == (solo.k_digest, solo.v_digest)
    assert (stats.saved_rows, stats.page_copies) == (10, 1) and stats.pages_used == 0


def test_a_history_that_the_chosen_variant_does_not_cover_stops_nobody(make_model, monkeypatch, caplog):
    judge = make_model(layers=1, heads=4, kv_heads=2, head_dim=64, context=256)
    checkpoint = synthetic.open_synthetic(judge.config, 7, "tiny")
    model = Model.from_checkpoint(checkpoint, devices.get("simt"))
    work = [
        Request(tuple(range(9)), 6, ignore_eos=True),
        Request(tuple(i % 50 for i in range(126)), 6, ignore_eos=True),
    ]
    solo = [generated_alone(judge, one).tokens for one in work]
    monkeypatch.setenv("CRUCIBLE_PREFILL_ATTN", "fast-rows")
    attention._warn.cache_clear()  # said once a process
    with Engine(model, Limits(pages=24)) as engine:
        assert [result.tokens for result in engine.generate(work)] == solo
        assert engine.generate(work[:1])[0].tokens == solo[0]
    assert "falls back to the reference" in caplog.text


def test_logits_that_one_row_may_not_have_end_that_request_only(pair):
    model, _ = pair

    class Poisoned(ModelRunner):
        """Puts NaN into a request's own K before its second token, as a broken page would."""

        def run(self, parts):
            for part in parts:
                if part.sampling and part.sampling.params.seed == 13 and part.sampling.draw == 1:
                    page = int(self.cache.tables.array[part.slot, 0])
                    self.cache.kpool[page] = np.float32(np.nan)
            return super().run(parts)

    runner = Poisoned(model, 8, 3)
    work = [Request((1, 2, 3), 3, temperature=1.0, seed=seed, ignore_eos=True) for seed in (12, 13)]
    with (
        Engine(model, Limits(pages=8, decode_batch=3), runner=runner) as engine,
        pytest.raises(RequestError, match="failed at token 1: the logits hold a NaN") as failed,
    ):
        engine.generate(work)
    good, bad = failed.value.results
    assert bad is None and len(good.tokens) == 3


def test_steps_run_ahead_and_what_nobody_asked_for_is_dropped(pair):
    """Requests end at different times, one by a stop token, one is cancelled, one comes late."""
    model, judge = pair
    texts = [(1, 2, 3), (4, 5, 6, 7), (8, 9), tuple(range(20)), (1, 2, 9)]
    work = [
        Request(
            text, max_tokens=22 + 2 * index, temperature=1.2, seed=index, ignore_eos=True, kv_digests=True
        )
        for index, text in enumerate(texts)
    ]
    alone = [
        generate(judge, q.prompt, max_tokens=q.max_tokens, temperature=1.2, seed=q.seed, ignore_eos=True)
        for q in work
    ]
    stop = next(token for token in alone[1].tokens[12:] if token not in alone[1].tokens[:12])
    work[1] = dataclasses.replace(work[1], stop=(stop,))
    limits = Limits(pages=24, decode_batch=5)
    runner = ModelRunner(model, 24, 5, page_seed=1)
    workload = Workload("ahead", tuple(work), limits, (0, 0, 0, 0, 7), {2: 9})
    under_way = []

    class Watched(Loop):
        def step(self):
            events = super().step()
            decoding = runner._ahead._decoding
            under_way.append(0 if decoding is None else decoding.pending)
            return events

    loop = Watched(runner, limits)
    ends = drive(loop, model, workload)
    assert sum(under_way) >= 10 and under_way[-1] == 0
    for index, end in ends.items():
        assert end.tokens == alone[index].tokens[: len(end.tokens)]
    assert [ends[i].finish_reason for i in range(5)] == ["length", "stop", "cancelled", "length", "length"]
    assert ends[1].tokens[-1] == stop and runner._ahead.narrowed >= 1
    for index in (0, 3, 4):
        assert len(ends[index].tokens) == work[index].max_tokens
        assert (ends[index].k_digest, ends[index].v_digest) == (alone[index].k_digest, alone[index].v_digest)


def test_a_row_under_way_is_not_given_to_the_next_request_in_its_slot(pair):
    """The one that left, and one that resumes there, feed the same token at the same position and draw."""
    model, judge = pair
    runner, greedy, draw = ModelRunner(model, 4, 2), SamplingParams(), 4
    prompt, other = [1, 2, 3], [9] * 6
    runner.set_pages(1, [1], 0, 0)
    runner.run([Part(1, 0, other, None)])
    runner.clear(1, [1], 0)
    runner.set_pages(0, [0], 0, 0)
    known = list(prompt)
    for number in range(draw):
        start = len(known) - 1 if number else 0
        known.append(runner.run([Part(0, start, known[start:], Sampling(greedy, number))])[0].token)
    assert runner._ahead._decoding.pending == 1 and len(known) == len(other) + 1
    runner.clear(0, [0], 0)
    runner.set_pages(0, [1], 0, len(other))
    (outcome,) = runner.run([Part(0, len(other), known[-1:], Sampling(greedy, draw))])
    left, alone = (
        generate(judge, text, max_tokens=1, ignore_eos=True).tokens for text in (known, [*other, known[-1]])
    )
    assert [outcome.token] == alone != left
