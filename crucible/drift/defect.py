"""Which mistake explains an attention output: the inputs are equal, so each hypothesis can be computed."""

from dataclasses import dataclass

import numpy as np

from crucible.drift.tensors import LayerInputs
from crucible.numerics.contract import PAGE_SIZE

_CLOSE = 2e-4  # a hypothesis explains a row if it is this close to it, absolutely and relatively
COARSE = 0.05  # an unexplained relative error (by norm) up to this is coarse arithmetic, such as bf16


@dataclass(frozen=True)
class Defect:
    """`kind` is NaN, wrong head, wrong history, wrong page, coarse arithmetic or unexplained."""

    kind: str
    evidence: str


def _attend(q, k, v) -> np.ndarray:
    """One row in f64: q [Hq][D], k and v [L][Hkv][D] -> [Hq][D]."""
    group = q.shape[0] // k.shape[1]
    k, v = (np.repeat(x.astype(np.float64), group, axis=1) for x in (k, v))
    s = np.einsum("hd,lhd->hl", q.astype(np.float64), k) / np.sqrt(q.shape[1])
    e = np.exp(s - s.max(axis=1, keepdims=True))
    return np.einsum("hl,lhd->hd", e / e.sum(axis=1, keepdims=True), v)


def _close(actual, hypothesis) -> bool:
    with np.errstate(invalid="ignore"):
        return bool((np.abs(actual - hypothesis) <= _CLOSE + _CLOSE * np.abs(hypothesis)).all())


def explain(layers: list[LayerInputs], rows: int = 3) -> Defect | None:
    """The defect behind outputs outside the tolerance on equal inputs, None where there are none.

    The first layer that is outside is taken, and in it the `rows` rows that are furthest out: a hypothesis
    must give all of them. Order of the tests: finite, head, history, page.
    """
    for one in layers:
        if not np.isfinite(one.actual).all():
            row, head, channel = (int(i) for i in np.argwhere(~np.isfinite(one.actual))[0])
            where = f"layer {one.layer}, row {row}, head {head}, channel {channel}"
            return Defect("NaN", f"the candidate's output is not finite at {where}, from finite inputs")
    wrong = [x for x in layers if x.outside.any()]
    if not wrong:
        return None
    one = wrong[0]
    with np.errstate(invalid="ignore"):
        errors = np.linalg.norm((one.actual - one.out).astype(np.float64), axis=(1, 2))
    sizes = np.maximum(np.linalg.norm(one.out.astype(np.float64), axis=(1, 2)), 1e-6)
    worst = [int(r) for r in np.argsort(-errors / sizes)[:rows] if one.outside[r].any()]
    relative = float((errors / sizes).max())
    for kind, test in (("wrong head", _head), ("wrong history", _history), ("wrong page", _page)):
        found = [test(one, row) for row in worst]
        if all(found):
            return Defect(kind, f"layer {one.layer}, row {worst[0]}: {found[0]}")
    what = f"relative error {relative:.2g} at layer {one.layer}, row {worst[0]}, from equal inputs"
    if relative <= COARSE:
        return Defect("coarse arithmetic", f"{what}, which no other head, history or page gives")
    return Defect("unexplained", f"{what}; it is no other head, history or page")


def _length(one: LayerInputs, row: int) -> int:
    return one.k.shape[0] - one.q.shape[0] + row + 1


def _head(one: LayerInputs, row: int) -> str:
    end, heads, count = _length(one, row), one.k.shape[1], one.q.shape[1]
    made = [_attend(one.q[row], one.k[:end, j : j + 1], one.v[:end, j : j + 1]) for j in range(heads)]
    wrong = []
    for head, own in enumerate(h // (count // heads) for h in range(count)):
        order = (own, *(j for j in range(heads) if j != own))
        read = next((j for j in order if _close(one.actual[row, head], made[j][head])), None)
        if read is None:
            return ""
        if read != own:
            wrong.append(f"query head {head} with KV head {read} in place of {own}")
    if not wrong:
        return ""
    if len(wrong) == 1:
        return f"{wrong[0]} gives its output"
    return f"{wrong[0]} and {len(wrong) - 1} more of {count} query heads with another's give its output"


def _history(one: LayerInputs, row: int) -> str:
    end, total = _length(one, row), one.k.shape[0]
    for first, last in [(0, n) for n in range(1, total + 1) if n != end] + [(n, end) for n in range(1, end)]:
        made = _attend(one.q[row], one.k[first:last], one.v[first:last])
        if _close(one.actual[row], made):
            return f"keys {first} to {last - 1} in place of 0 to {end - 1} give its output"
    return ""


def _page(one: LayerInputs, row: int) -> str:
    end = _length(one, row)
    for logical in range(-(-end // PAGE_SIZE)):
        for physical in range(one.pages[0].shape[0]):
            if physical == one.table[logical]:
                continue
            table = one.table.copy()
            table[logical] = physical
            k, v = (p[table].reshape(-1, *p.shape[2:])[:end] for p in one.pages)
            if np.isfinite(k).all() and _close(one.actual[row], _attend(one.q[row], k, v)):
                own = int(one.table[logical])
                return f"logical page {logical} from physical page {physical} not {own}, gives its output"
    return ""
