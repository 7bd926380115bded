"""The HTTP client of the commands: JSON in and out, errors as Failures with exit codes."""

import json
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit

from runtime.cli.failures import Failure, RefusedError, ServerError, ServerUnreachableError, UsageError

if TYPE_CHECKING:
    import httpx

Json = dict[str, Any]
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 600.0
"""Longer than recipes usually let a request wait. The server's own bounds decide; this only ends dead connections."""
KEY = "ROUNDHOUSE_API_KEY"
"""Variable with the key for commands. Not an option, because other users of this machine could read it."""
_IN_THE_WAY = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables that httpx reads when a client is created."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class AnswerObject(Json):
    """An object of an answer. A missing key is an error of the server."""

    def __missing__(self, key: str) -> Any:
        raise ServerError(
            f"The server there is not Roundhouse, or another version of it: its answer lacks '{key}'. Check --url."
        )


def part(name: str) -> str:
    """Quote a name as one part of a path. Raises UsageError for one that would be another path."""
    if name in ("", ".", ".."):
        raise UsageError(f"'{name}' is not a name.")
    return quote(name, safe="")


class Client:
    """The connection to a server for one command, as a context manager."""

    def __init__(self, url: str) -> None:
        host, key = _host(url), os.environ.get(KEY)
        if not host:
            raise UsageError(f"'{url}' is not an address. Write one such as http://127.0.0.1:8000.")
        if key and not (key.isascii() and key.isprintable() and " " not in key):
            raise UsageError(f"{KEY} contains a character that no key has. Set it to the key alone, as it was shown.")
        import httpx  # takes 0.1 s, so only for commands that talk to a server

        self.url = url.rstrip("/")
        try:
            self._http = httpx.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
                trust_env=host not in _LOOPBACK,  # a proxy must not stand between us and this machine
            )
        except (ImportError, OSError, ValueError) as error:
            named = [name for name in _IN_THE_WAY if os.environ.get(name) or os.environ.get(name.lower())]
            raise UsageError(
                f"{' or '.join(named) or 'The environment'} has a value that cannot be used: {error}"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **params: Any) -> Json:
        return self.call("GET", path, params=params)

    def post(self, path: str, body: Mapping[str, Any] | None = None, **params: Any) -> Json:
        return self.call("POST", path, json=body, params=params)

    def put(self, path: str, body: Mapping[str, Any] | None = None) -> Json:
        return self.call("PUT", path, json=body)

    def delete(self, path: str, **params: Any) -> Json:
        return self.call("DELETE", path, params=params)

    def call(self, method: str, path: str, **options: Any) -> Json:
        """Send a request. Raises RefusedError, ServerError or ServerUnreachableError."""
        text = self.text(method, path, **options)
        try:
            result = json.loads(text, object_hook=AnswerObject)
        except ValueError:
            raise self._not_ours() from None
        if not isinstance(result, dict):
            raise self._not_ours()
        return result

    def text(self, method: str, path: str, **options: Any) -> str:
        """Send a request and return its answer unchanged."""
        with self._map_errors():
            response = self._http.request(method, path, **_clean(options))
        self._check(response)
        return str(response.text)

    @contextmanager
    def stream(self, method: str, path: str, **options: Any) -> Iterator["httpx.Response"]:
        """Send a request whose answer is read as it arrives."""
        with self._map_errors(), self._http.stream(method, path, **_clean(options)) as response:
            if not response.is_success:
                response.read()
            self._check(response)
            yield response

    def _check(self, response: "httpx.Response") -> None:
        """Raise Failure unless this is a successful answer of a Roundhouse server."""
        if response.status_code >= 400:
            body = _object(response.text)
            raise failure_of(body, response.status_code, response.headers.get("retry-after"))
        if response.is_redirect:
            where = response.headers.get("location", "nowhere")
            raise ServerError(f"The server at {self.url} redirects to {where}. Use that server's --url.")
        if response.headers.get("content-type", "").startswith("text/html"):
            raise self._not_ours()

    def _not_ours(self) -> Failure:
        return ServerError(f"The server at {self.url} is not Roundhouse. Check --url.")

    @contextmanager
    def _map_errors(self) -> Iterator[None]:
        """Convert httpx's errors to Failures."""
        import httpx

        try:
            yield
        except httpx.ReadTimeout:
            raise ServerUnreachableError(
                f"The server at {self.url} did not answer within {ANSWER_SECONDS:.0f} s."
            ) from None
        except httpx.RemoteProtocolError:
            raise ServerUnreachableError(
                f"The server at {self.url} closed the connection during its answer. See its log."
            ) from None
        except httpx.TransportError as error:
            hint = (
                _tls_hint(error) or "Start one with `roundhouse serve`, or name another with --url or ROUNDHOUSE_URL."
            )
            raise ServerUnreachableError(f"No server answers at {self.url} ({_cause(error)}). {hint}") from None


def _host(url: str) -> str | None:
    """Return the host of a server's address; None if the address is malformed."""
    try:
        split = urlsplit(url)
        host, _port = split.hostname, split.port
    except ValueError:
        return None
    return host if split.scheme in ("http", "https") else None


def _tls_hint(error: BaseException | None) -> str:
    """Return what to do if the connection failed in TLS; '' if it did not."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    if isinstance(error, ssl.SSLCertVerificationError):
        return "If you trust its certificate, name the file of its authority in SSL_CERT_FILE."
    if error is not None:
        return "Write http:// in --url or ROUNDHOUSE_URL if the server has no TLS."
    return ""


def _cause(error: Exception) -> str:
    """Return the operating system's message about a connection, such as 'Connection refused'."""
    text = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
    return text or type(error).__name__


def _clean(options: Json) -> Json:
    """Leave out parameters that are None. Raises UsageError for numbers that JSON does not have."""
    result = dict(options)
    try:
        json.dumps(result.get("json"), allow_nan=False)
    except ValueError:
        raise UsageError("nan and inf cannot be sent: write a number.") from None
    if "params" in result:
        result["params"] = {key: value for key, value in result["params"].items() if value is not None}
    return result


def failure_of(body: Json, status: int, retry_after: str | None = None) -> Failure:
    """Convert an error answer to a Failure with the server's message."""
    error = body.get("error")
    details: Json = error if isinstance(error, dict) else {}
    message = str(details.get("message") or body.get("message") or f"The server answered with status {status}.")
    if status == 401:
        message += f" Commands read it from the variable {KEY}."
    if retry_after and "again" not in message:
        message += f" Try again in {retry_after} s."
    kind = RefusedError if status < 500 else ServerError
    return kind(message, faults=details.get("faults") or (), status=status, code=details.get("code"))


def _object(text: str) -> Json:
    try:
        result = json.loads(text)
    except ValueError:
        return {}
    return result if isinstance(result, dict) else {}


def only_model(client: Client, task: str) -> str:
    """Return the only model of a task. Raises UsageError if there are several, RefusedError if there is none."""
    data = client.get("/v1/models")["data"]
    models = [one for one in data if not one.get("parent") and one.get("kind") != "router"]
    ids = [model["id"] for model in models if model.get("task") == task]
    ids = [id_ for id_ in ids if id_.rpartition("@")[0] not in ids]  # without earlier versions, such as mine@1
    if len(ids) == 1:
        return str(ids[0])
    if not ids:
        raise RefusedError(f"There is no model for {task} here. Add one: roundhouse models add SOURCE.")
    raise UsageError(f"Choose a model with --model. Models for {task}: {', '.join(ids)}.")
