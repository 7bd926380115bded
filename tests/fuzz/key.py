"""A key for everything: with the first key that a request makes, who shows none may only ask models."""

import msgspec

from tests.eventually import eventually
from tests.fuzz.corpus import Raw
from tests.system.serving import Server

HEADERS = ("authorization", "x-api-key", "api-key")


def make(server: Server) -> str:
    """One that the server knows, and that its own client shows from now on."""
    key = str(server.command("keys", "create", "--scopes", "all")["value"])
    server.http.headers["x-api-key"] = key
    eventually(lambda: server.http.get("/v1/status").status_code == 200)
    return key


def showing(raw: Raw, key: str) -> Raw:
    """The request with the key, unless it shows one of its own."""
    if any(raw.header(name) is not None for name in HEADERS):
        return raw
    return msgspec.structs.replace(raw, headers=(*raw.headers, ("x-api-key", key)))
