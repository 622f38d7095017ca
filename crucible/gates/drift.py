"""The drift gate: candidates' tolerance verdicts beside their sequence verdicts, rates, and controls."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from crucible.drift.candidates import Candidate, open_candidate
from crucible.drift.corpus import FIRST_SEED, STEPS, Corpus, prompts_of, recorded
from crucible.drift.diagnose import conclude, describe_flip, diagnose
from crucible.drift.paths import REFERENCE, Request
from crucible.drift.rate import Rate
from crucible.drift.spread import measuring
from crucible.drift.tensors import TensorVerdict, equal_inputs, verdict
from crucible.evidence.environment import capture
from crucible.evidence.record import Record, Series
from crucible.model.model import Model
from crucible.numerics.scalar_exact import reciprocal_root
from crucible.sampling.params import SAMPLERS, SamplingParams

KIND = "drift"
DEFECTS = {
    "defect-wrong-history": "wrong history",
    "defect-wrong-page": "wrong page",
    "defect-wrong-head": "wrong head",
    "defect-nan": "NaN",
}
NOT_CLAIMED = (
    "that a candidate is inaccurate: its flips come from near ties, which any change of rounding moves",
    "rates of other prompts, lengths, models or sampling settings",
)


@dataclass
class DriftGate:
    """One run over a model: `sequences` requests a sampler, for every candidate.

    `jobs` processes with models of their own, opened as `spec`, share the sequences: on a GPU the host's
    comparison of logits takes longer than the forward that made them.
    """

    model: Model
    names: list[str]
    sequences: int
    steps: int = STEPS
    seed: int = FIRST_SEED
    jobs: int = 1
    spec: str = ""
    rates: list[Rate] = field(default_factory=list)
    tensors: dict[str, TensorVerdict] = field(default_factory=dict)
    controls: dict[str, bool] = field(default_factory=dict)
    seconds: float = 0.0  # that the measurement of all candidates took, the controls apart
    finished: bool = False
    _users: set[str] = field(default_factory=set, repr=False)  # names of candidates that claim nothing

    @property
    def passed(self) -> bool:
        """Whether all of it ran and every control held; what candidates do is measured, not judged."""
        return self.finished and bool(self.controls) and all(self.controls.values())

    @property
    def total(self) -> int:
        """Sequences and controls."""
        return len(SAMPLERS) * self.sequences + len(DEFECTS) + 2

    def work(self) -> Iterator[tuple[str, int]]:
        """Run the gate; yields what was done and how many of `total` that were."""
        device, prompts = self.model.device, prompts_of(self.model)
        corpus = Corpus(prompts, self.steps, seed=self.seed)
        opened = [open_candidate(n, device) for n in self.names]
        self._users = {c.name for c in opened if c.users}
        # The longest of the corpus: a tile's rescaling shows from its second tile on.
        longest = max(corpus.requests(2 * len(corpus.lengths)), key=lambda request: len(request.prompt))
        for one in opened:
            self.tensors[one.name] = self._verdict(longest, one)
        began = time.perf_counter()
        with measuring(self.model, self.names, self.jobs, self.spec) as measure:
            for sampler in SAMPLERS:
                some, before, done = replace(corpus, sampler=sampler), list(self.rates), 0
                for count, rates in measure(some, self.sequences):
                    self.rates = before + rates
                    yield f"{sampler}: {count} sequences", count - done
                    done = count
        self.seconds = time.perf_counter() - began
        yield from self._controls(corpus)
        self.finished = True

    def _verdict(self, request: Request, candidate: Candidate) -> TensorVerdict:
        return verdict(equal_inputs(self.model, request, [], candidate))

    def _controls(self, corpus: Corpus) -> Iterator[tuple[str, int]]:
        own = [r for r in self.rates if r.candidate == REFERENCE.name]
        still = all(not r.differing and not any(r.flips) and not any(r.inverse) for r in own)
        self.controls["the reference against itself flips nothing"] = bool(own) and still
        others = [r for r in self.rates if r.candidate != REFERENCE.name]
        silent = [r for r in others if r.candidate == "contracted" and self._exact_scale()]
        changed = [r for r in others if not r.exact and r not in silent and r.candidate not in self._users]
        exact = [r for r in others if r.exact]
        if changed:
            self.controls["the logits of every candidate that is not exact differ"] = all(
                r.differing for r in changed
            )
        if exact:
            self.controls["exact candidates change no bit"] = not any(r.differing for r in exact)
        if silent:
            self.controls["contracted scores change no bit where the scale is a power of two"] = not any(
                r.differing for r in silent
            )
        yield "controls", 1
        self.controls["two logits one ulp apart flip when nudged, as a near tie"] = self._near_tie()
        yield "control: near tie", 1
        request = recorded(self.model) if self.model.source is not None else corpus.request(0)
        for name, kind in DEFECTS.items():
            found = diagnose(self.model, replace(request, steps=2), open_candidate(name, self.model.device))
            self.controls[f"{name} is called {kind}"] = found.kind == kind
            yield f"control: {name}", 1

    def _exact_scale(self) -> bool:
        """Whether c * scale is exact: then a fused product and two operations round alike."""
        return math.frexp(reciprocal_root(self.model.config.head_dim))[0] == 0.5

    def _near_tie(self) -> bool:
        high = np.nextafter(np.float32(1), np.float32(2))
        logits = np.array([1.0, high, 0.0], np.float32)
        nudged = np.array([np.nextafter(high, np.float32(2)), high, 0.0], np.float32)
        flip = describe_flip(logits, nudged, Request((0,), 1, SamplingParams()), 0)
        if flip is None or flip.gap_ulps != 1 or not self.tensors:
            return False
        tensors = next(iter(self.tensors.values()))
        return conclude(self.model, flip, None, tensors, True, 1.0)[0] == "near-tie drift"


def records(gate: DriftGate) -> list[Record]:
    """A record a candidate and sampler, and one of the controls."""
    environment, made = capture(gate.model.device.name), []
    for rate in gate.rates:
        if not rate.groups:
            continue
        facts: dict[str, str | int | float | bool] = {
            "model": gate.model.name,
            "mode": gate.model.mode,
            "seed of request 0": gate.seed,
            "sampler": rate.sampler,
            "sequences": len(rate.groups),
            "prompts": len(set(rate.groups)),
            "tokens": rate.steps,
            "tokens that flip, teacher-forced": sum(rate.flips),
            "sequences that change": sum(rate.changed),
            "flip mass a token, inverse-cdf": str(rate.per_token("inverse")),
            "flip mass a token, gumbel-id": str(rate.per_token("gumbel")),
            "flip mass a token, least possible": str(rate.per_token("variation")),
            "flips a token": str(rate.per_token("flips")),
            "changed share of sequences": str(rate.per_sequence()),
            **{f"severity: {name}": n for name, n in rate.severity.items()},
        }
        if rate.candidate in gate.tensors:
            facts["tensor tolerance"] = str(gate.tensors[rate.candidate])
        for d in sorted(rate.divergent, key=lambda d: d.request.number):
            text = f"step {d.step}, tokens {list(d.reference)} became {list(d.candidate)}; {d.severity}"
            facts[f"divergent request {d.request.number}"] = text
        own = rate.exact
        groups = tuple(rate.groups)
        made.append(
            Record(
                kind=f"{KIND}: {rate.candidate}, {rate.sampler}",
                claim=f"{rate.candidate} against the reference changes no bit and flips nothing"
                if own
                else f"how often {rate.candidate} flips a token of a seeded model",
                compared="logits of teacher-forced steps against the reference, by bits; tokens; both CDFs",
                verdict=("fail" if rate.differing or any(rate.flips) else "pass") if own else "measured",
                elements=rate.elements,
                finite=rate.finite,
                nonzero=rate.nonzero,
                differing=rate.differing,
                facts=facts,
                samples=(
                    Series("flip mass of a sequence, inverse-cdf", "1", _digits(rate.inverse), groups),
                    Series("flip mass of a sequence, gumbel-id", "1", _digits(rate.gumbel), groups),
                    Series("flipped tokens of a sequence", "1", tuple(rate.flips), groups),
                ),
                not_claimed=NOT_CLAIMED,
                environment=environment,
            )
        )
    if gate.controls:
        made.append(
            Record(
                kind=f"{KIND}: controls",
                claim="what must not flip does not, what must does, and seeded defects are told apart",
                compared=f"{len(gate.controls)} controls",
                verdict="pass" if all(gate.controls.values()) else "fail",
                facts=gate.controls | {"seconds of all sequences": round(gate.seconds, 1), "jobs": gate.jobs},
                not_claimed=("that no other mistake could pass",),
                environment=environment,
            )
        )
    return made


def _digits(values: list[float]) -> tuple[float, ...]:
    """To 9 digits: masses are many and small."""
    return tuple(float(f"{value:.9g}") for value in values)


def summary(gate: DriftGate) -> list[str]:
    """Lines for the terminal."""
    lines = [f"{name}: {found}" for name, found in gate.tensors.items()]
    for r in (r for r in gate.rates if r.groups):
        mass = r.per_token("gumbel" if r.sampler == "gumbel-id" else "inverse")
        lines.append(
            f"{r.candidate}, {r.sampler}: {sum(r.changed)} of {len(r.groups)} sequences change, "
            f"{sum(r.flips)} of {r.steps} tokens flip; flip mass a token {mass}"
        )
    return lines + [f"{'held' if ok else 'FAILED'}: {name}" for name, ok in gate.controls.items()]
