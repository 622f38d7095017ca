"""Host work of the engine per decode step, without the pass: queue, plan, pages, text, events, wake-ups."""

import statistics
import time
from collections.abc import Callable
from functools import partial

from crucible.bench.outcome import Contender, Outcome
from crucible.bench.rounds import interleave
from crucible.engine.engine import Engine
from crucible.engine.runner import Outcome as Chosen
from crucible.engine.scheduler import Limits
from crucible.kv.slices import Slice, pack
from crucible.kv.validation import validate
from crucible.model.model import Model
from crucible.model.transformer import check_ids
from crucible.numerics.contract import PAGE_SIZE

BATCHES = (16, 64)
TARGET_MICROSECONDS = {16: 150.0, 64: 400.0}
_PROMPT, _STEPS = 24, 320


class _NoPass:
    """A runner whose pass takes no time: it notes when it is entered and returns the same token for all."""

    namespace = "no pass"

    def __init__(self, pages: int):
        self.page_order = list(range(pages))
        self.periods: list[tuple[int, float]] = []  # decode rows, seconds since the last pass returned
        self._left: float | None = None

    def _nothing(self, *_) -> None:
        pass

    set_pages = share_pages = add_page = clear = copy_page = settle = prepare = _nothing

    def run(self, parts):
        entered = time.perf_counter()
        if self._left is not None and all(len(part.ids) == 1 for part in parts):
            self.periods.append((len(parts), entered - self._left))
        outcomes = [Chosen(65) for part in parts if part.sampling is not None]
        self._left = time.perf_counter()
        return outcomes


def step_microseconds(model: Model, batch: int) -> float:
    """Median time between two passes of a batch that decodes, through the engine's thread and a reader."""
    limits = Limits(pages=batch * (-(-(_PROMPT + _STEPS) // PAGE_SIZE) + 1), prefill_budget=batch * _PROMPT)
    runner = _NoPass(limits.pages)
    with Engine(model, limits, runner=runner) as engine:
        prompts = [[index + 1] * _PROMPT for index in range(batch)]
        engine.generate(
            prompts, max_tokens=_STEPS, temperature=1.0, seed=1, ignore_eos=True, stop_strings=("\n\n\n",)
        )
    return statistics.median(seconds for rows, seconds in runner.periods if rows == batch) * 1e6


def check_microseconds(model: Model, batch: int) -> float:
    """Median host time of the checks that a pass makes before it reaches a device."""
    cache = model.new_cache(batch * 2, batch)
    for slot in range(batch):
        cache.reserve(slot, 2 * PAGE_SIZE)
    capacity = cache.tables.array.shape[1] * PAGE_SIZE
    times = []
    for _ in range(200):
        start = time.perf_counter()
        packed = pack([Slice(slot, PAGE_SIZE + 1, 1) for slot in range(batch)])
        check_ids([5] * batch, model.config.vocab)
        validate(
            packed.desc,
            cache.tables.array,
            num_pages=cache.pages.num_pages,
            rows=packed.rows,
            capacity=capacity,
            owners=cache.owners,
        )
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def run(model: Model, rounds: int, say: Callable[[str], None] = lambda text: None) -> Outcome:
    """Microseconds a step at each batch size, `rounds` runs each, interleaved."""
    say(f"{rounds} interleaved rounds of the engine without a pass, batches of {BATCHES}")
    timed = {f"batch {batch}": partial(step_microseconds, model, batch) for batch in BATCHES}
    samples = interleave(timed, rounds, warmups=0)
    contenders = [
        Contender(
            name,
            "queue, plan, pages, text, events, wake-up of a reader",
            "us a step",
            tuple(samples[name]),
            ours=True,
            facts={
                "target us": TARGET_MICROSECONDS[batch],
                "host checks of a pass, us": round(check_microseconds(model, batch), 1),
            },
        )
        for name, batch in zip(timed, BATCHES, strict=True)
    ]
    stopped = len(contenders[0].samples) < rounds
    return Outcome(
        "engine, host work a decode step", tuple(contenders), higher_is_better=False, stopped=stopped
    )
