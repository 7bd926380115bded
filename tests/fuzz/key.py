"""A key with all permissions. Once any request has made a key, requests without one may only use models."""

import msgspec

from tests.eventually import eventually
from tests.fuzz.corpus import Raw
from tests.system.serving import Server

HEADERS = ("authorization", "x-api-key", "api-key")


def make(server: Server) -> str:
    """Make a key, which `server.http` sends from now on."""
    key = str(server.command("keys", "create", "--scopes", "all")["value"])
    server.http.headers["x-api-key"] = key
    eventually(lambda: server.http.get("/v1/status").status_code == 200)
    return key


def showing(raw: Raw, key: str) -> Raw:
    """Return the request with the key, unless it has one already."""
    if any(raw.header(name) is not None for name in HEADERS):
        return raw
    return msgspec.structs.replace(raw, headers=(*raw.headers, ("x-api-key", key)))
