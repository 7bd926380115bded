"""Checks hosts, origins and content types.

Browsers let any page send requests to a server on this machine. Three checks keep pages from doing harm or reading
answers:

| attack                                              | prevented because                                            |
|-----------------------------------------------------|--------------------------------------------------------------|
| the attacker's domain resolves here (DNS rebinding) | that domain is not an allowed host                           |
| a page sends a POST and ignores the answer          | its Origin or Sec-Fetch-Site is foreign                      |
| the same, from a browser that sends neither         | JSON bodies need a CORS preflight; forms are checked         |

Ollama's paths take bodies of any type, since most of their clients declare none or a form. There the Referer replaces
a missing Origin. Every browser since 2020 sends one of the three with a page's POST.
"""

import ipaddress
import socket
from collections.abc import Awaitable, Collection, Iterable
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from registry.base.wording import quoted
from registry.errors import BadRequest, Forbidden, NotFound, RoundhouseError, UnsupportedMedia
from runtime.http.errors import error_response
from runtime.http.guard.access import dialect_of, required_scopes

READS = frozenset(("GET", "HEAD"))
"""Methods that change nothing, and whose answers other pages cannot read."""
FORMS = frozenset(("/v1/adapters", "/v1/files", "/v1/audio/transcriptions", "/v1/audio/translations"))
"""Paths that take files in multipart/form-data."""
STREAMED = frozenset(("/v1/messages/batches", "/v1/batch"))
"""Paths whose JSON is written to disk as it arrives, with bounds of its own."""
FORMS_ONLY = FORMS - {"/v1/adapters"}
"""Form paths that take no JSON."""
OLLAMA = "/api/"
EVERY = "*"
_OWN = ("same-origin", "none")
_CURLS = "application/x-www-form-urlencoded"
_PORTS = {"http": 80, "https": 443}

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class OriginPolicy:
    """Rules for hosts, origins and content types.

    Attributes:
        hosts: names and addresses allowed in the Host header, in lower case. `*` allows all.
        addresses: whether any IP address is allowed, since an attacker's domain cannot be one.
        origins: origins of foreign pages that may call, as browsers write them. `*` allows all.
    """

    hosts: frozenset[str]
    addresses: bool = False
    origins: frozenset[str] = frozenset()

    @classmethod
    def of(cls, listening: str, hosts: Collection[str], origins: Collection[str]) -> Self:
        """The policy for a listening address and the settings' additional hosts and origins."""
        everywhere = listening in ("0.0.0.0", "::")
        own = {"localhost", listening, *([socket.gethostname()] if everywhere else [])}
        names = {_host_name(host) or host for host in (*own, *hosts)}
        return cls(frozenset(names), everywhere, frozenset(origins))

    def host(self, value: str) -> bool:
        """Whether a Host value is allowed, with or without a port."""
        if EVERY in self.hosts:
            return True
        name = _host_name(value)
        if name is None or name in self.hosts:
            return name is not None
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.addresses or address.is_loopback or address.is_unspecified

    def origin(self, value: str, host: str) -> bool:
        """Whether an origin is our own or allowed. Ignores the scheme, since a proxy may add TLS."""
        if EVERY in self.origins or value.lower() in self.origins:
            return True
        try:
            parts = urlsplit(value.lower())
            there, port = parts.hostname, parts.port
        except ValueError:
            return False
        usual = _PORTS.get(parts.scheme)
        if there is None or usual is None:
            return False
        name = f"[{there}]" if ":" in there else there
        own = host.lower()
        return own == f"{name}:{port or usual}" or (own == name and port in (None, usual))

    def check(self, method: str, path: str, headers: Headers, *, needs_host: bool = True) -> None:
        """Check a request. Raises Forbidden, UnsupportedMedia or BadRequest with advice.

        needs_host: whether a missing Host is refused. It is optional in HTTP/1.0, which no browser speaks.
        """
        values: dict[bytes, str] = {}
        for name, value in headers:
            if name in _READ:
                if name in values and (once := _ONCE.get(name)):  # duplicates allow request smuggling
                    raise BadRequest(f"Send one {once} header.", code="invalid_http")
                values[name] = value.decode("latin-1")
        host = values.get(b"host", "")
        if (host or needs_host) and not self.host(host):
            raise _host_error(host)
        if method in READS:
            return
        origin = values.get(b"origin")
        if origin is not None:
            if not self.origin(origin, host):
                raise _origin_error(origin)
        elif values.get(b"sec-fetch-site", _OWN[0]) not in _OWN:
            raise _origin_error(None)
        elif path.startswith(OLLAMA) and (page := values.get(b"referer")) and not self.origin(_origin_of(page), host):
            raise _origin_error(_origin_of(page))
        if values.get(b"content-length", "0") != "0" or b"transfer-encoding" in values:
            _check_type(path.rstrip("/"), values.get(b"content-type", ""))  # with a slash it is redirected


def is_own_page(headers: Headers) -> bool:
    """Whether a request is from this server's own pages, or from no page.

    A browser itself knows best, but only tells servers that it trusts. Others may be behind a proxy with another Host.
    """
    values = {name: value.decode("latin-1") for name, value in headers}
    if (site := values.get(b"sec-fetch-site")) is not None:
        return site in _OWN
    origin = values.get(b"origin")
    return origin is None or _NONE_ELSE.origin(origin, values.get(b"host", ""))


_NONE_ELSE = OriginPolicy(frozenset())
_ONCE = {b"host": "Host", b"content-type": "Content-Type"}
_READ = frozenset(
    (b"host", b"origin", b"sec-fetch-site", b"content-type", b"content-length", b"transfer-encoding", b"referer")
)


def _origin_of(page: str) -> str:
    """The origin of a page's URL."""
    scheme, _, rest = page.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def _host_name(value: str) -> str | None:
    """A Host header's name or address, in lower case, without port and brackets. None if it is malformed."""
    text = value.strip().lower()
    if text.startswith("["):
        name, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            return None
        port = rest[1:]
    elif text.count(":") > 1:  # an IPv6 address as written in settings
        return text
    else:
        name, _, port = text.partition(":")
    name = name.rstrip(".")
    return name if name and (not port or port.isdigit()) else None


def _check_type(path: str, value: str) -> None:
    kind = value.partition(";")[0].strip().lower()
    if path.startswith(OLLAMA) or kind == "application/json":
        return
    if kind.startswith("application/") and kind.endswith("+json"):
        return
    if path in FORMS:
        if kind == "multipart/form-data":
            return
        if path in FORMS_ONLY:
            if path == "/v1/files":
                raise UnsupportedMedia("Send multipart/form-data with the bytes as its field 'file', and 'purpose'.")
            raise UnsupportedMedia("Send multipart/form-data with the recording as its field 'file'.")
        raise UnsupportedMedia("Send Content-Type: application/json with JSON, or multipart/form-data with a file.")
    of_curl = ", as curl sends it without -H 'Content-Type: application/json'" if kind == _CURLS else ""
    raise UnsupportedMedia(
        f"Send JSON with Content-Type: application/json; this has {quoted(kind) if kind else 'none'}{of_curl}."
    )


def _host_error(host: str) -> RoundhouseError:
    if not host:
        return Forbidden("Send a Host header.", code="host_not_allowed")
    return Forbidden(
        f"This server does not answer to the host {quoted(host)}. "
        "If it is a name of this server, add it with --allowed-hosts.",
        code="host_not_allowed",
    )


def _origin_error(origin: str | None) -> RoundhouseError:
    page = "another site's page" if origin is None else f"the page's origin {quoted(origin)}"
    return Forbidden(
        f"Requests from {page} are refused. If that page may use this server, add its origin with --cors-origins.",
        code="origin_not_allowed",
    )


def _unknown_path(scope: Scope) -> RoundhouseError | None:
    """The error for an unknown path. Otherwise a form would be refused for its type, as if JSON would help."""
    try:
        required_scopes(scope["method"], scope["path"])
    except NotFound as error:
        return error
    return None


class OriginMiddleware:
    """The policy as an ASGI layer: a refused request never reaches the application."""

    def __init__(self, app: ASGIApp, allowed: OriginPolicy) -> None:
        self._app, self._allowed = app, allowed

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Not a coroutine, since one per layer would stay in memory as long as a stream runs."""
        if scope["type"] == "http":
            try:
                needs_host = scope["http_version"] != "1.0"
                self._allowed.check(scope["method"], scope["path"], scope["headers"], needs_host=needs_host)
            except RoundhouseError as refusal:
                if isinstance(refusal, UnsupportedMedia):
                    refusal = _unknown_path(scope) or refusal
                return error_response(refusal, dialect_of(scope["path"]))(scope, receive, send)
        return self._app(scope, receive, send)
