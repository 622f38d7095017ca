"""Statistics of a comparison: a value a burst, medians a round, changes of pairs with an interval."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from crucible.bench.ab_runs import Campaign, Run
from crucible.bench.ab_workloads import STREAM
from crucible.evidence.statistics import Interval, bootstrap, bracket, paired_ratios
from crucible.service.load.samples import Sample, throughput

TOLERANCE = 2.0  # per cent that a metric may be worse by before a candidate is refused for it
SIGNIFICANT = 0.05
_FOR_P95 = 20  # gaps in one burst that a 95th percentile takes


@dataclass(frozen=True)
class Metric:
    """A number that a burst gives (None where it cannot). All are times at the client, over HTTP."""

    name: str
    unit: str
    higher: bool
    of: Callable[[Sequence[Sample]], float | None]


def _arriving(burst: Sequence[Sample]) -> list[Sample]:
    return [s for s in burst if s.label != STREAM]


def _gaps(burst: Sequence[Sample]) -> list[float]:
    """Milliseconds of the running stream's gaps that overlap with the service of those who arrive."""
    stream = next((s for s in burst if s.label == STREAM), None)
    if stream is None:
        return []
    others = _arriving(burst)
    since, until = min(s.sent for s in others), max(s.end for s in others)
    pairs = pairwise(stream.arrivals)
    return [1e3 * (end - start) for start, end in pairs if since <= end and start <= until]


def _ttft(burst: Sequence[Sample]) -> float:
    return 1e3 * float(np.median([s.ttft for s in _arriving(burst)]))


def _percentile(share: float) -> Callable[[Sequence[Sample]], float | None]:
    def of(burst: Sequence[Sample]) -> float | None:
        gaps = _gaps(burst)
        enough = len(gaps) >= (_FOR_P95 if share == 95 else 1)
        return float(np.percentile(gaps, share)) if enough else None

    return of


METRICS = (
    Metric("TTFT p50", "ms", False, _ttft),
    Metric("throughput", "tok/s", True, throughput),
    Metric("stream gap p50", "ms", False, _percentile(50)),
    Metric("stream gap p95", "ms", False, _percentile(95)),
    Metric("stream gap worst", "ms", False, _percentile(100)),
)


@dataclass(frozen=True)
class Row:
    """One metric of one workload: medians of each round for baseline and candidate, and changes of pairs.

    A pair is the same burst of the same round on both sides; a change is candidate / baseline - 1 in per
    cent. `interval` is of the median change, by bootstrap over pairs, whole rounds resampled.
    """

    workload: str
    metric: Metric
    baseline: tuple[float, ...]
    candidate: tuple[float, ...]
    changes: tuple[float, ...]
    rounds: tuple[str, ...]
    interval: Interval

    @property
    def gains(self) -> tuple[float, ...]:
        """Changes in the direction that is better."""
        return self.changes if self.metric.higher else tuple(-c for c in self.changes)

    @property
    def gain(self) -> float:
        """The median change in the direction that is better."""
        return self.interval.estimate if self.metric.higher else -self.interval.estimate

    @property
    def every_pair(self) -> bool:
        """Every pair improved."""
        return all(gain > 0 for gain in self.gains)

    @property
    def resolved(self) -> bool:
        """The interval holds no zero, and a sign test over the pairs gives p < SIGNIFICANT.

        Three rounds alone agree in sign by chance once in four times; the pairs within them do not. The
        interval of one round is a point, which says nothing: its processes are two of many.
        """
        apart = self.interval.low > 0 or self.interval.high < 0
        return not self.too_few and apart and sign_test(self.changes) < SIGNIFICANT

    @property
    def too_few(self) -> str:
        """ "" where rounds and pairs are enough to resolve something, else what is lacking."""
        if self.interval.groups < 2:
            return "one round resolves nothing; give --rounds 2 or more"
        if sign_test([1.0] * len(self.changes)) >= SIGNIFICANT:
            return f"{len(self.changes)} pairs of bursts resolve nothing; give more --rounds or --bursts"
        return ""

    def outcome(self, tolerance: float = TOLERANCE) -> str:
        """improved, worse (by more than `tolerance` per cent), within tolerance, or not resolved."""
        if self.resolved and self.gain > 0:
            return "improved"
        if self.resolved and self.gain < -tolerance:
            return "worse"
        return "within tolerance" if self.resolved else "not resolved"


def sign_test(changes: Sequence[float]) -> float:
    """Two-sided p that so many changes share a sign if both signs were as likely; zeros are left out."""
    up, down = sum(c > 0 for c in changes), sum(c < 0 for c in changes)
    n = up + down
    tail = sum(math.comb(n, k) for k in range(max(up, down), n + 1)) / 2**n
    return min(1.0, 2 * tail)


def values(run: Run, workload: str, metric: Metric) -> list[float]:
    """The metric of every timed burst of a run; [] where the workload has no such number."""
    found = [metric.of(burst) for burst in run.bursts.get(workload, ()) if not burst[0].warmup]
    return [] if None in found else [float(v) for v in found]


def rows(baseline: Sequence[Run], candidate: Sequence[Run]) -> list[Row]:
    """A Row for every workload and metric; the two lists are the runs of the same rounds."""
    return [
        _row(workload, metric, baseline, candidate)
        for workload in baseline[0].bursts
        for metric in METRICS
        if all(values(run, workload, metric) for run in (*baseline, *candidate))
    ]


def missing(campaign: Campaign) -> list[str]:
    """Metrics of running streams that some burst could not give: the stream had ended, or had few gaps."""
    return [
        f"{workload.name} {metric.name}"
        for workload in campaign.workloads
        for metric in METRICS
        if workload.stream and campaign.runs
        if not all(values(run, workload.name, metric) for run in campaign.runs)
    ]


def _row(workload: str, metric: Metric, baseline: Sequence[Run], candidate: Sequence[Run]) -> Row:
    a = [values(run, workload, metric) for run in baseline]
    b = [values(run, workload, metric) for run in candidate]
    changes = [100 * (paired_ratios(y, x) - 1) for x, y in zip(a, b, strict=True)]
    groups = [str(run.round) for run, some in zip(baseline, changes, strict=True) for _ in some]
    flat = tuple(float(c) for some in changes for c in some)
    interval = bootstrap(flat, groups)
    medians = (tuple(bracket(some).median for some in side) for side in (a, b))
    return Row(workload, metric, *medians, flat, tuple(groups), interval)
