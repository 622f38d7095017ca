"""The model gate: complete sequences in every kind of company, held to each request alone, bit by bit."""

import concurrent.futures
import multiprocessing
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from crucible import device as devices
from crucible.gates import model_controls
from crucible.gates.model_cases import SEED, Corpus, random_prompts
from crucible.gates.model_parts import Part, load, prompts_of
from crucible.gates.model_plan import Call, Request
from crucible.gates.model_results import Results
from crucible.gates.model_run import Outcome, Workload, alone, run
from crucible.model.cache import KVCache
from crucible.model.model import Model


@dataclass(frozen=True)
class Task:
    """A portion of a gate: numbers of a part's workloads, or none: its negative controls."""

    part: int
    workloads: tuple[int, ...]


@dataclass(frozen=True)
class _Opened:
    """A part's model and what it runs; references and caches (by pages) are shared by its workloads."""

    number: int
    model: Model
    corpus: Corpus
    workloads: list[Workload]
    references: dict[Request, Outcome] = field(default_factory=dict)
    caches: dict[int, KVCache] = field(default_factory=dict)


@dataclass
class ModelGate:
    """One run. `steps` does the work and may be stopped after any of them; `found` has what was done."""

    device: devices.Device
    parts: list[Part]
    seed: int = SEED
    found: Results = field(default_factory=Results)
    finished: bool = False
    _open: _Opened | None = field(default=None, repr=False)

    @property
    def passed(self) -> bool:
        """Whether all of it ran, compared something, found nothing, and caught every control."""
        return self.finished and self.found.clean

    def workloads(self, part: Part) -> list[Workload]:
        """A part's workloads, with prompts that stand for the model's own."""
        return list(part.choose(part.corpus(random_prompts(700, self.seed), self.seed)))

    @property
    def total(self) -> int:
        """How many sequences there are to compare."""
        return sum(len(w.complete) for part in self.parts for w in self.workloads(part))

    def tasks(self) -> list[Task]:
        """The work in portions that share no request, so that each can run in a process of its own."""
        made = []
        for number, part in enumerate(self.parts):
            made += [Task(number, group) for group in sharing(self.workloads(part))]
            made += [Task(number, ())] * part.controls
        return made

    def steps(self, jobs: int = 1) -> Iterator[tuple[str, int]]:
        """Run the gate; yields what was done and how many sequences it compared.

        `jobs` processes with models of their own share the tasks: a forward of few rows costs a GPU less
        time than its host.
        """
        if jobs == 1:
            for task in self.tasks():
                yield from self.do(task)
        else:
            yield from self._spread(jobs)
        self.finished = True

    def do(self, task: Task) -> Iterator[tuple[str, int]]:
        """Run one task; yields as `steps`."""
        part, opened = self.parts[task.part], self._opened(task.part)
        for workload in (opened.workloads[number] for number in task.workloads):
            started = time.perf_counter()
            self._compare(part.name, opened, workload)
            spent = time.perf_counter() - started
            self.found.seconds[part.name] = self.found.seconds.get(part.name, 0.0) + spent
            yield f"{part.name}: {workload.section}: {workload.name}", len(workload.complete)
        if not task.workloads:
            yield from self._controls(part.name, opened)
        self._note_graphs(part.name, opened)

    def _opened(self, number: int) -> _Opened:
        """The part's model and workloads, loaded when the part before it is through."""
        if self._open is None or self._open.number != number:
            part, self._open = self.parts[number], None
            model = load(part.model, self.device, part.mode)
            corpus = part.corpus(prompts_of(model, self.seed), self.seed)
            self._open = _Opened(number, model, corpus, list(part.choose(corpus)))
        return self._open

    def _cache(self, opened: _Opened, pages: int) -> KVCache:
        """The cache of that many pages, shuffled and full of NaN when new; workloads share it in turn."""
        if pages not in opened.caches:
            opened.caches[pages] = opened.model.new_cache(pages, 16, page_seed=self.seed)
        return opened.caches[pages]

    def _reference(self, part_name: str, opened: _Opened, request: Request) -> Outcome:
        """The request alone, eager, by reference attention; each request once."""
        if request not in opened.references:
            cache = self._cache(opened, 64)
            opened.references[request] = alone(opened.model, request, cache)
            self.found.alone[part_name] = self.found.alone.get(part_name, 0) + 1
        return opened.references[request]

    def _compare(self, part_name: str, opened: _Opened, workload: Workload) -> None:
        """Run a workload and count every sequence against its reference."""
        expected = {r: self._reference(part_name, opened, workload.requests[r]) for r in workload.complete}
        actual = run(opened.model, workload, self._cache(opened, workload.pages))
        count = self.found.count(part_name, workload.section)
        count.workloads += 1
        calls = (op for op in workload.operations if isinstance(op, Call))
        count.calls += sum(1 if op.packed else len(op.parts) for op in calls)
        for request in workload.complete:
            where = f"{part_name}, {workload.section}, {workload.name}, request {request}"
            self.found.compare(count, where, expected[request], actual[request])

    def _controls(self, part_name: str, opened: _Opened) -> Iterator[tuple[str, int]]:
        """Break a small workload in every way, after showing that it holds unbroken."""
        workload = model_controls.small(opened.corpus)
        cache = self._cache(opened, workload.pages)
        expected = {r: self._reference(part_name, opened, q) for r, q in enumerate(workload.requests)}
        broken = model_controls.differing(expected, run(opened.model, workload, cache))
        self.found.failures += [f"{part_name}, controls, unbroken, {r}: {x}" for r, x in broken.items()]
        for name, seen in model_controls.caught(opened.model, workload, cache, expected):
            self.found.controls.setdefault(part_name, {})[name] = seen
            yield f"{part_name}: control: {name}", 0

    def _note_graphs(self, part_name: str, opened: _Opened) -> None:
        """Count what the captured passes served since the last time."""
        if self.device.name == "cpu":
            return
        graphs = self.found.graphs.setdefault(part_name, {})
        for cache in opened.caches.values():
            for kind, counted in opened.model.transformer.captures(cache).statistics.items():
                for name in ("hits", "captures"):
                    graphs[f"{kind} {name}"] = graphs.get(f"{kind} {name}", 0) + getattr(counted, name)
                    setattr(counted, name, 0)

    def _spread(self, jobs: int) -> Iterator[tuple[str, int]]:
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        arguments = (self.device.name, self.parts, self.seed)
        pool = concurrent.futures.ProcessPoolExecutor(jobs, context, _start, arguments)
        try:
            for future in concurrent.futures.as_completed([pool.submit(_do, task) for task in self.tasks()]):
                name, sequences, found = future.result()
                self.found.add(found)
                yield name, sequences
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_worker: ModelGate | None = None  # of a process that _spread started


def _start(device_name: str, parts: list[Part], seed: int) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it keeps what is done
    _worker = ModelGate(devices.get(device_name), parts, seed)


def _do(task: Task) -> tuple[str, int, Results]:
    """(what was done last, sequences compared, what they came to)."""
    assert _worker is not None
    _worker.found = Results()
    done = list(_worker.do(task))
    return done[-1][0], sum(n for _, n in done), _worker.found


def sharing(workloads: list[Workload]) -> list[tuple[int, ...]]:
    """Numbers of the workloads in groups that share no request with one another, in order."""
    groups: list[tuple[set[Request], list[int]]] = []
    for number, workload in enumerate(workloads):
        requests, numbers = set(workload.requests), [number]
        for other in [group for group in groups if group[0] & requests]:
            groups.remove(other)
            requests |= other[0]
            numbers = other[1] + numbers
        groups.append((requests, numbers))
    return sorted(tuple(sorted(numbers)) for _, numbers in groups)
