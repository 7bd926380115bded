"""Each number of each body of an inference route, at values that no 64 bits hold: never a 5xx.

The places come from the OpenAPI document, so new fields are covered. Each place gets every third value, and the next
place the values after these; with ROUNDHOUSE_NUMBERS=all each gets all. How vLLM handles such numbers is tested in
tests/contract/chat_engine/test_numbers.py.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI

from models.messages import Event, HttpCall, ResponseEnd, TranscriptInfo, Usage
from runtime.http.openapi import document
from runtime.http.route import ROUTES
from tests.contract.chat_engine.numeric import HOLE, Field, fields
from tests.unit.http.fakes import FakeGateway
from tests.unit.http.test_fuzz import embed, generate, rerank

NUMBERS = (
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
    "18446744073709551616", "-18446744073709551616", "1e400", "-1e400", "NaN", "-0.0",
)  # fmt: skip
STEP = 1 if os.environ.get("ROUNDHOUSE_NUMBERS") == "all" else 3
MODELS = {"starter-chat": "chat", "uppercase": "chat", "starter-embed": "embed", "starter-rerank": "rerank"}
"""The models of the document's examples, and ours."""
TASKS = {"/embed": "embed", "/rerank": "rerank"}
"""The models of routes whose examples name none."""
AUDIO = b"RIFF0000WAVEfmt "


def bodies() -> dict[str, dict[str, Any]]:
    """The first example of each inference route that takes JSON, with one of our models."""
    found = {}
    for route in ROUTES:
        if route.is_inference and route.examples:
            example = next(iter(route.examples.values()))
            known = MODELS.get(example.get("model", ""), "") or TASKS[route.path]
            found[route.path] = {**example, "model": known}
    return found


def answer_chat(request: HttpCall) -> list[Event]:
    """As `generate`, also where the dialect's body has no `stream`."""
    body = json.loads(request.body)
    return generate(msgspec.structs.replace(request, body=json.dumps({"stream": False, **body}).encode()))


@pytest.fixture
def open_document(app: FastAPI, gateway: FakeGateway) -> dict[str, Any]:
    info = TranscriptInfo(language="en", language_probability=1, duration=1, duration_after_vad=1)
    gateway.links["embed"].script, gateway.links["rerank"].script = embed, rerank
    gateway.links["chat"].script = answer_chat
    gateway.links["speech"].script = lambda _: [info, ResponseEnd(usage=Usage())]
    document(app, gateway.recipes)
    return app.openapi()


def numbers_of(place: int) -> Iterator[str]:
    yield from NUMBERS[place % STEP :: STEP]


def is_fit(answer: httpx.Response) -> bool:
    """Whether it is an answer, or a refusal in a dialect's own shape."""
    if answer.status_code < 300:
        return True
    shapes = {"detail", "error", "error_type", "message", "type", "request_id", "id"}
    return 400 <= answer.status_code < 500 and bool(answer.json()) and answer.json().keys() <= shapes


async def test_no_number_of_a_json_body_is_a_5xx(client: httpx.AsyncClient, open_document: dict[str, Any]) -> None:
    usual = bodies()
    places = fields(open_document, usual, left_out=())
    assert len(places) > 200
    assert usual.keys() - {field.path for field in places} <= {"/tokenize", "/v1/ranking"}, "a body without any number"
    wrong: list[tuple[Field, str, int, str]] = []
    for place, field in enumerate(places):
        for number in numbers_of(place):
            headers = {"Content-Type": "application/json"}
            answer = await client.post(field.path, content=field.body(number, usual), headers=headers)
            if not is_fit(answer):
                wrong.append((field, number, answer.status_code, answer.text[:200]))
    assert not wrong


def form_fields(open_document: dict[str, Any], path: str) -> list[str]:
    content = open_document["paths"][path]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    schema = (
        open_document["components"]["schemas"][content["$ref"].rpartition("/")[2]] if "$ref" in content else content
    )
    return [name for name, one in schema["properties"].items() if {"integer", "number"} & _types(one)]


def _types(schema: dict[str, Any]) -> set[str]:
    return {str(schema.get("type"))} | {str(one.get("type")) for one in schema.get("anyOf", ())}


async def test_no_number_of_a_form_is_a_5xx(client: httpx.AsyncClient, open_document: dict[str, Any]) -> None:
    forms = [route.path for route in ROUTES if route.is_inference and not route.examples]
    assert forms == ["/v1/audio/translations", "/v1/audio/transcriptions"]
    for path in forms:
        names = form_fields(open_document, path)
        assert "temperature" in names
        for name in names:
            for number in NUMBERS:
                form = {"model": "speech", name: number}
                answer = await client.post(path, data=form, files={"file": ("a.wav", AUDIO, "audio/wav")})
                assert is_fit(answer), (path, name, number, answer.status_code, answer.text)


def test_each_number_is_sent_somewhere() -> None:
    assert {number for place in range(STEP) for number in numbers_of(place)} == set(NUMBERS)
    assert HOLE not in NUMBERS
