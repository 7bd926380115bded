"""Valid and invalid requests made from the server's OpenAPI document, aimed at the starter pack's models.

A separate process makes them and prints one per line. Some take a minute of computing, which would keep the fuzzer's
other threads from attacking.
"""

import os
import sys
from collections.abc import Iterator
from random import Random
from typing import Any
from urllib.parse import urlsplit

import msgspec
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

from models.process_control import die_with_parent
from runtime.http.openapi import OPERATIONS
from tests.fuzz.corpus import Raw
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
"""Names of the control stream's model, which must stay loaded and unchanged."""
STAYS, CHANGES = ("unload", "pin"), ("DELETE", "PATCH")


class Cases:
    """Makes rounds of requests to all operations, in random order."""

    def __init__(self, url: str, seed_: int) -> None:
        self._url = url
        self._schema: Any = schemathesis.openapi.from_url(f"{url}/openapi.json")
        self._random = Random(seed_)

    def round(self) -> Iterator[Raw]:
        routes = [(route, mode) for route in ROUTES for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)]
        self._random.shuffle(routes)
        for (method, path), mode in routes:
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
    kept = ((name, value) for name, value in sent.headers.items() if name.lower() not in LEFT)
    headers = tuple((_letters(name), _letters(value)) for name, value in kept)
    return Raw(sent.method or "GET", target, headers, data.decode("latin-1"))


LEFT = ("content-length", "user-agent", "accept-encoding", "host", "connection", "authorization")


def _letters(value: str | bytes) -> str:
    data = value if isinstance(value, bytes) else value.encode("latin-1", "replace")
    return data.decode("latin-1")


def main(parent: str, url: str, seed_: str) -> None:
    die_with_parent(int(parent))
    os.nice(10)  # the server has priority
    cases = Cases(url, int(seed_))
    while True:
        for raw in cases.round():
            print(msgspec.json.encode(raw).decode(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
