"""The scheduler as a pure function: its limits, its order, and that everything comes to an end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crucible.engine.scheduler import Limits, Running, State, Waiting, pages_for, plan
from crucible.errors import InputError


@st.composite
def limits(draw) -> Limits:
    return Limits(
        prefill_budget=draw(st.integers(1, 80)),
        chunk_cap=draw(st.one_of(st.none(), st.integers(1, 40))),
        decode_batch=draw(st.integers(1, 8)),
        pages=draw(st.integers(8, 40)),
    )


@st.composite
def states(draw) -> tuple[State, Limits]:
    """Any state that may come up, hits of the prefix cache among it."""
    given_limits, ids = draw(limits()), iter(range(100))
    running = []
    for _ in range(draw(st.integers(0, given_limits.decode_batch))):
        end = draw(st.integers(1, 100))
        stored = draw(st.integers(0, end + 40))
        pages = max(pages_for(max(end, stored)), 1)
        running.append(Running(next(ids), stored, end, pages, draw(st.integers(0, pages))))
    waiting = []
    for _ in range(draw(st.integers(0, 8))):
        rows = draw(st.integers(1, 16 * given_limits.pages))
        hit = draw(st.integers(0, (rows - 1) // 16))
        tail = draw(st.integers(0, min(15, rows - 1 - 16 * hit)))
        cost = draw(st.integers(0, 1)) if tail else 0
        waiting.append(Waiting(next(ids), rows, hit, draw(st.integers(0, hit)), tail, cost))
    return State(waiting, running, draw(st.integers(0, given_limits.pages))), given_limits


@settings(max_examples=400, deadline=None)
@given(states())
def test_a_plan_keeps_every_limit(case):
    state, bound = case
    step = plan(state, bound)
    running, waiting = {r.id: r for r in state.running}, {w.id: w for w in state.waiting}
    alive = [r for r in state.running if r.id not in step.preempt]

    assert sum(c.length for c in step.prefill) <= bound.prefill_budget
    assert all(1 <= c.length <= (bound.chunk_cap or c.length) for c in step.prefill)
    assert len(alive) + len(step.admit) <= max(bound.decode_batch, len(state.running))
    assert len({c.id for c in step.prefill}) == len(step.prefill)

    # Every decoding request that stays has its row, with a page to write it to.
    assert step.decode == [r.id for r in alive if r.stored >= r.end]
    assert step.grow == [id for id in step.decode if running[id].stored == 16 * running[id].pages]
    got_back = sum(running[id].exclusive for id in step.preempt)
    assert len(step.grow) <= state.available + got_back or alive == [state.running[0]]

    # The youngest goes first, never the oldest, and nobody comes in such a step.
    assert step.preempt == [r.id for r in state.running][::-1][: len(step.preempt)]
    assert not state.running or state.running[0].id not in step.preempt
    assert not (step.preempt and step.admit)

    # Admission in the order of the queue, within the pages; rows that are there already are not run again.
    assert [a.id for a in step.admit] == [w.id for w in state.waiting[: len(step.admit)]]
    cost = 0
    for a in step.admit:
        w = waiting[a.id]
        assert a.hit_pages == w.hit_pages and a.tail_rows in (0, w.tail_rows)
        assert a.new_pages == pages_for(w.rows) - w.hit_pages
        cost += pages_for(w.rows) - w.live_pages + (w.tail_cost if a.tail_rows else 0)
    assert not step.admit or cost + len(step.grow) <= state.available

    # The budget: oldest remainder first; who comes later gets rows only if the earlier ones got all they may.
    starts = {r.id: (r.stored, r.end) for r in alive if r.stored < r.end}
    starts |= {a.id: (16 * a.hit_pages + a.tail_rows, waiting[a.id].rows) for a in step.admit}
    order = [c.id for c in step.prefill]
    assert order == [id for id in starts if id in order]
    for number, chunk in enumerate(step.prefill):
        start, end = starts[chunk.id]
        assert chunk.start == start and chunk.last == (start + chunk.length == end)
        if number + 1 < len(step.prefill):
            assert chunk.length == min(end - start, bound.chunk_cap or end)
    assert set(order) == set(starts) or sum(c.length for c in step.prefill) == bound.prefill_budget


@settings(max_examples=200, deadline=None)
@given(states())
def test_a_plan_is_a_function_of_its_state(case):
    assert plan(*case) == plan(*case)


@st.composite
def workloads(draw):
    bound = draw(limits())
    most = 16 * bound.pages
    jobs = []
    for _ in range(draw(st.integers(1, 12))):
        prompt = draw(st.integers(1, min(most, 120)))
        jobs.append((draw(st.integers(0, 12)), prompt, draw(st.integers(1, min(most - prompt + 1, 40)))))
    cancels = draw(st.dictionaries(st.integers(0, 11), st.integers(0, 30), max_size=4))
    return bound, jobs, cancels


@settings(max_examples=200, deadline=None)
@given(workloads())
def test_every_request_ends_and_is_never_starved(case):
    """A world of numbers: arrivals, cancellations, decode growth and preemption, without shared pages."""
    bound, jobs, cancels = case
    arrive = {id: at for id, (at, _, _) in enumerate(jobs)}
    made = dict.fromkeys(arrive, 0)
    running: dict[int, list[int]] = {}  # id -> stored, end, pages
    waiting: list[int] = []
    admitted: list[int] = []
    rows_run: dict[int, list[int]] = {}
    done: set[int] = set()
    for step_number in range(4000):
        arriving = [id for id, at in arrive.items() if at == step_number]
        waiting = sorted(waiting + arriving)
        for id, at in cancels.items():
            if at == step_number and id in arrive:
                done.add(id)
                running.pop(id, None)
                waiting = [w for w in waiting if w != id]
        free = bound.pages - sum(r[2] for r in running.values())
        assert free >= 0
        state = State(
            [Waiting(id, jobs[id][1] + made[id]) for id in waiting],
            [Running(id, *running[id], running[id][2]) for id in sorted(running)],
            free,
        )
        step = plan(state, bound)
        for id in step.preempt:
            del running[id]
            waiting = sorted([*waiting, id])
        for a in step.admit:
            waiting.remove(a.id)
            admitted.append(a.id)
            running[a.id] = [0, jobs[a.id][1] + made[a.id], a.new_pages]
            rows_run[a.id] = []
        for id in step.grow:
            running[id][2] += 1
        for chunk in step.prefill:
            rows_run[chunk.id] += range(chunk.start, chunk.start + chunk.length)
        finished = []
        for id, rows, sampled in (
            *((id, 1, True) for id in step.decode),
            *((c.id, c.length, c.last) for c in step.prefill),
        ):
            running[id][0] += rows
            assert running[id][0] <= 16 * running[id][2]
            made[id] += sampled
            if made[id] == jobs[id][2]:
                finished.append(id)
        for id in finished:
            # Each prompt row (of the last admission) exactly once and in order.
            assert rows_run[id] == list(range(len(rows_run[id]))) and len(rows_run[id]) >= jobs[id][1]
            done.add(id)
            del running[id]
        late = [id for id, at in arrive.items() if at > step_number and id not in done]
        if state.running or state.waiting:
            assert not step.idle, "something could run and nothing did"
        if not waiting and not running and not late:
            break
    assert done >= set(arrive) - set(waiting) and not waiting and not running
    first = list(dict.fromkeys(admitted))
    together = [id for id in first if arrive[id] <= min(arrive[i] for i in first)]
    assert together == sorted(together), "those who came at once start in their order"


def test_decode_rows_run_beside_a_long_prompt_in_every_step():
    running = [Running(0, 40, 30, 3), Running(1, 16, 5000, 400)]
    step = plan(State([], running, 10), Limits(prefill_budget=64))
    assert step.decode == [0] and [c.length for c in step.prefill] == [64]


def test_a_newcomer_leaves_a_page_for_each_running_request():
    running = [Running(0, 40, 30, 3)]
    assert not plan(State([Waiting(1, 32)], running, 2), Limits()).admit
    assert plan(State([Waiting(1, 32)], running, 3), Limits()).admit


def test_a_copy_that_does_not_fit_is_left_out_and_the_request_still_starts():
    step = plan(State([Waiting(0, 64, 2, 0, 8, 1)], [], 4), Limits(pages=4))
    assert step.admit[0].tail_rows == 0 and step.prefill[0].start == 32
    step = plan(State([Waiting(0, 64, 2, 0, 8, 1)], [], 5), Limits(pages=5))
    assert step.admit[0].tail_rows == 8 and step.prefill[0].start == 40


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue": 0},
        {"prefill_budget": 0},
        {"decode_batch": 0},
        {"pages": 0},
        {"chunk_cap": 0},
        {"pages": 1.5},
    ],
)
def test_a_limit_that_allows_nothing_is_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        Limits(**wrong)
