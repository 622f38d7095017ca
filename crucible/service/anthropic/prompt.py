"""From a request to the token ids of its prompt: one way for messages and for counting them."""

import fastapi

from crucible.service.admit import apart
from crucible.service.anthropic.conversation import conversation
from crucible.service.anthropic.schemas import Prompt
from crucible.service.anthropic.unsupported import refuse_other_version, refuse_unsupported
from crucible.service.failure import Refusal
from crucible.service.state import Service, service


async def encoded(request: fastapi.Request, body: Prompt, fit: bool = False) -> list[int]:
    """Token ids of the prompt; Refusal 400 or 404 for the first thing that the service lacks; `fit` as in
    Card.encode."""
    here = service(request)
    refuse_other_version(request.headers.get("anthropic-version"))
    refuse_other_model(here, body.model)
    refuse_unsupported(body)
    card = here.backend.card
    return await apart(request, lambda: conversation(card, body).encode(card, fit))


def refuse_other_model(here: Service, name: str) -> None:
    """Refusal 404 unless `name` is the model of this service."""
    if name != here.settings.model:
        message = f"there is no model {name[:80]!r} here; use {here.settings.model!r}"
        raise Refusal(404, message, "model", "model_not_found")
