"""From a request to the token ids of its prompt: one way for messages and for counting them."""

import asyncio

import fastapi

from crucible.service.anthropic.conversation import conversation
from crucible.service.anthropic.schemas import Prompt
from crucible.service.anthropic.unsupported import refuse_other_version, refuse_unsupported
from crucible.service.failure import Refusal
from crucible.service.state import Service, service

_IN_THE_LOOP = 4096  # characters; a longer prompt is encoded in a thread, so that running streams go on


async def encoded(request: fastapi.Request, body: Prompt) -> list[int]:
    """Token ids of the prompt; Refusal 400 or 404 for the first thing that the service lacks."""
    here = service(request)
    refuse_other_version(request.headers.get("anthropic-version"))
    refuse_other_model(here, body.model)
    refuse_unsupported(body)
    card = here.backend.card
    talk = conversation(card, body)
    if talk.characters <= _IN_THE_LOOP:
        return talk.encode(card)
    return await asyncio.to_thread(talk.encode, card)


def refuse_other_model(here: Service, name: str) -> None:
    """Refusal 404 unless `name` is the model of this service."""
    if name != here.settings.model:
        message = f"there is no model {name[:80]!r} here; use {here.settings.model!r}"
        raise Refusal(404, message, "model", "model_not_found")
