"""GET /v1/models: the one model of this service, and what it can do."""

import fastapi
from fastapi import APIRouter

from crucible.service.failure import Refusal
from crucible.service.openai.documents import ModelCard, ModelList
from crucible.service.sse import json_reply
from crucible.service.state import Service, service


def add(routes: APIRouter) -> None:
    """The routes of the list and of one model."""

    @routes.get("/v1/models", summary="List models", responses={200: {"model": ModelList}})
    async def list_models(request: fastapi.Request):
        return json_reply({"object": "list", "data": [_described(service(request))]})

    @routes.get("/v1/models/{name:path}", summary="Find a model", responses={200: {"model": ModelCard}})
    async def get_model(request: fastapi.Request, name: str):
        here = service(request)
        refuse_other_model(here, name)
        return json_reply(_described(here))


def refuse_other_model(here: Service, name: str) -> None:
    """Refusal 404 unless `name` is the model of this service."""
    if name != here.settings.model:
        message = f"there is no model {name[:80]!r} here; use {here.settings.model!r}"
        raise Refusal(404, message, "model", "model_not_found")


def _described(here: Service) -> dict:
    """`chat`, `context` and `system_fingerprint` are this service's own fields."""
    card = here.backend.card
    return {
        "id": here.settings.model,
        "object": "model",
        "created": here.created,
        "owned_by": "crucible",
        "context": card.config.context,
        "chat": bool(card.chat_template),
        "system_fingerprint": card.fingerprint(),
    }
