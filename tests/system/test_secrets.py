"""Requests' and answers' content stays out of the log and the metrics, even if requests are invalid.

The shared server's log level is `debug`, so it logs as much as it can.
"""

import json
import re
from typing import Any

import pytest

from tests.system.serving import PACK, Server
from tests.unit.guard.test_keys import INFER, ROUTES

pytestmark = pytest.mark.real
SECRET = "Xyzzy77Plugh"
AS_JSON = {"Content-Type": "application/json"}
HEADERS = {"Authorization": f"Bearer sk-{SECRET}", "X-Api-Key": SECRET}
SAMPLE = PACK / "samples" / "kitchen-light.wav"
MESSAGES = [{"role": "user", "content": SECRET}]
TOOL = {"type": "function", "function": {"name": SECRET, "description": SECRET, "parameters": {"type": "object"}}}
TGI = {"inputs": SECRET, "parameters": {"max_new_tokens": 4}}
PAIR = {"query": SECRET, "documents": [SECRET, {"text": SECRET, "x": SECRET}]}
LISTS = {
    "GET /v1/files": "after", "GET /v1/batches": "after", "GET /v1/messages/batches": "after_id",
    "GET /v1/webhook_endpoints": "after",
}  # fmt: skip
"""Routes that list a team's objects, and the parameter that names one of them."""
FORMS = {"/v1/audio/transcriptions", "/v1/audio/translations"}
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"messages": MESSAGES, "max_tokens": 4},
        {"messages": MESSAGES, "max_tokens": 4, "tools": [TOOL]},
        {"messages": MESSAGES, "max_tokens": 4, "structured_outputs": {"choice": [SECRET, "no"]}},
        {"messages": MESSAGES, "max_tokens": 4, "structured_outputs": {"grammar": f'root ::= "{SECRET}'}},
        {"messages": [{"role": SECRET, "content": SECRET}]},
        {"messages": [{"role": "user", "content": SECRET * 100}]},
        {"messages": SECRET, SECRET: 1},
    ],
    "/v1/completions": [{"prompt": SECRET, "max_tokens": 4, "stream": True}],
    "/v1/batch": [{"input_file_id": SECRET, "url": "/v1/messages", "metadata": {SECRET: SECRET}}],
    "/v1/messages/batches": [{"requests": [{"custom_id": SECRET, "params": {"messages": MESSAGES}}], SECRET: SECRET}],
    "/v1/batches": [{"input_file_id": SECRET, "endpoint": "/v1/messages", "metadata": {SECRET: SECRET}}],
    "/v1/webhook_endpoints": [{"name": SECRET, "url": f"https://127.0.0.1:9/{SECRET}", "event_types": [SECRET]}],
    "/v1/responses": [{"input": SECRET, "max_output_tokens": 4, "metadata": {SECRET: SECRET}}],
    "/v1/responses/input_tokens": [{"input": SECRET, "instructions": SECRET}],
    "/v1/messages": [{"messages": MESSAGES, "system": SECRET, "max_tokens": 4}],
    "/v1/messages/count_tokens": [{"messages": MESSAGES, "system": SECRET}],
    "/tokenize": [{"prompt": SECRET}],
    "/detokenize": [{"tokens": SECRET}],
    "/generate": [TGI],
    "/generate_stream": [TGI],
    "/": [TGI],
    "/v1/embeddings": [{"input": [SECRET, ""]}, {"input": SECRET, "user": SECRET}, {"input": f"{SECRET} " * 400}],
    "/embed": [{"inputs": SECRET}],
    "/v1/rerank": [PAIR],
    "/v2/rerank": [PAIR],
    "/v2/chat": [{"messages": MESSAGES, "max_tokens": 4}],
    "/v1/embed": [{"texts": [SECRET]}],
    "/v2/embed": [{"texts": [SECRET], "input_type": "search_document"}],
    "/rerank": [{"query": SECRET, "texts": [SECRET]}],
    "/score": [{"text_1": SECRET, "text_2": [SECRET]}],
    "/v1/ranking": [{"query": {"text": SECRET}, "passages": [{"text": SECRET}], SECRET: SECRET}],
    "/v1/score": [{"text_1": SECRET, "text_2": SECRET, SECRET: SECRET}],
    "/api/chat": [{"messages": MESSAGES, "stream": False, "options": {"num_predict": 4}}],
    "/api/generate": [{"prompt": SECRET, "system": SECRET, "options": {"num_predict": 4}}],
    "/api/embed": [{"input": SECRET}],
    "/api/embeddings": [{"prompt": SECRET}],
    "/v1/route": [{"messages": MESSAGES}],
    "/v1/feedback": [{"request": SECRET, "accepted": SECRET, "comment": SECRET}],
}
MODELS = {"embed": "embed", "rerank": "rerank", "ranking": "rerank", "score": "rerank", "route": "auto"}
"""Models by a word of the path; otherwise the chat model."""


def model_for(path: str) -> str:
    return next((model for word, model in MODELS.items() if word in path), "starter-chat")


WEBHOOK = "/v1/webhook_endpoints/{webhook_endpoint_id}"
BY_ID_WITH_BODY: dict[str, Any] = {
    WEBHOOK: {"name": SECRET},
    f"{WEBHOOK}/rotate_secret": {},
    f"{WEBHOOK}/test": {"event_type": "batch.failed"},
}
"""Bodies of the POST routes that take an id and a body, by path."""
BY_ID = [route.split() for route, scopes in ROUTES.items() if scopes == INFER and "_id}" in route]
"""Method and path of each route that takes an id."""
WITHOUT_WORDS = {"GET /v1/webhook_event_types", "GET /v1/callback_secret", "/v1/callback_secret/rotate", "/v1/files"}
"""Routes that take no text of a client, except for the last one, whose form is below."""


def test_every_path_that_takes_what_clients_say_is_tried() -> None:
    requested = {route.removeprefix("POST ") for route, scopes in ROUTES.items() if scopes == INFER}
    by_id = {f"{method} {path}".removeprefix("POST ") for method, path in BY_ID}
    assert requested - by_id - LISTS.keys() - WITHOUT_WORDS == BODIES.keys() | FORMS


def test_nothing_of_a_request_or_its_answer_is_logged(server: Server) -> None:
    statuses = set()
    for path, bodies in BODIES.items():
        for body in bodies:
            answer = server.http.post(path, json={"model": model_for(path), **body}, headers=HEADERS)
            statuses.add((path, answer.status_code))
            cut = json.dumps(body)[:-1].encode()
            assert server.http.post(path, content=cut, headers=HEADERS | AS_JSON).status_code == 400, path
    assert {status for _, status in statuses} <= {200, 400, 404, 422}, statuses
    assert BODIES.keys() - {path for path, status in statuses if status == 200} == {
        "/detokenize", "/v1/batch", "/v1/batches", "/v1/feedback", "/v1/messages/batches",
        "/v1/webhook_endpoints",
    }  # fmt: skip
    form = {"model": "starter-speech", "prompt": SECRET, "hotwords": SECRET}
    for path in FORMS:
        known = 200 if path.endswith("transcriptions") else 400  # the model only knows English
        for name, content, status in (
            (f"{SECRET}.wav", SAMPLE.read_bytes(), known),
            (f"{SECRET}.mp3", SECRET.encode(), 400),
        ):
            received = server.http.post(path, data=form, files={"file": (name, content)}, headers=HEADERS)
            assert received.status_code == status, received.text
    for method, path in BY_ID:
        body = BY_ID_WITH_BODY.get(path) if method == "POST" else None
        named = server.http.request(method, re.sub(r"{\w+}", SECRET, path), json=body, headers=HEADERS)
        assert named.status_code == 404, named.text
    for route, parameter in LISTS.items():
        listed = server.http.get(route.removeprefix("GET "), params={parameter: SECRET}, headers=HEADERS)
        assert listed.status_code == 400
    name = f"{SECRET}.jsonl"
    sent = server.http.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": (name, SECRET.encode())}, headers=HEADERS
    )
    assert (sent.status_code, sent.json()["status"]) == (200, "error")
    stated = server.http.post(
        "/v1/chat/completions", json={"model": "uppercase", "messages": [{"role": "user", "content": "the red bird"}]}
    ).json()["choices"][0]["message"]["content"]
    assert len(stated) > 8
    log = server.log.read_text(errors="replace")
    assert log, "the server logs its loads"
    assert SECRET not in log
    assert SAMPLE.with_suffix(".txt").read_text().strip() not in log
    assert stated not in log
    assert SECRET not in server.http.get("/metrics").text
    assert SECRET not in server.http.get("/v1/status").text
    assert SECRET not in server.http.get("/v1/signal").text
