"""POST /v1/messages/count_tokens: how long a prompt is, without running it."""

import fastapi
from fastapi import APIRouter
from pydantic import BaseModel

from crucible.service.anthropic.prompt import encoded
from crucible.service.anthropic.schemas import Prompt
from crucible.service.sse import json_reply


class Count(BaseModel):
    """What `usage.input_tokens` of the same messages would be."""

    input_tokens: int


def add(routes: APIRouter) -> None:
    """The route."""

    @routes.post("/v1/messages/count_tokens", summary="Count tokens", responses={200: {"model": Count}})
    async def count_tokens(request: fastapi.Request, body: Prompt):
        return json_reply({"input_tokens": len(await encoded(request, body))})
