"""Whether the service lives and takes requests, and what it has done."""

import time
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from crucible.engine.events import EngineStopped
from crucible.engine.stats import Counters, Stats
from crucible.service.metrics import Metrics
from crucible.service.sse import json_reply
from crucible.service.state import Service, service


def router(metrics: Metrics) -> APIRouter:
    """The routes that are no face: /health/live, /health/ready, /metrics and /stats."""
    routes = APIRouter(tags=["service"])

    @routes.head("/health/live", include_in_schema=False)
    @routes.get("/health/live", summary="Whether the process answers")
    async def live() -> Response:
        return json_reply({"status": "live"})

    @routes.head("/health/ready", include_in_schema=False)
    @routes.get(
        "/health/ready",
        summary="Whether requests are taken",
        responses={503: {"description": "They are not: the body says why"}},
    )
    async def ready(request: Request) -> Response:
        here = service(request)
        body = {"status": here.condition, "why": here.why}
        if here.condition == "ready":
            return json_reply(body)
        request.state.tally.code = here.condition
        return json_reply(body, 503, {"retry-after": str(here.settings.retry_after)})

    @routes.get(
        "/metrics", summary="Counters and histograms for Prometheus", response_class=PlainTextResponse
    )
    async def page(request: Request) -> Response:
        stats = await _stats(service(request))
        return Response(metrics.page(stats), media_type=CONTENT_TYPE_LATEST)

    @routes.get("/stats", summary="Queue, pages, batches by kind and surfaces, as JSON")
    async def numbers(request: Request) -> Response:
        here = service(request)
        return json_reply(summary(here, await _stats(here)))

    return routes


async def _stats(here: Service) -> Stats | None:
    if here.loading:
        return None
    try:
        return await here.backend.stats()
    except EngineStopped:
        return None


def summary(here: Service, stats: Stats | None) -> dict[str, Any]:
    """What /stats says; the engine's part is null while there is none."""
    limits = here.backend.limits
    return {
        "status": here.condition,
        "failure": here.backend.failure or (stats.failure if stats else None),
        "uptime_seconds": round(time.monotonic() - here.started, 3),
        "engine_restarts": here.restarts,
        "inflight": here.others,
        "surfaces": dict(here.surfaces),
        "limits": {
            name: getattr(limits, name)
            for name in ("queue", "prefill_budget", "chunk_cap", "decode_batch", "pages")
        },
        "engine": stats and _engine(stats),
    }


def _engine(stats: Stats) -> dict[str, Any]:
    t = stats.totals
    return {
        "queue": {"waiting": stats.waiting, "running": stats.running},
        "queue_peak": t.queue_peak,
        "pages": {
            "total": stats.pages,
            "used": stats.pages_used,
            "cached": stats.pages_cached,
            "free": stats.pages_free,
        },
        "batches": batches(t),
        "prefix": {
            "hits": stats.prefix_hits,
            "saved_rows": stats.saved_rows,
            "page_copies": stats.page_copies,
            "evictions": stats.evictions,
            "adopted": stats.adopted,
        },
        "requests": {
            name: getattr(t, name) for name in ("submitted", "finished", "cancelled", "failed", "preemptions")
        },
        "tokens": t.tokens,
        "recomputed_rows": t.recomputed_rows,
        "pass_seconds": round(t.pass_seconds, 6),
        "host_seconds": round(t.host_seconds, 6),
    }


def batches(t: Counters) -> dict[str, dict[str, int]]:
    """Steps and rows by kind: prompts only, decoding only, both at once."""
    return {
        "prefill_only": {"steps": t.prefill_steps, "rows": t.prefill_rows - t.mixed_prefill_rows},
        "decode_only": {"steps": t.decode_steps, "rows": t.decode_rows - t.mixed_decode_rows},
        "mixed": {
            "steps": t.mixed_steps,
            "prefill_rows": t.mixed_prefill_rows,
            "decode_rows": t.mixed_decode_rows,
        },
    }
