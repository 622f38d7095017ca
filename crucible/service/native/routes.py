"""Paths of the native face."""

import fastapi
from fastapi import APIRouter

from crucible.engine.request import Request
from crucible.service.admit import admit
from crucible.service.body import Body, StrictRoute
from crucible.service.sse import json_reply, wait_or_cancel


class Generate(Body):
    """For now the least that a client can ask for."""

    prompt: str
    max_tokens: int = 128


def router() -> APIRouter:
    """The routes of this face."""
    routes = APIRouter(route_class=StrictRoute, tags=["native"])

    @routes.post("/v1/generate")
    async def generate(request: fastapi.Request, body: Generate):
        streams = await admit(request, [Request(body.prompt, body.max_tokens)])
        (result,) = await wait_or_cancel(request, streams)
        return json_reply({"tokens": result.tokens, "text": result.text})

    return routes
