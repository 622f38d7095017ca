"""How often a candidate flips a token: exact flip mass, counted flips, and what became of the texts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from crucible import device as devices
from crucible.drift.candidates import Candidate
from crucible.drift.cdf import flip_mass, gumbel_mass, ladder, total_variation
from crucible.drift.paths import Path, Request, forced, grouped, run
from crucible.errors import InputError
from crucible.evidence.statistics import Interval, bootstrap
from crucible.model.model import Model
from crucible.sampling.sample import sample

SEVERITIES = ("flips at the last step", "rejoins", "rejoins shifted", "parts for good")
NOTHING = "{} sequences have no rate; give at least one"
_TAIL = 4  # tokens at the end that must agree for a text to have rejoined


@dataclass(frozen=True)
class Divergence:
    """A sequence that the candidate changes: both texts from the first flipped step on."""

    request: Request
    step: int
    reference: tuple[int, ...]
    candidate: tuple[int, ...]

    @property
    def severity(self) -> str:
        """One of SEVERITIES, by the last tokens of both (at most 4)."""
        a, b = self.reference[1:], self.candidate[1:]
        if not a:
            return SEVERITIES[0]
        tail = min(_TAIL, len(a))
        if a[-tail:] == b[-tail:]:
            return SEVERITIES[1]
        if tail == _TAIL and any(
            a[-tail - s : -s] == b[-tail:] or b[-tail - s : -s] == a[-tail:] for s in (1, 2, 3)
        ):
            return SEVERITIES[2]
        return SEVERITIES[3]


@dataclass
class Rate:
    """One candidate under one sampler. Lists run over sequences; steps of a sequence are summed.

    inverse, gumbel, variation: flip masses by either sampler and their lower bound; flips: tokens that
    differ along the reference's tokens; changed: 1 where the free sequence differs; groups: its prompt.
    """

    candidate: str
    sampler: str
    exact: bool = False  # claims the reference's bits
    steps: int = 0
    differing: int = 0
    elements: int = 0
    finite: int = 0
    nonzero: int = 0
    inverse: list[float] = field(default_factory=list)
    gumbel: list[float] = field(default_factory=list)
    variation: list[float] = field(default_factory=list)
    flips: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    divergent: list[Divergence] = field(default_factory=list)
    # (smallest logit gap between neighbouring ranks of a step, its flip mass): for a picture
    gaps: list[tuple[float, float]] = field(default_factory=list)

    @property
    def severity(self) -> dict[str, int]:
        """{severity: sequences}."""
        found = Counter(d.severity for d in self.divergent)
        return {name: found[name] for name in SEVERITIES}

    def add(self, later: "Rate") -> None:
        """Count the sequences of another part of the same corpus too, after those of this one."""
        for name in ("steps", "differing", "elements", "finite", "nonzero"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        for name in ("inverse", "gumbel", "variation", "flips", "changed", "groups", "divergent", "gaps"):
            getattr(self, name).extend(getattr(later, name))

    def per_token(self, name: str) -> Interval:
        """Mean of a list per token, its interval clustered by prompt."""
        values = np.asarray(getattr(self, name), float) * len(self.groups) / max(self.steps, 1)
        return bootstrap(values, self.groups, np.mean)

    def per_sequence(self) -> Interval:
        """Share of sequences that change, clustered by prompt."""
        return bootstrap(np.asarray(self.changed, float), self.groups, np.mean)


def measure(
    model: Model, requests: Sequence[Request], candidates: Sequence[Candidate], together: int = 16
) -> Iterator[tuple[int, list[Rate]]]:
    """Rates of every candidate; yields (sequences done, rates so far) after every group of requests.

    A group counts for all candidates or, where it was stopped in the middle, for none.
    """
    if not requests:
        raise InputError(NOTHING.format(0))
    rates = [Rate(c.name, requests[0].sampling.sampler, c.exact) for c in candidates]
    done = 0
    for group in grouped(requests, most=together):
        parts = [Rate(rate.candidate, rate.sampler, rate.exact) for rate in rates]
        some = [requests[i] for i in group]
        paths = run(model, some, logits=True)
        ladders = [
            [ladder(row, r.sampling) for row in path.logits] for r, path in zip(some, paths, strict=True)
        ]
        for part, candidate in zip(parts, candidates, strict=True):
            flipped = []
            for place, logits in forced(model, some, [p.tokens for p in paths], candidate):
                found = _sequence(part, some[place], paths[place], ladders[place], logits)
                if found is not None:
                    flipped.append(found)
            part.divergent += _continued(model, flipped, candidate)
        for rate, part in zip(rates, parts, strict=True):
            rate.add(part)
        done += len(group)
        yield done, rates


def _sequence(rate: Rate, request: Request, path: Path, ladders, logits) -> tuple | None:
    cpu = devices.get("cpu")
    sums, flips, first = [0.0, 0.0, 0.0], 0, None
    for step, row in enumerate(logits):
        row = np.ascontiguousarray(row)
        rate.elements += row.size
        finite = int(np.isfinite(row).sum())
        rate.finite += finite
        rate.nonzero += int(np.count_nonzero(row))
        rate.differing += int((row.view(np.uint32) != path.logits[step].view(np.uint32)).sum())
        if finite < row.size:
            sums, flips, first = [s + 1 for s in sums], flips + 1, first or (step, -1)
            continue
        one, other = ladders[step], ladder(row, request.sampling)
        masses = flip_mass(one, other), gumbel_mass(one, other), total_variation(one, other)
        sums = [s + m for s, m in zip(sums, masses, strict=True)]
        ranked = path.logits[step][one.ids[: one.edges.size]]
        if ranked.size > 1:
            rate.gaps.append((float(np.diff(-ranked.astype(np.float64)).min()), masses[0]))
        token = sample(cpu, row, request.sampling, request.draw + step).token
        if token != path.tokens[step]:
            flips += 1
            first = first or (step, token)
    for values, total in zip((rate.inverse, rate.gumbel, rate.variation), sums, strict=True):
        values.append(total)
    rate.steps += len(logits)
    rate.flips.append(flips)
    rate.changed.append(int(first is not None))
    rate.groups.append(request.group)
    return None if first is None else (request, path, *first)


def _continued(model: Model, flipped: list[tuple], candidate: Candidate) -> list[Divergence]:
    """Run the candidate on from each first flip."""
    made, waiting = [], []
    for request, path, step, token in flipped:
        left = request.steps - step - 1
        if token < 0 or not left:
            made.append(Divergence(request, step, path.tokens[step:], (token,) * (left + 1)))
            continue
        prompt = (*request.prompt, *path.tokens[:step], token)
        waiting.append(
            (request, path, step, replace(request, prompt=prompt, steps=left, draw=request.draw + step + 1))
        )
    paths = run(model, [w[-1] for w in waiting], candidate)
    for (request, path, step, rest), found in zip(waiting, paths, strict=True):
        made.append(Divergence(request, step, path.tokens[step:], (rest.prompt[-1], *found.tokens)))
    return made
