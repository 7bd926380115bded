"""Which fields of a chat request are refused because the engine would drop them."""

import json
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import BaseModel, Field

from models import chat_fields
from registry.errors import BadRequest

CHAT, MESSAGES, COUNT = "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"


class Asked(BaseModel):
    model: str
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class Counted(BaseModel):
    model: str


@pytest.fixture
def fields() -> chat_fields.Fields:
    app = FastAPI()

    @app.post(CHAT)
    @app.post("/v1/responses")
    @app.post(MESSAGES)
    @app.post("/tokenize")
    async def ask(request: Asked) -> None: ...

    @app.post(COUNT)
    async def count(request: Counted) -> None: ...

    return chat_fields.known(app)


def test_fields_come_from_the_applications_own_classes(fields: chat_fields.Fields) -> None:
    assert fields[CHAT] == {"model", "schema_", "schema"}
    assert fields[COUNT] == fields[MESSAGES]  # what a message may hold does not disturb its count
    assert "/tokenize" not in fields


@pytest.mark.parametrize(
    "more",
    [
        {"schema": {"a": 1}},
        {"metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_key": "k"},
        {"store": False, "modalities": ["text"], "best_of": 1, "function_call": "none", "verbosity": "medium"},
        {"audio": None, "functions": []},
    ],
)
def test_let_through(fields: chat_fields.Fields, more: dict[str, Any]) -> None:
    chat_fields.check(fields, CHAT, json.dumps({"model": "m", **more}).encode())


@pytest.mark.parametrize(
    ("path", "more", "param", "words"),
    [
        (CHAT, {"nonsense": 1}, "nonsense", "Unrecognized request argument supplied: nonsense"),
        (CHAT, {"web_search_options": {}}, "web_search_options", "leave it out"),
        (CHAT, {"modalities": ["audio"]}, "modalities", "leave it out"),
        (CHAT, {"store": True}, "store", "leave it out"),
        (MESSAGES, {"top": 1}, "top", "top: Extra inputs are not permitted"),
        ("/v1/responses", {"store": True}, "store", "not stored"),
        ("/v1/responses", {"tools": [{"type": "function"}, {"type": "mcp"}]}, "tools[1].type", "'mcp'"),
    ],
)
def test_refused(fields: chat_fields.Fields, path: str, more: dict[str, Any], param: str, words: str) -> None:
    known = {**fields, "/v1/responses": fields["/v1/responses"] | {"store", "tools"}}
    with pytest.raises(BadRequest, match=words.replace("[", r"\[")) as refused:
        chat_fields.check(known, path, json.dumps({"model": "m", **more}).encode())
    assert refused.value.param == param


@pytest.mark.parametrize("tools", ["word", [1], {"a": 1}, None, [{"type": 4}], []])
def test_what_is_no_list_of_tools_is_left_to_the_engine(fields: chat_fields.Fields, tools: Any) -> None:
    known = {**fields, "/v1/responses": fields["/v1/responses"] | {"tools"}}
    chat_fields.check(known, "/v1/responses", json.dumps({"model": "m", "tools": tools}).encode())


def test_other_paths_ignore_what_they_do_not_know(fields: chat_fields.Fields) -> None:
    chat_fields.check(fields, "/tokenize", b'{"model": "m", "nonsense": 1}')
