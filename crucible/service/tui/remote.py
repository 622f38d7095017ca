"""Answers from a running service, by its native face."""

import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from crucible.errors import InputError, UnavailableError, UnsupportedError
from crucible.numerics.contract import PAGE_SIZE
from crucible.service.tui.source import About, End, Messages, Piece, Progress, Sampling, State, no_template

# Connecting is quick or it fails; an answer may wait in the service's queue as long as it must.
_PATIENCE = httpx.Timeout(None, connect=5.0, write=30.0)


class RemoteSource:
    """A Source over HTTP; `transport` replaces the network (tests).

    A URL may end with /v1, as clients of the OpenAI API are given it.
    """

    def __init__(
        self, url: str, api_key: str | None = None, transport: httpx.AsyncBaseTransport | None = None
    ):
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL:
            parsed = httpx.URL("")
        port = 80 if parsed.port is None else parsed.port
        beyond = parsed.query or parsed.fragment or not 0 < port < 1 << 16
        if parsed.scheme not in ("http", "https") or not parsed.host or beyond:
            raise InputError(f"{url!r} is not the URL of a service; give one like http://127.0.0.1:8000")
        if api_key is not None and not (api_key and api_key.isascii() and api_key.isprintable()):
            raise InputError("the API key has characters that no header carries; give printable ASCII")
        self.url = str(parsed).rstrip("/").removesuffix("/v1").rstrip("/")
        self.name, self.place = "service", self.url
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._client = httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=_PATIENCE, transport=transport
        )

    async def open(self, progress: Progress) -> About:
        """As Source.open."""
        listed = await self._json("GET", "/v1/models")
        stats = await self._json("GET", "/stats")
        try:
            (model,) = listed["data"]
            name, capacity = str(model["id"]), int(model["context"])
            capacity = min(capacity, stats["limits"]["pages"] * PAGE_SIZE)
            chat = bool(model["chat"])
        except (KeyError, TypeError, ValueError):
            raise UnavailableError(
                f"{self.url} does not answer like a crucible service; give the URL that crucible serve prints"
            ) from None
        if not chat:
            raise UnsupportedError(no_template(name))
        return About(name, self.url, capacity)

    async def count(self, messages: Messages) -> int:
        """As Source.count."""
        return (await self._json("POST", "/v1/tokenize", {"messages": list(messages)}))["count"]

    async def ask(self, messages: Messages, sampling: Sampling) -> AsyncGenerator[Piece | End, None]:
        """As Source.ask."""
        body = {"messages": list(messages), "stream": True, **vars(sampling)}
        async with self._reply("POST", "/v1/generate", body) as reply:
            async for name, data in _events(reply.aiter_lines()):
                match name:
                    case "tokens":
                        yield Piece(data["text"], tuple(data["tokens"]))
                    case "error":
                        raise UnavailableError(data["error"]["message"])
                    case "end":
                        yield _end(data)
                        return

    async def close(self) -> None:
        """As Source.close."""
        await self._client.aclose()

    async def _json(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        async with self._reply(method, path, body) as reply:
            try:
                return json.loads(await reply.aread())
            except ValueError:
                raise UnavailableError(
                    f"{self.url} answers {path} with something that is not JSON; is it a crucible service?"
                ) from None

    @asynccontextmanager
    async def _reply(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """A reply of status 200 whose body is still to be read; everything else is a sentence."""
        try:
            async with self._client.stream(method, path, json=body) as reply:
                if reply.status_code != 200:
                    raise self._refused(reply, path, await reply.aread())
                yield reply
        except httpx.TimeoutException:
            raise UnavailableError(f"the service at {self.url} does not answer in time; try again") from None
        except httpx.ConnectError as error:
            if why := _tls(error):
                raise UnavailableError(f"no TLS with {self.url}: {why}") from None
            raise UnavailableError(
                f"no service answers at {self.url}; start one (crucible serve) and send the message again"
            ) from None
        except httpx.HTTPError:
            raise UnavailableError(f"the connection to {self.url} broke; send the message again") from None

    def _refused(self, reply: httpx.Response, path: str, body: bytes) -> Exception:
        try:
            said = str(json.loads(body)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            said = f"{path} answers with status {reply.status_code}"
        match reply.status_code:
            case 401:
                return UnavailableError(
                    f"the service at {self.url} refuses the API key; "
                    "give the right one by --api-key or CRUCIBLE_API_KEY"
                )
            case 429 | 503:
                wait = reply.headers.get("retry-after", "")
                again = f"in {wait} s" if wait.isdecimal() else "later"
                return UnavailableError(f"{said}; send the message again {again}")
            case status if status >= 500 or status == 404:
                return UnavailableError(f"the service at {self.url} failed: {said}")
        return InputError(said)


def _end(data: dict[str, Any]) -> End:
    return End(
        text=data["text"],
        tokens=tuple(data["tokens"]),
        prompt_tokens=data["usage"]["prompt_tokens"],
        finish_reason=data["finish_reason"],
        fingerprint=data["fingerprint"],
        random_state=State(data["random_state"]["seed"], data["random_state"]["next_draw"]),
    )


def _tls(error: BaseException | None) -> str:
    """Why a connection that was made could not be encrypted; empty for one that was not made."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"its certificate is refused ({error.verify_message}); name a host that it is for"
        if isinstance(error, ssl.SSLError):
            return "the port does not speak it; crucible serve speaks http, so give the URL with http://"
        error = error.__cause__ or error.__context__
    return ""


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, Any]]:
    """(name, data) of server-sent events whose data is JSON of one line."""
    name, data = "message", ""
    async for line in lines:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data = value
        elif not line and data:
            yield name, json.loads(data)
            name, data = "message", ""
