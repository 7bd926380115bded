"""Requests made from our own OpenAPI document to a real server with real models: no 5xx, and answers as documented.

All operations, fit and unfit requests. They register and remove adapters, unload and load models: so the server is one
of their own. ROUNDHOUSE_FUZZ_CASES sets the number of cases per operation and mode (default 2), and
ROUNDHOUSE_FUZZ_RECORD a file for the counts.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from runtime.http.openapi import OPERATIONS
from tests.eventually import PATIENCE
from tests.fuzz import key
from tests.fuzz.corpus import KEPT, SEEDS, read
from tests.fuzz.sending import send
from tests.fuzz.verdict import finding, is_whole
from tests.system.serving import PACK, STARTER, Server
from tests.system.steering import steer

pytestmark = [pytest.mark.real, pytest.mark.timeout(24 * 3600)]
CASES = int(os.environ.get("ROUNDHOUSE_FUZZ_CASES", "2"))
ONLY = os.environ.get("ROUNDHOUSE_FUZZ_ONLY", "")
RECORD = os.environ.get("ROUNDHOUSE_FUZZ_RECORD")
CONFORMANCE = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
LATER = (429, 503)
"""Refusals of a moment, such as a load that is under way; they must say when to come back."""
NO_SUCH_ROUTE = ("unknown_path", "method_not_allowed")
"""Codes of requests that are for another path than the one whose case they are: a name with a slash in it."""
ROUTES = sorted(f"{method.upper()} {path}" for method, path in OPERATIONS)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """All cases show its key: with one that a case makes, the server would be closed to who shows none."""
    server = Server(tmp_path_factory.mktemp("fuzzed"), [STARTER], "--open")
    try:
        key.make(server.wait_ready(600))
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def counts(fuzzed: Server) -> Iterator[dict[str, Counter[int]]]:
    """Operation and mode to the number of answers by status; at the end the server must be as well as at the start."""
    found: dict[str, Counter[int]] = defaultdict(Counter)
    yield found
    if RECORD:
        with Path(RECORD).open("a") as file:
            file.writelines(json.dumps({"case": name, **count}) + "\n" for name, count in found.items())
    assert fuzzed.process.poll() is None, fuzzed.tail()
    assert {m["id"]: m["deaths"] for m in fuzzed.http.get("/v1/status").json()["models"] if m["deaths"]} == {}
    body = {"model": "uppercase", "messages": [{"role": "user", "content": "hello world"}], "temperature": 0}
    if fuzzed.http.get("/v1/adapters/uppercase").status_code == 404:  # a case may have deleted it
        source = {"path": str(PACK / "adapters" / "uppercase")}
        again = {"name": "uppercase", "base": "starter-chat", "source": source}
        fuzzed.http.post("/v1/adapters", json=again).raise_for_status()
    answer = fuzzed.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "HELLO WORLD"


@pytest.fixture(scope="module")
def schema(fuzzed: Server) -> Any:
    return schemathesis.openapi.from_url(f"{fuzzed.url}/openapi.json")


@pytest.mark.parametrize("route", [route for route in ROUTES if ONLY in route])
def test_no_request_is_a_5xx_and_answers_are_as_documented(
    schema: Any, fuzzed: Server, counts: dict[str, Counter[int]], route: str
) -> None:
    method, path = route.split(" ")
    operation = schema[path][method]
    modes = [GenerationMode.POSITIVE]
    if operation.body or operation.query:  # any text may stand in a path: without these no request is unfit
        modes.append(GenerationMode.NEGATIVE)
    for mode in modes:
        ask(operation, mode, counts[f"{route} {mode.value}"], fuzzed.http.headers["x-api-key"])


def ask(operation: Any, mode: GenerationMode, counted: Counter[int], displayed: str) -> None:
    @settings(
        max_examples=CASES, database=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode), seed=st.integers(0, 2**32))
    def run(case: Any, seed: int) -> None:
        steer(case, seed)
        response = case.call(timeout=600, headers={"Authorization": f"Bearer {displayed}"})
        counted[response.status_code] += 1
        look(case, response)

    run()


def test_the_fuzzers_corpus_finds_nothing(fuzzed: Server) -> None:
    """`make fuzz` for half an hour finds more; what it kept is sent here each time."""
    displayed = fuzzed.http.headers["x-api-key"]
    raws = [key.showing(raw, displayed) for raw in read(SEEDS, KEPT)]
    found = {raw.target: finding(raw, send(fuzzed.port, raw, PATIENCE)) for raw in raws if is_whole(raw)}
    broken = [raw for raw in raws if not is_whole(raw)]
    with ThreadPoolExecutor(len(broken)) as pool:  # the server waits long for what is missing of each
        replies = pool.map(lambda raw: send(fuzzed.port, raw, PATIENCE), broken)
        found |= {raw.target: finding(raw, reply) for raw, reply in zip(broken, replies, strict=True)}
    assert {target: what for target, what in found.items() if what} == {}


def look(case: Any, response: Any) -> None:
    """Raise AssertionError, or a failed check of schemathesis, for an answer that our document does not promise."""
    if response.status_code in LATER and case.operation.path != "/health/ready":
        assert int(response.headers["retry-after"][0]) >= 1, response.text
    else:
        assert response.status_code < 500, f"{response.status_code} {response.text}\n{case.as_curl_command()}"
    if response.status_code in (404, 405) and _code(response) in NO_SUCH_ROUTE:
        return
    if response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
        # The document has the schema of the whole stream, and schemathesis takes it for that of each event.
        case.validate_response(response, checks=[c for c in CONFORMANCE if c is not response_schema_conformance])
        reported = [line[5:].lstrip() for line in response.text.split("\n") if line.startswith("data:")]
        assert reported, response.text
        assert all(isinstance(json.loads(data), dict) for data in reported if data != "[DONE]"), response.text
        return
    case.validate_response(response, checks=CONFORMANCE)


def _code(response: Any) -> object:
    try:
        return response.json()["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return None
