"""The engine gate: what a request returns in any company equals its run alone, and every page comes back."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from crucible.engine.events import RequestError, Result
from crucible.engine.job import Job
from crucible.engine.loop import Loop
from crucible.engine.request import Request, check
from crucible.engine.runner import ModelRunner, Runner
from crucible.engine.stats import Stats
from crucible.gates.engine_workloads import Workload
from crucible.model.generate import Generation, generate
from crucible.model.model import Model
from crucible.model.tokenizer import StreamDecoder

_ENDLESS = 20_000  # steps after which a run counts as one that does not end
# What must have happened in a whole gate: otherwise it proved less than it claims.
EXERCISED = ("preemptions", "prefix hits", "page copies", "evictions", "cancelled")


@dataclass
class Tally:
    """Compared values (tokens, logits digests, K/V digests, random states) and those that differ."""

    sequences: int = 0
    cancelled: int = 0
    compared: int = 0
    differing: int = 0
    nonzero: int = 0
    faults: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Take another tally's counts over."""
        for name in ("sequences", "cancelled", "compared", "differing", "nonzero"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults += other.faults


def generated_alone(model: Model, request: Request) -> Generation:
    """The judge of every comparison: the model's own generation of the request, with digests."""
    return generate(
        model,
        request.prompt,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        seed=request.seed,
        sampler=request.sampler,
        stop=request.stop,
        ignore_eos=request.ignore_eos,
    )


class Judge:
    """Runs a request alone, once, by crucible.model.generate."""

    def __init__(self, model: Model):
        self.model = model
        self._known: dict[Request, Generation] = {}

    def __call__(self, request: Request) -> Generation:
        """The request's generation with digests."""
        request = replace(request, digests=True)  # the judge has them in any case
        if request not in self._known:
            self._known[request] = generated_alone(self.model, request)
        return self._known[request]


def drive(loop: Loop, model: Model, workload: Workload) -> dict[int, Result | RequestError]:
    """Run a workload step by step, checking the pages after each; {request's index: its end}."""
    ends: dict[int, Result | RequestError] = {}
    jobs: dict[int, Job] = {}
    for step in range(_ENDLESS):
        for index, request in enumerate(workload.requests):
            if workload.arrival(index) == step:
                checked = check(model, request, workload.limits)
                jobs[index] = Job(index, checked, StreamDecoder(model.tokenizer))
                loop.submit(jobs[index])
        events = loop.cancel([i for i, at in workload.cancels.items() if at == step])
        if loop.busy:
            events += loop.step()
        if step % 4 == 3:
            loop.runner.prepare()  # as in an idle moment: its captures serve the steps to come
        loop.pool.check()
        ends.update((job.id, event) for job, event in events if isinstance(event, Result | RequestError))
        if len(ends) == len(workload.requests):
            return ends
    raise AssertionError(f"no end after {_ENDLESS} steps")


def compare(workload: Workload, ends: dict[int, Result | RequestError], judge: Judge) -> Tally:
    """Hold every end to the request's run alone; a cancelled one to the first tokens of it."""
    tally = Tally()
    for index, request in enumerate(workload.requests):
        end, alone = ends[index], judge(request)
        tally.sequences += 1
        if isinstance(end, RequestError):
            tally.differing += 1
            tally.compared += 1
            tally.faults.append(f"{workload.name}, request {index}: {end}")
            continue
        made = len(end.tokens)
        pairs = [("token", *pair) for pair in zip(end.tokens, alone.tokens, strict=False)]
        marks = zip(end.logits_digests or (), alone.logits_digests, strict=False)
        pairs += [("logits digest", *pair) for pair in marks]
        if end.finish_reason == "cancelled":
            tally.cancelled += 1
        else:
            pairs += [
                ("number of tokens", made, len(alone.tokens)),
                ("random state", end.random_state, alone.random_state),
                ("K digest", end.k_digest, alone.k_digest),
                ("V digest", end.v_digest, alone.v_digest),
                ("text", end.text, alone.text),
                ("end", end.finish_reason, alone.finish_reason),
            ]
        wrong = [(name, a, b) for name, a, b in pairs if a != b]
        tally.compared += len(pairs)
        tally.differing += len(wrong)
        tally.nonzero += sum(bool(a) for _, a, _ in pairs)
        if wrong:
            name, a, b = wrong[0]
            tally.faults.append(f"{workload.name}, request {index}: {name} {a!r}, alone {b!r}")
    return tally


def run(
    model: Model,
    workload: Workload,
    judge: Judge,
    recorded: bool = True,
    make: Callable[[Runner, Workload], Loop] | None = None,
    runner: Callable[..., Runner] = ModelRunner,
) -> tuple[Tally, Stats | None]:
    """One workload on a new engine loop: its tally and the loop's counters (None where it broke down).

    A breach of the pages' conservation and a step that raises are faults. `make` and `runner` replace
    the loop and what runs its passes (negative controls).
    """
    limits = workload.limits
    passes = runner(model, limits.pages, min(limits.decode_batch, 64), workload.page_seed, recorded)
    loop = make(passes, workload) if make else Loop(passes, limits, workload.share)
    try:
        ends = drive(loop, model, workload)
        stats = loop.stats()
        loop.pool.clear()
        loop.pool.check()
        assert loop.pool.free == limits.pages, f"{limits.pages - loop.pool.free} pages did not come back"
    except Exception as error:
        why = f"{workload.name}: {type(error).__name__}: {error}"
        return Tally(len(workload.requests), 0, 1, 1, 0, [why]), None
    return compare(workload, ends, judge), stats


@dataclass
class EngineGate:
    """All workloads of one model; `steps` runs them one by one, `recorded` says how decode passes run.

    recorded None alternates between replayed recordings and single calls from run to run. `ahead` asks for
    no digests of logits, so that on cuda and simt decode steps start before the last one's tokens are read.
    Gates of one model may share a `judge`, which remembers what it ran.
    """

    model: Model
    workloads: Sequence[Workload]
    recorded: bool | None = None
    ahead: bool = False
    judge: Judge | None = None
    tallies: dict[str, Tally] = field(default_factory=dict)
    counters: Counter = field(default_factory=Counter)
    runs: int = 0
    timeline: tuple = ()

    def steps(self) -> Iterator[str]:
        """Run a workload, yield its name; the tallies grow."""
        judge = self.judge or Judge(self.model)
        for number, workload in enumerate(self.workloads):
            if self.ahead:
                quiet = tuple(replace(request, digests=False) for request in workload.requests)
                workload = replace(workload, requests=quiet)
            recorded = self.recorded if self.recorded is not None else number % 2 == 0
            tally, stats = run(self.model, workload, judge, recorded)
            self.tallies.setdefault(workload.kind, Tally()).add(tally)
            self.runs += 1
            if stats is not None:
                self.counters.update(
                    {
                        "preemptions": stats.totals.preemptions,
                        "recomputed rows": stats.totals.recomputed_rows,
                        "prefix hits": stats.prefix_hits,
                        "saved rows": stats.saved_rows,
                        "page copies": stats.page_copies,
                        "adopted pages": stats.adopted,
                        "evictions": stats.evictions,
                        "cancelled": stats.totals.cancelled,
                        "steps": stats.totals.steps,
                    }
                )
                if workload.kind == "pressure":
                    self.timeline = stats.timeline
            yield workload.name

    @property
    def total(self) -> Tally:
        """All kinds together."""
        whole = Tally()
        for tally in self.tallies.values():
            whole.add(tally)
        return whole

    @property
    def finished(self) -> bool:
        """All workloads ran."""
        return self.runs == len(self.workloads)

    @property
    def idle(self) -> list[str]:
        """What the workloads were to bring about and did not."""
        kinds = {w.kind for w in self.workloads}
        whole = {"prefix", "pressure", "fuzz"} <= kinds
        return [name for name in EXERCISED if whole and self.finished and not self.counters[name]]

    @property
    def passed(self) -> bool:
        """Everything ran, nothing differs, every page came back, and nothing that was to happen failed to."""
        total = self.total
        return self.finished and not total.faults and total.nonzero > 0 and not self.idle
