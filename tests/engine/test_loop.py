"""The loop over a ledger of pages: tokens as alone, pages conserved, whoever comes, goes or is preempted."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crucible.engine.events import RequestError, Result, TemperatureTooLow, Token
from crucible.engine.loop import Loop
from crucible.engine.runner import Outcome
from crucible.engine.scheduler import Limits

TOKENS = st.sampled_from([0, 0, 0, 0, 0, 7])  # few, so that texts often begin alike
PROMPTS = st.one_of(
    st.lists(TOKENS, min_size=1, max_size=70),
    st.builds(
        lambda n, t: [0] * n + t, st.sampled_from([15, 16, 17, 31, 32, 33]), st.lists(TOKENS, max_size=3)
    ),
)
SUBMIT = st.tuples(PROMPTS, st.integers(1, 40), st.integers(0, 2))
CANCEL = st.integers(0, 9)
STEP = st.just("step")


@st.composite
def limits(draw):
    return Limits(
        prefill_budget=draw(st.integers(1, 90)),
        chunk_cap=draw(st.one_of(st.none(), st.integers(1, 33))),
        decode_batch=draw(st.integers(1, 6)),
        pages=draw(st.integers(7, 24)),
    )


def drain(loop: Loop, most: int = 5000) -> list:
    """Step until nothing is left, checking the pages after each; the events."""
    events = []
    for _ in range(most):
        if not loop.busy:
            return events
        events += loop.step()
        loop.pool.check()
    raise AssertionError("the loop does not come to an end")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(SUBMIT, SUBMIT, CANCEL, STEP, STEP, STEP), max_size=40), limits(), st.booleans())
def test_whatever_happens_a_request_gets_its_own_tokens(ledger, make_job, expected, operations, bound, share):
    """Arrivals, cancellations at any step, small pools, preemption and shared prefixes."""
    runner = ledger(bound.pages)
    loop = Loop(runner, bound, share)
    jobs, events = [], []
    for operation in operations:
        if operation == "step":
            if loop.busy:
                events += loop.step()
        elif isinstance(operation, int):
            if jobs:
                events += loop.cancel([jobs[operation % len(jobs)].id])
        else:
            prompt, count, seed = operation
            count = min(count, 16 * bound.pages - len(prompt) + 1)
            jobs.append(make_job(len(jobs), prompt, count, seed=seed))
            loop.submit(jobs[-1])
        loop.pool.check()
    events += drain(loop)

    for job in jobs:
        mine = [event for owner, event in events if owner is job]
        result = mine[-1]
        assert isinstance(result, Result) and all(isinstance(event, Token) for event in mine[:-1])
        tokens = expected(job.request.prompt, job.request.params, job.request.max_tokens)
        assert result.finish_reason in ("length", "cancelled")
        assert result.tokens == tokens[: len(result.tokens)] == [event.token for event in mine[:-1]]
        assert len(result.tokens) == len(tokens) or result.finish_reason == "cancelled"
        assert (result.random_state.seed, result.random_state.next_draw) == (
            job.request.params.seed,
            len(result.tokens),
        )
    assert loop.pool.used == 0 and (share or loop.pool.cached == 0) and not runner.tables
    loop.pool.clear()
    loop.pool.check()
    assert loop.pool.free == bound.pages
    for step in runner.steps:
        rows = sum(len(part.ids) for part in step if len(part.ids) > 1 or part.start == 0)
        assert rows <= bound.prefill_budget + bound.decode_batch


def test_prompt_rows_run_once_each_and_only_those_that_no_page_holds(ledger, make_job):
    runner = ledger(32)
    loop = Loop(runner, Limits(pages=32, prefill_budget=24))
    loop.submit(make_job(0, [1] * 40, 1))
    drain(loop)
    loop.submit(make_job(1, [1] * 50, 1))
    drain(loop)
    rows = [(part.start, len(part.ids)) for step in runner.steps for part in step]
    assert rows == [(0, 24), (24, 16), (32, 18)]
    assert loop.pool.saved_rows == 32 and loop.totals.prefill_rows == 58


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33])
@pytest.mark.parametrize("second", [15, 16, 17, 18, 31, 32, 33, 34])
def test_prefixes_about_a_page_long(ledger, make_job, expected, length, second):
    runner = ledger(16)
    loop = Loop(runner, Limits(pages=16))
    for id, (rows, count) in enumerate(((length, 1), (second, 20))):
        loop.submit(make_job(id, [1] * rows, count))
        (*_, (job, result)) = drain(loop)
        assert result.tokens == expected([1] * rows, job.request.params, count)
    assert result.cached_rows == min(length // 16 * 16, second - 1)


def test_a_hit_ends_in_the_middle_of_a_chunk(ledger, make_job, expected):
    runner = ledger(16)
    loop = Loop(runner, Limits(pages=16, chunk_cap=24))
    loop.submit(make_job(0, [1] * 32, 1))
    drain(loop)
    loop.submit(make_job(1, [*[1] * 30, *[2] * 40], 2))
    loop.step()
    assert loop.pool.used == len(loop.pool.pages_of(1))  # the copied page is held no longer
    (*_, (job, result)) = drain(loop)
    # 16 rows by a whole page, 14 by a copy; chunks of the cap go on from there.
    assert [(p.start, len(p.ids)) for step in runner.steps[2:] for p in step] == [(30, 24), (54, 16), (70, 1)]
    assert result.cached_rows == 30
    assert result.tokens == expected(job.request.prompt, job.request.params, 2)


def test_two_requests_fill_the_same_page_at_once_and_share_it_from_then_on(ledger, make_job, expected):
    runner = ledger(16)
    loop = Loop(runner, Limits(pages=16))
    jobs = [make_job(id, [1] * 20, 30) for id in range(2)]
    for job in jobs:
        loop.submit(job)
    loop.step()
    loop.pool.check()
    first, second = (loop.pool.pages_of(job.id) for job in jobs)
    assert first[0] == second[0] and first[1] != second[1] and loop.pool.adopted == 1
    results = [event for _, event in drain(loop) if isinstance(event, Result)]
    assert [r.tokens for r in results] == [expected([1] * 20, job.request.params, 30) for job in jobs]


def test_eviction_under_pressure_does_not_touch_a_hit(ledger, make_job, expected):
    runner = ledger(8)
    loop = Loop(runner, Limits(pages=8))
    loop.submit(make_job(0, [1] * 64, 1))
    drain(loop)  # four cached pages
    texts = [[*[1] * 32, 5], [9] * 60]  # the second needs what the first leaves, and evicts
    for id, text in enumerate(texts, 1):
        loop.submit(make_job(id, text, 20))
    results = {owner.id: event for owner, event in drain(loop) if isinstance(event, Result)}
    assert loop.pool.evictions and results[1].cached_rows == 32
    for id, text in enumerate(texts, 1):
        assert results[id].tokens == expected(text, make_job(id, text, 20).request.params, 20)


@pytest.mark.parametrize("budget", [1024, 16, 3])
def test_the_youngest_is_preempted_and_resumes_as_if_nothing_had_happened(ledger, make_job, expected, budget):
    loop = Loop(ledger(6), Limits(pages=6, prefill_budget=budget), share=False)
    jobs = [make_job(id, [id + 1] * 20, 50) for id in range(2)]
    for job in jobs:
        loop.submit(job)
    events = drain(loop)
    results = {job.id: event for job, event in events if isinstance(event, Result)}
    assert results[0].preemptions == 0 and results[1].preemptions > 0
    assert [job.id for job, event in events if isinstance(event, Result)] == [0, 1]
    for job in jobs:
        assert results[job.id].tokens == expected(job.request.prompt, job.request.params, 50)
        numbers = [event.index for owner, event in events if owner is job and isinstance(event, Token)]
        assert numbers == list(range(50))  # no token twice, none missing
    assert loop.totals.recomputed_rows > 0


def test_steps_are_counted_by_the_kinds_of_rows_that_they_run(ledger, make_job):
    loop = Loop(ledger(16), Limits(pages=16))
    loop.submit(make_job(0, [1] * 20, 4))
    loop.submit(make_job(1, [2] * 5, 4))
    loop.step()  # both prompts
    loop.step()  # two decode
    loop.submit(make_job(2, [3] * 7, 2))
    loop.step()  # the third prompt beside two decoding requests
    drain(loop)
    totals, steps = loop.totals, loop.timeline
    assert (totals.prefill_steps, totals.mixed_steps, totals.decode_steps) == (1, 1, 2)
    assert (totals.mixed_prefill_rows, totals.mixed_decode_rows) == (7, 2)
    assert [(s.prefill_requests, s.decode_rows) for s in steps] == [(2, 0), (0, 2), (1, 2), (0, 3)]


@pytest.mark.parametrize("moment", ["queued", "mid-chunk", "between steps", "decoding"])
def test_a_cancelled_request_returns_its_pages_before_the_next_step(ledger, make_job, moment):
    loop = Loop(ledger(8), Limits(pages=8, prefill_budget=16))
    job = make_job(0, [1] * 40, 50)
    loop.submit(job)
    for _ in range({"queued": 0, "mid-chunk": 1, "between steps": 3, "decoding": 9}[moment]):
        loop.step()
    made = job.made
    ((owner, result),) = loop.cancel([0])
    loop.pool.check()
    assert owner is job and result.finish_reason == "cancelled" and len(result.tokens) == made
    assert loop.pool.used == 0 and not loop.busy
    loop.submit(make_job(1, [3] * 128, 1))  # needs all eight pages, at once
    assert isinstance(drain(loop)[-1][1], Result)
    assert loop.cancel([0, 1, 77]) == []


def test_a_newcomer_does_not_evict_what_the_next_one_is_about_to_hit(ledger, make_job, expected):
    loop = Loop(ledger(8), Limits(pages=8))
    for id, text in enumerate(([1] * 64, [2] * 48)):
        loop.submit(make_job(id, text, 1))
        drain(loop)
    assert (loop.pool.free, loop.pool.cached) == (1, 7)
    texts = {2: [9] * 64, 3: [*[1] * 32, 5]}  # the first takes four pages, the oldest of those cached
    for id, text in texts.items():
        loop.submit(make_job(id, text, 3))
    events = loop.step()
    loop.pool.check()
    results = {job.id: event for job, event in events + drain(loop) if isinstance(event, Result)}
    assert results[3].cached_rows == 32 and loop.pool.evictions >= 3
    for id, text in texts.items():
        assert results[id].tokens == expected(text, make_job(id, text, 3).request.params, 3)


def test_cached_pages_are_reused_while_their_text_is_away(ledger, make_job, expected):
    """A preempted request finds its own pages again if nobody needed them."""
    loop = Loop(ledger(8), Limits(pages=8))
    jobs = [make_job(0, [1] * 50, 60), make_job(1, [2] * 30, 60)]
    for job in jobs:
        loop.submit(job)
    results = {job.id: event for job, event in drain(loop) if isinstance(event, Result)}
    assert results[1].preemptions and loop.pool.hits
    for job in jobs:
        assert results[job.id].tokens == expected(job.request.prompt, job.request.params, 60)


@pytest.mark.parametrize("cold", [False, True])
def test_a_failing_row_ends_its_request_and_no_other(ledger, make_job, expected, cold):
    class Failing(ledger):
        def run(self, parts):
            done = super().run(parts)
            mine = [i for i, p in enumerate(p for p in parts if p.sampling) if p.sampling.params.seed == 1]
            return [
                Outcome(-1, error="the logits hold a NaN", cold=cold)
                if i in mine and len(self.steps) == 5
                else outcome
                for i, outcome in enumerate(done)
            ]

    loop = Loop(Failing(32), Limits(pages=32))
    jobs = [make_job(id, [1] * 20, 40) for id in range(3)]
    for job in jobs:
        loop.submit(job)
    ends = {job.id: event for job, event in drain(loop) if not isinstance(event, Token)}
    assert type(ends[1]) is (TemperatureTooLow if cold else RequestError)
    assert "request 1 failed at token 4: the logits" in str(ends[1])
    for id in (0, 2):
        assert ends[id].tokens == expected([1] * 20, jobs[id].request.params, 40)
    assert loop.pool.used == 0 and loop.totals.failed == 1


def test_a_pass_that_returns_too_few_tokens_is_in_doubt(ledger, make_job):
    class Short(ledger):
        def run(self, parts):
            return super().run(parts)[:-1]

    loop = Loop(Short(8), Limits(pages=8))
    loop.submit(make_job(0, [1], 3))
    with pytest.raises(RuntimeError, match="returned 0 outcomes"):
        loop.step()


def test_the_ledger_notices_a_hit_with_wrong_content(ledger, make_job, expected):
    loop = Loop(ledger(16), Limits(pages=16))
    loop.submit(make_job(0, [1] * 20, 1))
    drain(loop)
    (node,) = loop.pool._roots["ledger"].values()
    loop.pool._roots["ledger"] = {(2,) * 16: node}  # as if only a hash had been compared, and collided
    loop.submit(make_job(1, [2] * 20, 1))
    runner = loop.runner
    assert runner.pages[node.page][0][1] == 1
    (*_, (job, result)) = drain(loop)
    assert result.cached_rows == 16 and result.tokens != expected([2] * 20, job.request.params, 1)
