"""Negative controls of the engine gate: wrong engines, each of which the gate must catch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from crucible.engine.loop import Loop
from crucible.engine.runner import ModelRunner
from crucible.gates.engine import Judge, run
from crucible.gates.engine_workloads import Workload
from crucible.kv.prefix import Match, PrefixPool
from crucible.model.model import Model


class _LeakyPool(PrefixPool):
    """Forgets a page of every holder that leaves."""

    def release(self, holder):
        if self._held[holder].private:
            self._held[holder].private.pop()
        return super().release(holder)


class _CarelessPool(PrefixPool):
    """Takes any cached first page for the one that was asked for, as if hashes had collided."""

    def match(self, tokens, namespace):
        found = super().match(tokens, namespace)
        roots = self._roots.get(namespace)
        if found.nodes or not roots or len(tokens) <= 17:
            return found
        return Match((next(iter(roots.values())),))


class _NoCopy(ModelRunner):
    """Does not copy the page that goes on differently."""

    def copy_page(self, source, target):
        pass


class _RowNoise(ModelRunner):
    """Draws by the row of the batch, not by the request alone."""

    def run(self, parts):
        moved = [
            part._replace(sampling=part.sampling._replace(draw=part.sampling.draw + row))
            if part.sampling is not None
            else part
            for row, part in enumerate(parts)
        ]
        return super().run(moved)


class _OneSeed(ModelRunner):
    """Drops the requests' seeds."""

    def _choose(self, logits, sampling):
        params = sampling.params
        dropped = type(params)(params.temperature, params.top_k, params.top_p, 0, params.sampler)
        return super()._choose(logits, sampling._replace(params=dropped))


class _DrawsFromZero(Loop):
    """Counts the draws of a preempted request anew."""

    def _admit(self, todo, by_id):
        super()._admit(todo, by_id)
        self.base = getattr(self, "base", {})
        self.base.update((a.id, by_id[a.id].made) for a in todo.admit)

    def _decode(self, job):
        return self._again(job, super()._decode(job))

    def _chunk(self, job, chunk):
        return self._again(job, super()._chunk(job, chunk))

    def _again(self, job, part):
        if part.sampling is None:
            return part
        return part._replace(sampling=part.sampling._replace(draw=job.made - self.base[job.id]))


class _Forgetful(Loop):
    """Resumes a preempted request without the last token that it had made."""

    def _vacate(self, job):
        if job.made > 1 and job.preemptions == 0 and self._leaving(job):
            del job.known[-1]
        super()._vacate(job)

    def _leaving(self, job):
        return job.made < job.request.max_tokens


def _with_pool(kind: type[PrefixPool]) -> Callable:
    def make(runner, workload: Workload) -> Loop:
        loop = Loop(runner, workload.limits, workload.share)
        loop.pool = kind(workload.limits.pages, runner.page_order, workload.share)
        return loop

    return make


def _with_loop(kind: type[Loop]) -> Callable:
    return lambda runner, workload: kind(runner, workload.limits, workload.share)


# name -> (kind of workload that shows it, what `run` takes in place of the right parts)
CONTROLS: dict[str, tuple[str, dict]] = {
    "a leaked page": ("burst", {"make": _with_pool(_LeakyPool)}),
    "a hit with the wrong content": ("fuzz", {"make": _with_pool(_CarelessPool)}),
    "no copy on write": ("prefix", {"runner": _NoCopy}),
    "noise by the row of the batch": ("burst", {"runner": _RowNoise}),
    "a dropped seed": ("burst", {"runner": _OneSeed}),
    "draws counted anew after a preemption": ("pressure", {"make": _with_loop(_DrawsFromZero)}),
    "a token lost by a preemption": ("pressure", {"make": _with_loop(_Forgetful)}),
}


@dataclass(frozen=True)
class Control:
    """A wrong engine and the first fault that the gate found in it, "" if none."""

    name: str
    fault: str


def controls(model: Model, workloads: Sequence[Workload]) -> Iterator[Control]:
    """Run each wrong engine on workloads of its kind until one shows the fault."""
    judge = Judge(model)
    for name, (kind, parts) in CONTROLS.items():
        fault = ""
        for workload in workloads:
            if workload.kind == kind and not fault:
                tally, _ = run(model, workload, judge, **parts)
                fault = tally.faults[0] if tally.faults else ""
        yield Control(name, fault)
