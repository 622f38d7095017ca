"""The face for clients of Anthropic's API: messages, their tokens counted, models."""

from fastapi import APIRouter

from crucible.service.anthropic import count_tokens, messages, models
from crucible.service.anthropic.errors import RESPONSES, AnthropicRoute, error_body, sse_error

__all__ = ["error_body", "router", "sse_error"]


def router() -> APIRouter:
    """The routes of this face."""
    routes = APIRouter(route_class=AnthropicRoute, tags=["anthropic"], responses=RESPONSES)
    messages.add(routes)
    count_tokens.add(routes)
    routes.include_router(models.router())
    return routes
