"""The tensor gate: every attention variant of a device held to the reference, case by case, bit by bit."""

import concurrent.futures
import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from crucible.attention import exact, fast, online
from crucible.attention.run import VARIANTS, run
from crucible.attention.variants import stand_in
from crucible.device.dry import Dry
from crucible.errors import UnsupportedError
from crucible.gates import tensor_cases, tensor_inputs
from crucible.gates.tensor_cases import Plan
from crucible.gates.tensor_inputs import Case
from crucible.gates.tensor_tally import Tally, measure

SEED = 20260908
INVARIANCE = 25  # bases of the invariance section; each is changed in five ways
POISON = 5  # bases of the poison section; each is poisoned in four ways
CHANGES = ("reordered", "remapped", "contiguous", "alone", "split")
SAMPLES = 8  # rows and heads of a case that the f64 oracle checks
# The quick part runs these at head_dim 128, every variant at 64: one of each Q, K_TILE and option.
QUICK_WIDE = (
    *("exact-q1-k16-hybrid-cache", "exact-q2-k32", "exact-q4-k64", "exact-q4-k16-cache"),
    *("exact-q1-k64-hybrid", "online-q2-k32-hybrid-cache", "online-q4-k64"),
)
# The quick part runs one of these at each random geometry, all of them in its cases: every one is a build.
QUICK_TURNS = tuple(name for name in fast.TILES if VARIANTS[name].ablation)


def gated(device_name: str) -> tuple[list[str], list[str]]:
    """(exact variants, online variants) that the gate runs on a device; ablations only where they differ."""
    tiles = [*exact.VARIANTS, *online.VARIANTS]
    fast = [n for n, v in VARIANTS.items() if v.exact and n not in tiles and n != "reference"]
    chosen = [n for n in dict.fromkeys(tiles + fast) if device_name in VARIANTS[n].launchers]
    return [n for n in chosen if VARIANTS[n].exact], [n for n in chosen if not VARIANTS[n].exact]


@dataclass
class TensorGate:
    """One run. `steps` does the work and may be stopped after any of them; what was done stays counted.

    tallies[section, variant] counts comparisons; failures names the first ones in words;
    uncovered[variant] counts cases that a variant does not cover, which are compared by nobody.
    """

    device: object
    seed: int = SEED
    quick: bool = False
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    uncovered: dict[str, int] = field(default_factory=dict)
    finished: bool = False

    def __post_init__(self):
        self.exact, self.online = gated(self.device.name)
        self.variants = [*self.exact, *self.online]
        if self.quick:
            self.plans, self.geometries = tensor_cases.quick(self.seed)
        else:
            self.plans = tensor_cases.fixed(self.seed) + tensor_cases.fuzz(self.seed)
            self.geometries = tensor_cases.random_geometry(self.seed)
        bases = tensor_cases.several(self.plans[::-1], 2 if self.quick else INVARIANCE)
        self.sections: tuple[tuple[str, list[Plan], Callable[[Plan], None]], ...] = (
            ("cases", self.plans, lambda plan: self._compare("cases", plan)),
            ("geometry", self.geometries, lambda plan: self._compare("geometry", plan)),
            ("invariance", bases, self._invariance),
            ("poison", bases[: 1 if self.quick else POISON], self._poison),
        )

    @property
    def total(self) -> int:
        """How many steps there are."""
        return sum(len(plans) for _, plans, _ in self.sections)

    @property
    def passed(self) -> bool:
        """Whether the whole gate ran, compared something and found nothing."""
        return self.finished and bool(self.tallies) and not any(t.bad for t in self.tallies.values())

    def compile(self) -> None:
        """Compile what simt needs, several kernels at a time; elsewhere kernels compile when first used."""
        if self.device.name != "simt":
            return
        dry = Dry(self.device)
        for plan in (plan for _, plans, _ in self.sections for plan in plans):
            positional, keyword = tensor_inputs.make(plan).on(dry)
            for name in ("reference", *self._names(plan)):
                with contextlib.suppress(UnsupportedError):
                    run(dry, *positional, **keyword, variant=name)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
            list(workers.map(lambda job: self.device.kernel(job[0], **job[1]), dry.sources))

    def steps(self) -> Iterator[str]:
        """Run the gate; yields the name of each case when it is done."""
        for section, plans, step in self.sections:
            for plan in plans:
                step(plan)
                yield f"{section}: {plan.name}"
        self.finished = True

    def _outputs(self, case: Case, names: list[str]) -> Iterator[tuple[str, object]]:
        """Each variant's output over a NaN-filled array, in device memory; uncovered ones are left out."""
        positional, keyword = case.on(self.device)
        for name in names:
            out = self.device.empty(case.q.shape)
            out.fill(np.nan)
            result = self._run(name, positional, keyword, out)
            if result is not None:
                yield name, result

    def _run(self, name, positional, keyword, out):
        try:
            result = run(self.device, *positional, **keyword, variant=name, out=out)
        except UnsupportedError:
            self.uncovered[name] = self.uncovered.get(name, 0) + 1
            return None
        assert result.launch.variant == stand_in(self.device.name, name)[0]
        return result.out

    def _reference(self, case: Case):
        ((_, out),) = self._outputs(case, ["reference"])
        return out

    def _names(self, plan: Plan) -> list[str]:
        if not self.quick:
            return self.variants
        names = self.variants
        if plan.geometry.D != 64:
            names = [n for n in names if n in QUICK_WIDE or n not in tiles_of_seed()]
        if plan in self.geometries:
            turn = QUICK_TURNS[self.geometries.index(plan) % len(QUICK_TURNS)]
            names = [n for n in names if n == turn or n not in QUICK_TURNS]
        return names

    def _count(self, section: str, name: str, plan: Plan, expected, actual, tolerant: bool) -> None:
        tally = self.tallies.setdefault((section, name), Tally())
        found = measure(expected, actual, tolerant)
        tally.add(found)
        if found.bad and len(self.failures) < 50:
            self.failures.append(f"{section}, {plan.name} ({plan.geometry}), {name}: {found}")

    def _compare(self, section: str, plan: Plan) -> None:
        case = tensor_inputs.make(plan)
        reference = self._reference(case)
        self._oracle(case, self.device.download(reference))
        for name, out in self._outputs(case, self._names(plan)):
            self._count(section, name, plan, reference, out, name in self.online)

    def _oracle(self, case: Case, reference: np.ndarray) -> None:
        """The reference against f64 on sampled rows, and against the cpu device where it is another one.

        The samples take the KV heads in turn, since the output of one of them may be all zero.
        """
        draw, (G, Hkv) = tensor_cases.Draw(case.plan.seed, 3), (case.plan.geometry.G, case.plan.geometry.Hkv)
        samples = [(draw.below(len(case.q)), i % Hkv * G + draw.below(G)) for i in range(SAMPLES)]
        rows = np.stack([reference[at] for at in samples])
        expected = tensor_inputs.float64_rows(case, samples).astype(np.float32)
        self._count("float64 oracle", "reference", case.plan, expected, rows, True)
        if self.device.name != "cpu":
            self._count("cpu device", "reference", case.plan, on_cpu(case), reference, False)

    def _invariance(self, plan: Plan) -> None:
        case = tensor_inputs.make(plan)
        bases = dict(self._outputs(case, self._names(plan)))
        for change in CHANGES:
            changed, rows = _changed(case, change)
            rows = self.device.upload(rows)
            for name, out in self._outputs(changed, list(bases)):
                self._count(f"invariance {change}", name, plan, bases[name][rows], out, False)

    def _poison(self, plan: Plan) -> None:
        case = tensor_inputs.harmless(tensor_inputs.make(plan))
        bases = dict(self._outputs(case, self._names(plan)))
        for kind in tensor_inputs.POISONS:
            poisoned, keep = tensor_inputs.poisoned(case, kind)
            kept, lost = (self.device.upload(np.flatnonzero(x).astype(np.int64)) for x in (keep, ~keep))
            for name, out in self._outputs(poisoned, list(bases)):
                self._count(f"poison {kind}", name, plan, bases[name][kept], out[kept], False)
                if len(lost) and not bool((out[lost] != out[lost]).any(axis=(1, 2)).all()):
                    self.failures.append(
                        f"poison {kind}, {plan.name}, {name}: NaN was not seen where it must be"
                    )
                    self.tallies[f"poison {kind}", name].bad += 1


def tiles_of_seed() -> frozenset[str]:
    """Names of the 36 exact tiles and 12 online diagnostics."""
    return frozenset(f"exact-{t}" for t in exact.TILES) | frozenset(f"online-{t}" for t in online.TILES)


def on_cpu(case: Case) -> np.ndarray:
    """The exact output of the cpu device."""
    from crucible.device import get

    cpu = get("cpu")
    positional, keyword = case.on(cpu)
    return run(cpu, *positional, **keyword, variant="exact").out


def _changed(case: Case, change: str) -> tuple[Case, np.ndarray]:
    """(changed case, rows of the unchanged output that it must equal)."""
    rows = np.arange(len(case.q))
    if change == "reordered":
        plan, rows = tensor_cases.reorder(case.plan)
        return tensor_inputs.repacked(case, plan.slices, rows), rows
    if change == "alone":  # the last segment without its neighbours
        rows = rows[case.desc[-1, 0] :]
        return tensor_inputs.repacked(case, case.plan.slices[-1:], rows), rows
    changes = {
        "remapped": tensor_inputs.remapped,
        "contiguous": tensor_inputs.contiguous,
        "split": tensor_inputs.split,
    }
    return changes[change](case), rows
