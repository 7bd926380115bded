"""Models over HTTP: listing, retrieving, loading, unloading, planning and pinning."""

import time
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.eventually import eventually
from tests.system.serving import Server

pytestmark = pytest.mark.real
TASKS = {"starter-chat": "chat", "starter-embed": "embed", "starter-rerank": "rerank", "starter-speech": "transcribe"}
CONTEXTS = {"starter-chat": 512, "starter-embed": 256, "starter-rerank": 256, "starter-speech": None}
ALIASES = {"starter-chat": "chat", "starter-embed": "embed", "starter-rerank": "rerank", "starter-speech": "transcribe"}
STATES = ("absent", "loading", "ready", "asleep", "draining", "unloading", "failed")


def post(server: Server, path: str, status: int = 200) -> Any:
    answer = server.http.post(path)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_the_list_has_models_then_adapters_then_routers(server: Server) -> None:
    listed: list[dict[str, Any]] = server.http.get("/v1/models").json()["data"]
    models, adapters = listed[: len(TASKS)], [one for one in listed if "parent" in one]
    routers = listed[len(models) + len(adapters) :]
    assert listed == models + adapters + routers
    assert [one["id"] for one in routers] == ["auto"]
    assert {one["id"]: one["task"] for one in models} == TASKS
    for one in models:
        assert (one["object"], one["owned_by"]) == ("model", "roundhouse")
        assert time.time() - 86400 < one["created"] <= time.time()
        assert one["state"] in STATES
        assert one["aliases"] == [ALIASES[one["id"]]]
        assert one["context_length"] == CONTEXTS[one["id"]], "known whether it is loaded or not"
        assert "parent" not in one
    assert set(models[0]["adapters"]) == {one["id"] for one in adapters} >= {"uppercase", "rot13"}
    for one in adapters:
        assert (one["parent"], one["task"], one["owned_by"]) == ("starter-chat", "chat", "roundhouse")
        assert one["root"] == f"starter-chat:{one['id']}"
        assert one["context_length"] == CONTEXTS["starter-chat"]
        assert one["digest"].startswith("sha256:")
        assert one["created"] <= time.time()


def test_retrieve_takes_every_name(server: Server, client: OpenAI) -> None:
    for name, reported in (("starter-embed", "starter-embed"), ("embed", "starter-embed"), ("uppercase", "uppercase"),
                       ("starter-chat:uppercase", "uppercase"), ("uppercase@v1", "uppercase")):  # fmt: skip
        assert client.models.retrieve(name).id == reported
    with pytest.raises(openai.NotFoundError, match="starter-embed") as missing:
        client.models.retrieve("starter-embedd")
    assert missing.value.code == "model_not_found"


def ask_thrice(server: Server) -> tuple[dict[str, Any], httpx.Response] | None:
    """Request an unloaded model in three ways. Returns the model before, and the answer without a wait.

    None: it was loaded before the third request.
    """
    post(server, "/v1/models/starter-embed/unload")
    absent = server.model("starter-embed")
    assert (absent["state"], absent["bytes"]) == ("absent", 0)
    body = {"model": "embed", "input": "x"}
    late = server.http.post("/v1/embeddings", json=body, headers={"Prefer": "wait=0"})
    requested = server.http.post("/v1/embeddings", json=body, headers={"Prefer": "respond-async"})
    answer = server.http.post("/v1/models/embed/load?wait=false")
    if server.model("starter-embed")["state"] != "loading":
        return None
    assert (requested.status_code, requested.headers["location"]) == (202, "/v1/models/starter-embed")
    assert (answer.status_code, answer.headers["location"]) == (202, "/v1/models/starter-embed")
    assert answer.json()["state"] == "loading"
    return absent, late


def test_load_and_unload_by_hand(server: Server) -> None:
    answers = eventually(lambda: ask_thrice(server))  # a load may be faster than a busy client
    assert answers is not None
    absent, late = answers
    assert (late.status_code, late.json()["error"]["code"]) == (503, "queue_timeout")
    assert int(late.headers["retry-after"]) >= 1
    loaded = server.wait_state("starter-embed", "ready")
    assert loaded["bytes"] > 0
    assert loaded["loads"] == absent["loads"] + 1, "one load for all three"
    assert loaded["context_length"] == absent["context_length"]
    assert post(server, "/v1/models/starter-embed/load")["loads"] == loaded["loads"], "it is there already"
    for path in ("/v1/models/uppercase/load", "/v1/models/nobody/load", "/v1/models/nobody/plan"):
        assert post(server, path, 404)["error"]["code"] == "model_not_found"


def test_a_plan_changes_nothing(server: Server) -> None:
    post(server, "/v1/models/starter-embed/load")
    assert post(server, "/v1/models/embed/plan")["verdict"] == "resident"
    post(server, "/v1/models/starter-embed/unload")
    plan = post(server, "/v1/models/starter-embed/plan")
    assert (plan["verdict"], plan["victims"]) == ("load", [])
    assert 0 < plan["bytes_needed"] < plan["bytes_free"] <= plan["budget_bytes"]
    assert server.model("starter-embed")["state"] == "absent"


def test_a_pin_holds_against_unload_and_loads_nothing(server: Server) -> None:
    post(server, "/v1/models/starter-embed/unload")
    try:
        pinned = server.http.put("/v1/models/starter-embed/pin").json()
        assert (pinned["pinned"], pinned["state"]) == (True, "absent")
        post(server, "/v1/models/starter-embed/load")
        assert post(server, "/v1/models/starter-embed/unload", 409)["error"]["code"] == "model_pinned"
        assert server.model("starter-embed")["state"] == "ready"
        assert post(server, "/v1/models/starter-embed/unload?force=true")["state"] == "absent"
    finally:
        assert server.http.delete("/v1/models/starter-embed/pin").json()["pinned"] is False


def test_a_wrong_method_is_a_405_that_says_so(server: Server) -> None:
    for method, path in (("PATCH", "/v1/models"), ("PUT", "/v1/models/starter-chat"), ("GET", "/v1/embeddings")):
        answer = server.http.request(method, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
