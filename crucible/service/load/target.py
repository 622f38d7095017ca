"""Where requests go: a URL that is loopback unless more is allowed, a face, a model and a key."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from crucible.errors import InputError
from crucible.files import brief
from crucible.service.hosts import is_loopback


@dataclass(frozen=True)
class Target:
    """A service as a client reaches it: host and port of plain HTTP, the face, the model and the key."""

    host: str
    port: int
    face: str = "native"
    model: str = ""
    api_key: str | None = None

    @property
    def url(self) -> str:
        """Scheme, host and port."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def target(url: str, allow_remote: bool = False, **how) -> Target:
    """The Target of an http:// URL. InputError for another scheme, a path, or another machine's host.

    Load is aimed at a stranger by one wrong letter, so another machine needs `allow_remote`. A name is
    loopback only if it is localhost: what else it resolves to may change between two requests.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
    except ValueError as error:
        raise InputError(f"{brief(url)} is not a URL: {error}") from None
    if parts.scheme != "http" or not host or parts.path not in ("", "/") or parts.query or parts.username:
        raise InputError(f"{brief(url)} must be http://HOST:PORT, without a path; https is not spoken here")
    if not (allow_remote or is_loopback(host)):
        raise InputError(
            f"{host} is not this machine, and load goes to 127.0.0.1, ::1 or localhost; "
            "--allow-remote sends it elsewhere"
        )
    return Target(host, port, **how)
