"""Counters and histograms of one service, for Prometheus; the engine's numbers are read when asked for."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from crucible.engine.stats import Stats
from crucible.service.state import Service
from crucible.service.tally import Tally

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_GAUGES = {
    "waiting": "Requests in the queue",
    "running": "Requests in the batch",
    "pages": "Pages of the pool",
    "pages_used": "Pages that running requests hold",
    "pages_cached": "Pages of ended requests, kept for prefixes",
    "pages_free": "Pages that hold nothing",
}
_COUNTERS = {
    "prefix_hits": "Pages taken from the prefix cache",
    "saved_rows": "Prompt rows that the prefix cache spared",
    "evictions": "Cached pages given to another text",
}
_TOTALS = {
    "preemptions": "Requests put back to the queue for want of a page",
    "recomputed_rows": "Rows run again after a preemption",
    "cancelled": "Requests cancelled",
    "failed": "Requests that failed by themselves",
}


class Metrics:
    """Metrics of one application: its own registry, so that a process may hold several."""

    def __init__(self, service: Service):
        self.service = service
        self.registry = registry = CollectorRegistry()
        face = {"labelnames": ["face"], "registry": registry}
        histogram = {**face, "buckets": _SECONDS}
        self._of: dict[str, tuple] = {}  # what a face's generations are counted in; labels() takes a while
        self._requests = Counter(
            "crucible_requests", "Requests answered", ["face", "status"], registry=registry
        )
        self._prompt = Counter("crucible_prompt_tokens", "Prompt tokens taken in", **face)
        self._made = Counter("crucible_completion_tokens", "Tokens generated", **face)
        self._first = Histogram(
            "crucible_time_to_first_token_seconds", "From a request's arrival to its first token", **histogram
        )
        self._gap = Histogram(
            "crucible_inter_token_seconds", "Between two arrivals of tokens of one request", **histogram
        )
        self._whole = Histogram(
            "crucible_request_seconds", "From a generation's arrival to the end of its reply", **histogram
        )

    def request_ended(self, tally: Tally, status: int, seconds: float) -> None:
        """Take one answered request in."""
        face = tally.face
        self._requests.labels(face, str(status)).inc()
        if not tally.prompt_tokens:
            return
        if face not in self._of:
            of = (self._prompt, self._made, self._whole, self._first, self._gap)
            self._of[face] = tuple(each.labels(face) for each in of)
        prompt, made, whole, first, gap = self._of[face]
        prompt.inc(tally.prompt_tokens)
        made.inc(tally.completion_tokens)
        whole.observe(seconds)
        if tally.first_token is not None:
            first.observe(tally.first_token)
        for each in tally.gaps:
            gap.observe(each)

    def page(self, stats: Stats | None) -> bytes:
        """The exposition text; `stats` None where the engine no longer answers."""
        once = CollectorRegistry()
        once.register(_Snapshot(self.service, stats))
        return generate_latest(self.registry) + generate_latest(once)


class _Snapshot:
    """The service's and the engine's numbers as they stand."""

    def __init__(self, service: Service, stats: Stats | None):
        self.service, self.stats = service, stats

    def collect(self) -> Iterator[Metric]:
        service, stats = self.service, self.stats
        ready = service.condition == "ready" and stats is not None
        yield GaugeMetricFamily("crucible_ready", "1 while requests are taken", int(ready))
        yield GaugeMetricFamily("crucible_inflight_requests", "Requests being answered", service.others)
        yield CounterMetricFamily(
            "crucible_engine_restarts", "Engines that replaced a dead one", service.restarts
        )
        if stats is None:
            return
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"crucible_{name}", text, getattr(stats, name))
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"crucible_{name}", text, getattr(stats, name))
        totals = stats.totals
        for name, text in _TOTALS.items():
            yield CounterMetricFamily(f"crucible_{name}", text, getattr(totals, name))
        steps = CounterMetricFamily("crucible_steps", "Steps by the rows that they ran", labels=["kind"])
        for kind in ("prefill", "decode", "mixed"):
            steps.add_metric([kind], getattr(totals, f"{kind}_steps"))
        yield steps
        rows = CounterMetricFamily("crucible_rows", "Rows run", labels=["kind"])
        for kind in ("prefill", "decode"):
            rows.add_metric([kind], getattr(totals, f"{kind}_rows"))
        yield rows
