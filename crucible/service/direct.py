"""The shortest way from a request with a body to its endpoint: found by its path, nothing in between."""

from collections import defaultdict
from collections.abc import Iterable

from fastapi import Request

from crucible.service import answers
from crucible.service.route import StrictRoute


class Direct:
    """ASGI middleware that answers the POSTs of routes with a body; all else goes on to FastAPI.

    FastAPI tries one route after the other and solves dependencies that no endpoint here has: of a burst of
    requests each waits for that of all before it.
    """

    def __init__(self, app, routes: Iterable[object]):
        self.app = app
        self._routes: dict[str, list[StrictRoute]] = defaultdict(list)
        for route in routes:
            if isinstance(route, StrictRoute) and route.model is not None:
                self._routes[route.path].append(route)

    async def __call__(self, scope, receive, send) -> None:
        """Answer one request, in the way of its face where it fails."""
        route = self._find(scope)
        if route is None:
            await self.app(scope, receive, send)
            return
        scope["route"] = route
        request = Request(scope, receive)
        try:
            response = await route.answer(request)
        except answers.FORESEEN as error:
            response = await answers.handle(request, error)
        await response(scope, receive, send)

    def _find(self, scope) -> StrictRoute | None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["root_path"]:
            return None
        routes = self._routes.get(scope["path"], ())
        return next((route for route in routes if route.has_header(scope)), None)
