"""The face for clients of OpenAI's API: models, completions, chat completions."""

from fastapi import APIRouter

from crucible.service.openai import chat, completions, models
from crucible.service.openai.errors import RESPONSES, error_body, sse_error
from crucible.service.route import StrictRoute

__all__ = ["error_body", "router", "sse_error"]


def router() -> APIRouter:
    """The routes of this face."""
    routes = APIRouter(route_class=StrictRoute, tags=["openai"], responses=RESPONSES)
    models.add(routes)
    completions.add(routes)
    chat.add(routes)
    return routes
