"""GET /v1/models in Anthropic's shape, where the header anthropic-version asks for it."""

from datetime import UTC, datetime

import fastapi
from fastapi import APIRouter

from crucible.numerics.checks import whole
from crucible.service.anthropic.errors import AnthropicRoute, naming
from crucible.service.anthropic.prompt import refuse_other_model
from crucible.service.anthropic.unsupported import refuse_other_version
from crucible.service.failure import Refusal
from crucible.service.route import with_header
from crucible.service.sse import json_reply
from crucible.service.state import Service, service

_MOST = 1000  # models a page


def router() -> APIRouter:
    """The routes of the list and of one model; those without the header are OpenAI's."""
    headed = with_header("anthropic-version", AnthropicRoute)
    routes = APIRouter(route_class=headed, include_in_schema=False)
    routes.get("/v1/models")(list_models)
    routes.get("/v1/models/{name:path}")(get_model)
    return routes


async def list_models(request: fastapi.Request):
    """A page of the models: the only one, or what comes before or after it."""
    here, query = service(request), request.query_params
    refuse_other_version(request.headers.get("anthropic-version"))
    with naming("limit"):
        limit = query.get("limit", "20")
        whole(
            "limit",
            int(limit) if limit.isascii() and limit.isdecimal() and len(limit) < 9 else limit,
            1,
            _MOST,
        )
    for cursor in ("after_id", "before_id"):
        if query.get(cursor, here.settings.model) != here.settings.model:
            message = f"{query[cursor][:80]!r} is no model of this list; leave it out"
            raise Refusal(400, message, cursor, "invalid_value")
    stages = [value for key, value in query.multi_items() if key in ("lifecycle", "lifecycle[]")]
    listed = not {"after_id", "before_id"} & query.keys() and (not stages or "active" in stages)
    name = here.settings.model if listed else None
    page = {
        "data": [_described(here)] if listed else [],
        "has_more": False,
        "first_id": name,
        "last_id": name,
    }
    return json_reply(page)


async def get_model(request: fastapi.Request, name: str):
    """One model."""
    here = service(request)
    refuse_other_version(request.headers.get("anthropic-version"))
    refuse_other_model(here, name)
    return json_reply(_described(here))


def _described(here: Service) -> dict:
    """`chat` and `fingerprint` are this service's own fields."""
    card = here.backend.card
    return {
        "type": "model",
        "id": here.settings.model,
        "display_name": here.settings.model,
        "created_at": datetime.fromtimestamp(here.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "deprecated_at": None,
        "retires_at": None,
        "line": None,
        "capabilities": None,
        "max_input_tokens": card.config.context,
        "max_tokens": card.config.context,
        "chat": bool(card.chat_template),
        "fingerprint": card.fingerprint(),
    }
