"""Diagnosis of one request: the first token that flips, the numbers around it, and a verdict."""

from dataclasses import dataclass, replace

import numpy as np

from crucible.drift.candidates import Candidate
from crucible.drift.cdf import Ladder, flip_mass, gumbel_mass, ladder, total_variation
from crucible.drift.defect import Defect, explain
from crucible.drift.paths import Path, Request, check_lengths, run, walked
from crucible.drift.tensors import Growth, TensorVerdict, equal_inputs, growth, verdict
from crucible.model.model import Model
from crucible.numerics.bits import same_bits, ulp_distance
from crucible.sampling.sample import sample


@dataclass(frozen=True)
class Flip:
    """One teacher-forced step at which the two paths draw different tokens.

    `tokens` (reference, candidate); `logits[i][j]` is token i's logit on path j; `ranks` likewise (None:
    not kept); `intervals` are the u of each path's own token; `gap` the reference's logit gap of the two.
    """

    step: int
    draw: int
    u: float | None
    tokens: tuple[int, int]
    logits: tuple[tuple[float, float], tuple[float, float]]
    ranks: tuple[tuple[int | None, int | None], tuple[int | None, int | None]]
    intervals: tuple[tuple[float, float], tuple[float, float]]
    gap: float
    gap_ulps: int
    kept_changed: bool
    largest: float
    order_decides: bool
    mass: float
    gumbel: float
    variation: float
    gumbel_flips: bool


@dataclass(frozen=True)
class Diagnosis:
    """What a request came to by both attentions; `flip` is None where no token differs.

    `masses` has the flip mass of every step, `sound` whether the reference's bits and random state agree
    alone, packed in company and token by token.
    """

    request: Request
    candidate: str
    reference: Path
    sound: bool
    masses: tuple[float, ...]
    tensors: TensorVerdict
    defect: Defect | None
    flip: Flip | None
    growth: Growth
    kind: str
    sentence: str


def describe_flip(a: np.ndarray, b: np.ndarray, request: Request, step: int) -> Flip | None:
    """The flip of one step from both paths' logits f32 [V], or None where the drawn token is the same."""
    from crucible import device as devices

    cpu, params, draw = devices.get("cpu"), request.sampling, request.draw + step
    first, second = (sample(cpu, np.ascontiguousarray(x), params, draw) for x in (a, b))
    if first.token == second.token:
        return None
    ladders = ladder(a, params), ladder(b, params)
    tokens = first.token, second.token
    one, two = np.float32(a[tokens[0]]), np.float32(a[tokens[1]])
    ranks = tuple(tuple(x.rank_of(t) for x in ladders) for t in tokens)
    spans = tuple(
        x.interval(x.rank_of(t)) if x.rank_of(t) is not None else (0.0, 0.0)
        for x, t in zip(ladders, tokens, strict=True)
    )
    noise = replace(params, sampler="gumbel-id")
    drawn = [sample(cpu, np.ascontiguousarray(x), noise, draw).token for x in (a, b)]
    return Flip(
        step,
        draw,
        first.u,
        tokens,
        tuple((float(a[t]), float(b[t])) for t in tokens),
        ranks,
        spans,
        float(np.float64(one) - np.float64(two)),
        int(ulp_distance(one, two)),
        set(ladders[0].ids.tolist()) != set(ladders[1].ids.tolist()),
        float(np.abs(a.astype(np.float64) - b).max()),
        _order_decides(*ladders, first.u, tokens[0], params.greedy),
        flip_mass(*ladders),
        gumbel_mass(*ladders),
        total_variation(*ladders),
        drawn[0] != drawn[1],
    )


def _order_decides(a: Ladder, b: Ladder, u: float | None, token: int, greedy: bool) -> bool:
    """Whether the candidate's weights in the reference's rank order draw the reference's token again."""
    if u is None:
        return greedy or not np.array_equal(a.ids, b.ids)
    weights = {int(i): w for i, w in zip(b.ids, b.weights, strict=True)}
    ids = [int(i) for i in a.ids if int(i) in weights] + [
        int(i) for i in b.ids if int(i) not in set(a.ids.tolist())
    ]
    sums = np.cumsum([weights[i] for i in ids])
    at = int(np.argmax(sums > u * sums[-1]))
    return ids[at] == token and not np.array_equal(a.ids, b.ids)


def diagnose(model: Model, request: Request, candidate: Candidate, company: list[Request] = ()) -> Diagnosis:
    """Find, isolate and explain the first flip of a request; `company` is packed beside it once."""
    check_lengths(model, [request, *company])  # before the first of several long runs
    alone = run(model, [request], logits=True)[0]
    packed = run(model, [*company, request])[-1]
    again, _ = walked(model, request, alone.tokens)
    sound = alone.same(packed) and same_bits(again, alone.logits)
    actual, _ = walked(model, request, alone.tokens, candidate)
    finite = np.isfinite(actual).all(axis=1)
    steps = [s for s in range(request.steps) if finite[s]]
    masses = {
        s: flip_mass(ladder(alone.logits[s], request.sampling), ladder(actual[s], request.sampling))
        for s in steps
    }
    found = (describe_flip(alone.logits[s], actual[s], request, s) for s in steps)
    flip = next((f for f in found if f), None)
    at = flip.step if flip else int(np.argmin(finite)) if not finite.all() else request.steps - 1
    fed = list(alone.tokens[:at])
    layers = equal_inputs(model, request, fed, candidate)
    tensors = verdict(layers)
    defect = explain(layers) or explain(equal_inputs(model, request, fed, candidate, step_rows=True))
    if defect is None or defect.kind == "coarse arithmetic":
        defect = _later(model, request, alone, candidate, finite, at) or defect
    grown = growth(model, request, list(alone.tokens), candidate, at)
    kind, sentence = conclude(model, flip, defect, tensors, sound, max(masses.values(), default=1.0))
    all_masses = tuple(masses.get(s, 1.0) for s in range(request.steps))
    return Diagnosis(
        request, candidate.name, alone, sound, all_masses, tensors, defect, flip, grown, kind, sentence
    )


def _later(
    model: Model, request: Request, path: Path, candidate: Candidate, finite: np.ndarray, at: int
) -> Defect | None:
    """The defect of steps after `at`, which is there whatever flips before it; None where there is none.

    The first step whose logits are not finite is looked at, else the last, whose history has all rows.
    """
    broken = not finite.all()
    step = int(np.argmin(finite)) if broken else request.steps - 1
    if step > at:
        for step_rows in (False, True):
            found = explain(equal_inputs(model, request, list(path.tokens[:step]), candidate, step_rows))
            if found is not None and found.kind != "coarse arithmetic":
                return Defect(found.kind, f"at step {step}, {found.evidence}")
    if broken:
        return Defect("NaN", f"the logits of step {step} are not finite, after a history of its own making")
    return None


def conclude(
    model: Model, flip: Flip | None, defect: Defect | None, tensors: TensorVerdict, sound: bool, mass: float
) -> tuple[str, str]:
    """(kind, the verdict in one sentence with the test that decides it)."""
    if not sound:
        return "reference unsound", "The reference itself moved in company: look there before any candidate."
    if defect is not None and defect.kind != "coarse arithmetic":
        return defect.kind, f"A defect, not drift: {defect.kind}; {defect.evidence}."
    coarse = f" (the attention is outside its tolerance: {defect.evidence})" if defect else ""
    if flip is None:
        if not tensors.differing:
            return (
                "same bits",
                f"No flip: the candidate has the reference's bits in all {tensors.elements} outputs.",
            )
        return "no flip", f"No token flips here: the largest flip mass of a step is {mass:.3g}{coarse}."
    a, b = (repr(_label(model, t)) for t in flip.tokens)
    if flip.order_decides:
        return (
            "near-tie drift",
            f"Near-tie drift: {a} and {b} lie {abs(flip.gap):.3g} ({flip.gap_ulps} ulp) apart, logits "
            f"moved by up to {flip.largest:.3g} and ranks changed; the candidate's probabilities in "
            f"the reference's rank order draw {a} again{coarse}.",
        )
    return (
        "sampler sensitivity",
        f"Sampler sensitivity: the draw {flip.u!r} lies between the two paths' boundaries of {a} and {b}; "
        f"the reference's rank order does not bring {a} back{coarse}.",
    )


def _label(model: Model, token: int) -> str:
    try:
        return model.decode([token])
    except Exception:  # a model without a tokenizer has only numbers
        return f"#{token}"


def lines(model: Model, d: Diagnosis) -> list[str]:
    """The diagnosis for a terminal; the last line is the verdict."""
    s, p = d.request.sampling, d.reference
    draws = f"next draw {p.next_draw} of seed {s.seed}" if not s.greedy else "greedy, no draw"
    made = [
        f"request: {len(d.request.prompt)} prompt tokens, {d.request.steps} steps, temperature "
        f"{float(s.temperature):g}, top_k {s.top_k}, {s.sampler}",
        f"reference: alone, packed and token by token {'the same bits' if d.sound else 'DIFFERS'} through "
        f"{d.request.steps} steps; random states {'match' if d.sound else 'DO NOT MATCH'} ({draws})",
        f"tensors on equal inputs, all layers: {d.tensors}",
    ]
    if d.growth.first:
        name, layer = d.growth.first
        after = d.growth.of("after_ffn")
        shown = [after[i] for i in sorted({0, len(after) // 3, 2 * len(after) // 3, len(after) - 1})]
        grown = ", ".join(f"layer {i} {u} ulp {n:.2g}" for i, u, n in shown)
        made.append(
            f"first difference: {name}{'' if layer is None else f' of layer {layer}'}; growth: {grown}"
        )
    if d.flip:
        f = d.flip
        made += [
            f"first flip: step {f.step}, draw number {f.draw}, u {f.u!r}",
            *(
                f"  {who}: token {t} {_label(model, t)!r}, interval [{lo:.9f}, {hi:.9f}), "
                f"rank {r[0]} -> {r[1]}, logit {z[0]:.7g} -> {z[1]:.7g}"
                for who, t, (lo, hi), r, z in zip(
                    ("reference", "candidate"), f.tokens, f.intervals, f.ranks, f.logits, strict=True
                )
            ),
            f"  gap {f.gap:.3g} = {f.gap_ulps} ulp; largest logit difference {f.largest:.3g}; kept set "
            f"{'changed' if f.kept_changed else 'unchanged'}",
            f"  flip mass {f.mass:.3g} by inverse-cdf, {f.gumbel:.3g} by gumbel-id, at least "
            f"{f.variation:.3g} by any; with this seed gumbel-id "
            f"{'flips too' if f.gumbel_flips else 'does not flip'}",
        ]
    else:
        made.append(f"flip mass of a step: largest {max(d.masses):.3g}, sum {sum(d.masses):.3g}")
    return [*made, f"verdict: {d.sentence}"]
