"""A real OpenID Connect provider (oidc-provider-mock) in a thread. Tests can change the claims of its tokens.

It is a Flask application. Flask is only imported while a provider runs, because vLLM inspects every object of every
module when it starts an engine in the same process, and Flask's proxies would raise.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.eventually import PATIENCE
from tests.system.serving import free_port

if TYPE_CHECKING:
    import flask

SECRET = "client-Xyzzy77"
PEOPLE = {
    "ada": {"preferred_username": "ada", "groups": ["ml-platform"]},
    "bob": {"preferred_username": "bob", "groups": ["search-team", "ml-readers"]},
    "eve": {"preferred_username": "eve", "groups": ["sales"]},
    "zoe": {"preferred_username": "zoe", "groups": ["lab"]},
}
AUDIENCE = "https://models.example"
"""The audience of access tokens."""
GROUPS = [
    {"group": "ml-platform", "team": "ops", "scopes": ["all"]},
    {"group": "search-team", "team": "search", "scopes": ["infer"]},
    {"group": "ml-readers", "team": "search", "scopes": ["usage"]},
]
Change = Callable[[dict[str, Any]], object]


@dataclass
class RunningProvider:
    """A provider with four people, and with access tokens for programs by client credentials.

    Attributes:
        key: signs its tokens.
        change: changes the claims of each ID token before it is signed.
        resign: signs ID tokens instead of the provider.
        discovery: added to its discovery document, or replaces parts of it.
    """

    url: str
    app: flask.Flask
    key: Any = None
    change: Change | None = None
    resign: Callable[[dict[str, Any], Any], str] | None = None
    discovery: dict[str, Any] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, Any], str]] = field(default_factory=list)
    """Path, values and Authorization header of each request."""

    def document(self, **changes: Any) -> dict[str, Any]:
        """Return the content of the file for --oidc."""
        usual = {"issuer": self.url, "client_id": "roundhouse", "groups": GROUPS}
        return usual | {"client_secret_env": "TEST_OIDC_SECRET"} | changes

    def file(self, folder: Path, **changes: Any) -> Path:
        path = folder / "oidc.yaml"
        path.write_bytes(msgspec.yaml.encode(self.document(**changes)))
        return path

    def access_token(
        self, sub: str = "ada", key: Any = None, header: Mapping[str, Any] | None = None, **changes: Any
    ) -> str:
        """Return a JWT for AUDIENCE with this person's claims. Changing a claim to None removes it.

        key: signs it instead of the provider's key.
        """
        now = int(time.time())
        usual = {"iss": self.url, "sub": sub, "aud": AUDIENCE, "iat": now, "exp": now + 600, **PEOPLE.get(sub, {})}
        claims = {name: value for name, value in {**usual, **changes}.items() if value is not None}
        used = key or self.key
        given = {"alg": "RS256", "kid": self.key.kid, "typ": "at+jwt", **(header or {})}
        return jwt.encode(given, claims, used, algorithms=[given["alg"]])

    def consent(self, url: str, sub: str) -> dict[str, str]:
        """Sign in like a person; returns the query with which the browser comes back."""
        answer = httpx.post(url, data={"sub": sub}, timeout=PATIENCE)
        assert answer.status_code == 302, answer.text
        return {name: values[0] for name, values in parse_qs(urlsplit(answer.headers["location"]).query).items()}


def forget_flask() -> None:
    """Remove the modules of Flask and of the provider, and those with Flask's proxies, from `sys.modules`."""
    for name, module in list(sys.modules.items()):
        values = getattr(module, "__dict__", {}).values()  # libraries may add objects that are not modules
        holds_proxy = any(type(value).__name__ == "LocalProxy" for value in values)
        if holds_proxy or name.partition(".")[0] in ("flask", "oidc_provider_mock"):
            del sys.modules[name]


@contextmanager
def running_provider() -> Iterator[RunningProvider]:
    import flask
    import oidc_provider_mock
    from werkzeug.serving import make_server

    people = [oidc_provider_mock.User(sub=sub, claims=claims) for sub, claims in PEOPLE.items()]
    app = oidc_provider_mock.app(require_nonce=True, user_claims=people)
    port = free_port()
    provider = RunningProvider(f"http://localhost:{port}", app)

    @app.before_request  # type: ignore[untyped-decorator]
    def record() -> flask.Response | None:
        sent = flask.request
        values: Mapping[str, Any] = sent.values.to_dict()
        provider.requests.append((sent.path, dict(values), sent.headers.get("Authorization", "")))
        if provider.key is None:
            provider.key = RSAKey.import_key(flask.g.oidc_provider_mock_storage.jwk.as_dict(is_private=True))
        if sent.path == "/oauth2/token" and values.get("grant_type") == "client_credentials":
            token = provider.access_token(values["client_id"], groups=[values.get("scope", "ml-platform")])
            return flask.jsonify({"access_token": token, "token_type": "Bearer", "expires_in": 600})
        return None

    @app.after_request  # type: ignore[untyped-decorator]
    def changed(response: flask.Response) -> flask.Response:
        if flask.request.path == "/.well-known/openid-configuration" and provider.discovery:
            response.set_data(msgspec.json.encode(response.get_json() | provider.discovery))
        if (
            flask.request.path == "/oauth2/token"
            and response.status_code == 200
            and (provider.change or provider.resign)
        ):
            body = response.get_json()
            key = provider.key
            claims = dict(jwt.decode(body["id_token"], key, algorithms=["RS256"]).claims)
            if provider.change is not None:
                provider.change(claims)
            if provider.resign is not None:
                body["id_token"] = provider.resign(claims, key)
            else:
                body["id_token"] = jwt.encode({"alg": "RS256", "kid": key.kid}, claims, key)
            response.set_data(msgspec.json.encode(body))
        return response

    app.test_client().get("/jwks")  # the first request sets the provider's key
    provider.requests.clear()
    server = make_server("localhost", port, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        forget_flask()
