"""Attention outputs beside the reference's on equal inputs: tolerance verdicts, and where the worst lies."""

from dataclasses import dataclass

import numpy as np

from crucible.attention.run import attention
from crucible.drift.candidates import Candidate
from crucible.drift.paths import REFERENCE, Request, walked
from crucible.kv.slices import Slice
from crucible.model.cache import pages_for
from crucible.model.model import Model
from crucible.numerics.inputs import normalish
from crucible.numerics.tolerance import ABSOLUTE, RELATIVE


@dataclass(frozen=True)
class LayerInputs:
    """What attention read in one layer of a reference pass, on the host.

    q [T][Hq][D]; k, v [T][Hkv][D] in logical order; out [T][Hq][D] by the reference; actual by the candidate.
    """

    layer: int
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    out: np.ndarray
    actual: np.ndarray
    pages: tuple[np.ndarray, np.ndarray]  # K and V of every physical page, [pages][16][Hkv][D]
    table: np.ndarray  # the request's physical pages

    @property
    def outside(self) -> np.ndarray:
        """bool [T][Hq][D]: elements beyond the tolerance; NaN is beyond it."""
        with np.errstate(invalid="ignore"):
            return ~(np.abs(self.actual - self.out) <= ABSOLUTE + RELATIVE * np.abs(self.out))


@dataclass(frozen=True)
class TensorVerdict:
    """All layers of one request: counts of compared outputs and the worst errors with their places.

    `halves` counts elements whose value rounded to 16 bits changes; a place is (layer, row, head, channel).
    `norm` is the largest relative error of a row's output, by Euclidean norm.
    """

    elements: int
    finite: int
    differing: int
    outside: int
    halves: int
    absolute: float
    absolute_at: tuple[int, ...]
    relative: float
    relative_at: tuple[int, ...]
    norm: float

    @property
    def passes(self) -> bool:
        """Whether every element is finite and within the tolerance."""
        return self.finite == self.elements and not self.outside

    def __str__(self) -> str:
        verdict = "passes" if self.passes else "FAILS"
        return (
            f"{verdict} |error| <= {ABSOLUTE:g} + {RELATIVE:g} |reference|: {self.elements} outputs, "
            f"{self.differing} other bits, {self.outside} outside, {self.elements - self.finite} not finite, "
            f"worst {self.absolute:.3g} absolute at layer, row, head, channel {self.absolute_at}, "
            f"{self.relative:.3g} relative at {self.relative_at}, {self.halves} round to another half"
        )


def equal_inputs(
    model: Model, request: Request, tokens: list[int], candidate: Candidate, step_rows: bool = False
) -> list[LayerInputs]:
    """Both attentions on the same q, K and V of every layer of a reference pass over prompt and tokens.

    The rows run in one launch; `step_rows` launches the last row alone, as decode does.
    """
    ids = [*request.prompt, *tokens]
    config, device = model.config, model.device
    cache = model.new_cache(pages_for(len(ids)) + 4, 2, page_seed=20260908)
    for stream, pool in enumerate((cache.kpool, cache.vpool)):  # stale numbers, different in every page
        pool[...] = device.upload(normalish(20260908, stream, tuple(pool.shape), 1.0))
    others = [ids[-1 - i] for i in range(min(len(ids), 16))]
    cache.reserve(0, len(ids))
    cache.reserve(1, len(others))
    queries: dict[int, np.ndarray] = {}

    def keep(name: str, layer: int | None, array) -> None:
        if name == "q_rot":
            queries[layer] = np.array(device.download(array)).reshape(len(ids), -1, config.head_dim)

    # A neighbour, whose page a wrong page may be.
    model.transformer.forward(others, [Slice(1, 0, len(others))], cache, rows=(), variant="reference")
    model.transformer.forward(ids, [Slice(0, 0, len(ids))], cache, rows=(), trace=keep, variant="reference")
    first = len(ids) - 1 if step_rows else 0
    desc = device.upload(np.array([[0, len(ids) - first, first, 0]], np.int32))
    tables = device.upload(cache.tables.array)
    table = cache.tables.array[0][: pages_for(len(ids))].copy()
    sizes = {"capacity": len(ids), "longest": len(ids) - first}
    shape = (-1, 16, config.kv_heads, config.head_dim)
    made = []
    with candidate.installed() as variant:
        for layer, q in queries.items():
            rows = device.upload(q[first:])
            paged = (cache.kpool, cache.vpool, tables, desc, layer, config.kv_heads, config.head_dim)
            pages = tuple(
                np.array(device.download(pool[:, layer])).reshape(shape)
                for pool in (cache.kpool, cache.vpool)
            )
            k, v = (p[table].reshape(-1, *shape[2:])[: len(ids)] for p in pages)
            own = (device.upload(x[first:].reshape(len(ids) - first, -1)) for x in (k, v))
            given = dict(zip("kv", own, strict=True)) | sizes
            out, actual = (
                np.array(device.download(attention(device, rows, *paged, variant=name, **given)))
                for name in ("reference", variant)
            )
            made.append(LayerInputs(layer, q[first:], k, v, out, actual, pages, table))
    return made


def verdict(layers: list[LayerInputs]) -> TensorVerdict:
    """What the layers' outputs add up to."""
    out, actual = (np.stack([getattr(x, name) for x in layers]) for name in ("out", "actual"))
    with np.errstate(all="ignore"):
        error = np.abs(actual.astype(np.float64) - out)
        relative = error / np.maximum(np.abs(out), 1e-6)
        halves = int((actual.astype(np.float16) != out.astype(np.float16)).sum())
        size = np.maximum(np.linalg.norm(out.astype(np.float64), axis=-1), 1e-6)
        norms = np.linalg.norm(error, axis=-1) / size
    outside = np.stack([x.outside for x in layers])
    error, relative, norms = (np.where(np.isfinite(x), x, np.inf) for x in (error, relative, norms))
    where = [tuple(map(int, np.unravel_index(np.argmax(x), x.shape))) for x in (error, relative)]
    return TensorVerdict(
        out.size,
        int(np.isfinite(actual).sum()),
        int((actual.view(np.uint32) != out.view(np.uint32)).sum()),
        int(outside.sum()),
        halves,
        float(error.max()),
        where[0],
        float(relative.max()),
        where[1],
        float(norms.max()),
    )


@dataclass(frozen=True)
class Growth:
    """How far a step's activations lie from the reference's: one entry a traced op, in order.

    `ulps` is the largest distance in units in the last place, `norm` |candidate - reference| / |reference|.
    """

    names: tuple[tuple[str, int | None], ...]
    differing: tuple[int, ...]
    ulps: tuple[int, ...]
    norm: tuple[float, ...]

    @property
    def first(self) -> tuple[str, int | None] | None:
        """(op, layer) of the first whose bits differ."""
        return next((n for n, d in zip(self.names, self.differing, strict=True) if d), None)

    def of(self, op: str) -> list[tuple[int, int, float]]:
        """(layer, ulps, norm) of one op through the layers."""
        rows = zip(self.names, self.ulps, self.norm, strict=True)
        return [(layer, ulps, norm) for (name, layer), ulps, norm in rows if name == op]


def growth(model: Model, request: Request, tokens: list[int], candidate: Candidate, step: int) -> Growth:
    """Trace one teacher-forced step by both paths, each with the history that it made itself."""
    from crucible.numerics.bits import compare

    traces: list[dict] = []
    for one in (REFERENCE, candidate):
        seen: dict[tuple[str, int | None], np.ndarray] = {}

        def keep(name, layer, array, seen=seen):
            seen[name, layer] = np.array(model.device.download(array)[-1])

        walked(model, request, tokens, one, step, keep)
        traces.append(seen)
    differing, ulps, norms = [], [], []
    for name, a in traces[0].items():
        b = traces[1][name]
        found = compare(np.ascontiguousarray(a), np.ascontiguousarray(b))
        differing.append(found.differing)
        ulps.append(int(found.max_ulp or 0))
        size = max(float(np.linalg.norm(a.astype(np.float64))), 1e-30)
        with np.errstate(invalid="ignore"):
            norms.append(float(np.linalg.norm(a.astype(np.float64) - b)) / size)
    return Growth(tuple(traces[0]), tuple(differing), tuple(ulps), tuple(norms))
