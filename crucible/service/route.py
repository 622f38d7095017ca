"""Routes of the faces: a JSON body is read, parsed and checked by our rules before the endpoint sees it."""

import asyncio
from typing import Any, get_type_hints

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.routing import Match

from crucible.service.body import parse, read
from crucible.service.complaints import refusal_of
from crucible.service.failure import Refusal
from crucible.service.state import Settings, service

_IN_THE_LOOP = 1 << 16  # bytes; a larger body is parsed in a thread, so that running streams go on


class StrictRoute(APIRoute):
    """A route of `endpoint(request)` or `endpoint(request, body: Model)`; what breaks a rule is a Refusal.

    FastAPI documents a body; `answer` reads and checks it, and nothing of FastAPI's runs in between.
    `header`, if there is one, is the name of a header without which a request is another route's. A face
    that answers a wrong field with another status overrides `invalid`.
    """

    invalid = 422
    header: bytes | None = None

    def __init__(self, path: str, endpoint, **options):
        self.model = get_type_hints(endpoint).get("body")
        super().__init__(path, endpoint, **options)

    def get_route_handler(self):
        """`answer`; FastAPI's own where there is no body."""
        if self.model is not None:
            return self.answer
        handle, invalid = super().get_route_handler(), self.invalid

        async def strict(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                raise refusal_of(error.errors(), None, invalid) from None

        return strict

    async def answer(self, request: Request) -> Response:
        """The endpoint's response to a request with a body."""
        if not isinstance(request, Taken):
            request = Taken(request.scope, request.receive)
        value = await request.take(service(request).settings)
        try:
            body = self.model.model_validate(value, from_attributes=True)
        except ValidationError as error:
            raise refusal_of(error.errors(include_url=False), value, self.invalid) from None
        return await self.endpoint(request, body)

    def matches(self, scope):
        """As FastAPI's, and NONE where the header is missing."""
        return super().matches(scope) if self.has_header(scope) else (Match.NONE, {})

    def has_header(self, scope) -> bool:
        """The request brings the header that this route asks for, if it asks for one."""
        return self.header is None or any(name == self.header for name, _ in scope.get("headers", ()))


def with_header(name: str, route: type[StrictRoute] = StrictRoute) -> type[StrictRoute]:
    """A route class that only matches requests with the header `name`: two faces may share a path."""
    return type("Headed", (route,), {"header": name.lower().encode()})


class Taken(Request):
    """A request whose body was read and parsed by our rules."""

    async def take(self, settings: Settings) -> dict[str, Any]:
        """The JSON object of its body; Refusal where it is none, or was sent as something else."""
        kind = self.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind != "application/json":
            shown = repr(kind[:60]) if kind else "missing"
            raise Refusal(415, f"content-type is {shown}; send application/json", code="not_json")
        coding = self.headers.get("content-encoding", "identity").strip().lower()
        if coding != "identity":
            message = f"content-encoding is {coding[:60]!r}, which is not read; send the JSON as it is"
            raise Refusal(415, message, code="encoded")
        self._raw = raw = await read(self, settings)
        return parse(raw) if len(raw) <= _IN_THE_LOOP else await asyncio.to_thread(parse, raw)

    async def body(self) -> bytes:
        return self._raw
