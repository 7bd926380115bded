"""Requests made from the server's own OpenAPI document, fit and unfit, led to what the starter pack has."""

from collections.abc import Iterator
from random import Random
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

from runtime.http.openapi import OPERATIONS
from tests.fuzz.corpus import Raw
from tests.system.serving import Server
from tests.system.steering import ADAPTERS, steer

ROUTES = sorted((method.upper(), path) for method, path in OPERATIONS)
QUICK = settings(
    max_examples=4,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),
)
CHAT = ("starter-chat", "chat", *ADAPTERS)
"""Names of the model that the control stream asks: it stays where it is."""
STAYS, CHANGES = ("unload", "pin"), ("DELETE", "PATCH")


class Cases:
    """Rounds over all operations in a random order."""

    def __init__(self, server: Server, seed_: int) -> None:
        self._url = server.url
        self._schema: Any = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        self._random = Random(seed_)

    def round(self, stop: Event) -> Iterator[Raw]:
        routes = [(route, mode) for route in ROUTES for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)]
        self._random.shuffle(routes)
        for (method, path), mode in routes:
            if stop.is_set():
                return
            operation = self._schema[path][method]
            if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
                continue
            yield from self._made(operation, mode)

    def _made(self, operation: Any, mode: GenerationMode) -> list[Raw]:
        found: list[Raw] = []

        @seed(self._random.getrandbits(32))
        @settings(QUICK)
        @given(case=operation.as_strategy(generation_mode=mode), number=st.integers(0, 2**32))
        def make(case: Any, number: int) -> None:
            steer(case, number)
            parameters = case.path_parameters or {}
            if parameters.get("model") in CHAT and (case.operation.path.endswith(STAYS) or case.method in CHANGES):
                parameters["model"] = "starter-embed"
            found.append(_raw(case, self._url))

        make()
        return found


def _raw(case: Any, url: str) -> Raw:
    sent = requests.Request(**case.as_transport_kwargs(base_url=url)).prepare()
    parts = urlsplit(_letters(sent.url or url))
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    body = sent.body or b""
    data = body.encode() if isinstance(body, str) else bytes(body)
    headers = tuple((str(name), _letters(value)) for name, value in sent.headers.items() if name.lower() not in LEFT)
    return Raw(sent.method or "GET", target, headers, data.decode("latin-1"))


LEFT = ("content-length", "user-agent", "accept-encoding", "host", "connection")


def _letters(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
