"""The shortest way from a request with a body to its endpoint: found by its path, nothing in between."""

from collections import defaultdict
from collections.abc import Callable, Iterable

from starlette.types import ASGIApp

from crucible.service import answers
from crucible.service.route import StrictRoute, Taken


class Direct:
    """ASGI middleware that answers the POSTs of routes with a body; `app`, FastAPI's stack, has the rest.

    FastAPI tries one route after the other, solves dependencies that no endpoint here has, and wraps what
    comes in four layers that have nothing to do here: of a burst of requests each waits for that of all
    before it. `around` takes the place of those layers: it makes the ASGI application that is called from
    one that answers, and handles what that one raises.
    """

    def __init__(self, app, routes: Iterable[object], around: Callable[[ASGIApp], ASGIApp]):
        self.app, self._answering = app, around(self._answer)
        self._routes: dict[str, list[StrictRoute]] = defaultdict(list)
        for route in routes:
            if isinstance(route, StrictRoute) and route.model is not None:
                self._routes[route.path].append(route)

    async def __call__(self, scope, receive, send) -> None:
        """Answer one request, in the way of its face where it fails."""
        route = self._find(scope)
        if route is None:
            await self.app(scope, receive, send)
        else:
            scope["route"] = route
            await self._answering(scope, receive, send)

    async def _answer(self, scope, receive, send) -> None:
        request, route = Taken(scope, receive), scope["route"]
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
