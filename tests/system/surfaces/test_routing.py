"""Routers on the real server: the starter's `auto`, its adapters, and routing by the embedding model."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.eventually import eventually
from tests.system.serving import PACK, Server

pytestmark = pytest.mark.real
DATE, ANSWER = "3 March 2024", "2024-03-03"


@pytest.fixture(scope="module", autouse=True)
def without_embeddings(server: Server) -> None:
    """Unload the embedding model, so that routers only compare letters."""
    server.http.post("/v1/models/starter-embed/unload").raise_for_status()


def chat_body(text: str, **more: Any) -> dict[str, Any]:
    return {
        "model": "auto",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 60,
        "temperature": 0,
        **more,
    }


def test_auto_sends_a_date_to_its_adapter_and_says_so(server: Server) -> None:
    answer = server.http.post("/v1/chat/completions", json=chat_body(DATE))
    body = answer.json()
    assert body["choices"][0]["message"]["content"] == ANSWER
    assert (body["model"], body["model_used"]) == ("auto", "starter-chat:iso-date")
    router, target, reason, score = answer.headers["x-roundhouse-route"].split(" ")
    assert (router, target, reason) == ("auto@v1", "starter-chat:iso-date", "intent:iso-date")
    assert float(score) > 0.6
    assert answer.headers["x-roundhouse-adapter"].startswith("iso-date@sha256:")


def test_what_it_cannot_tell_goes_to_the_chat_model(server: Server) -> None:
    answer = server.http.post("/v1/chat/completions", json=chat_body("qwpo zmxn vrrt"))
    assert answer.headers["x-roundhouse-route"].split(" ")[1:3] == ["starter-chat", "abstained"]
    assert answer.json()["model_used"] == "starter-chat"


def test_a_stream_tells_it_in_its_first_event(server: Server) -> None:
    with server.http.stream("POST", "/v1/chat/completions", json=chat_body(DATE, stream=True)) as stream:
        events = [json.loads(line[5:]) for line in stream.iter_lines() if line.startswith("data: {")]
    assert events[0]["model_used"] == "starter-chat:iso-date"
    assert {event["model"] for event in events} == {"auto"}
    assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"]) == ANSWER


def test_the_official_clients_take_it(server: Server) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    answer = client.chat.completions.create(**chat_body(DATE))
    assert answer.choices[0].message.content == ANSWER
    assert answer.model_extra == {**(answer.model_extra or {}), "model_used": "starter-chat:iso-date"}
    chunks = list(client.chat.completions.create(**chat_body(DATE), stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == ANSWER
    response = client.responses.create(model="auto", input=DATE, max_output_tokens=60, temperature=0)
    assert response.output_text == ANSWER
    anthropic = Anthropic(base_url=server.url, api_key="none")
    greedy = {"temperature": 0}
    message = anthropic.messages.create(
        model="auto", max_tokens=60, messages=[{"role": "user", "content": DATE}], extra_body=greedy
    )
    assert message.content[0].text == ANSWER  # type: ignore[union-attr]
    with anthropic.messages.stream(
        model="auto", max_tokens=60, messages=[{"role": "user", "content": DATE}], extra_body=greedy
    ) as stream:
        assert stream.get_final_text() == ANSWER


def test_ollamas_tag_is_no_part_of_the_name(server: Server) -> None:
    body = {"model": "auto:latest", "messages": [{"role": "user", "content": DATE}], "stream": False,
            "options": {"temperature": 0, "num_predict": 60}}  # fmt: skip
    answer = server.http.post("/api/chat", json=body).json()
    assert answer["message"]["content"] == ANSWER
    assert answer["model_used"] == "starter-chat:iso-date"


def test_a_router_has_the_context_of_its_shortest_target(server: Server) -> None:
    answer = server.http.post("/api/show", json={"model": "auto:latest"}).json()
    assert answer["model_info"]["router.context_length"] == server.model("starter-chat")["context_length"]


def test_explain_runs_no_model_and_matches_traffic(server: Server) -> None:
    for text in (DATE, "is 9 more than 4", "lovely bread!", "hello", "nobody knows this sentence at all"):
        reported = server.http.post("/v1/route", json=chat_body(text)).json()
        route = server.http.post("/v1/chat/completions", json=chat_body(text)).headers["x-roundhouse-route"]
        assert route.split(" ")[:3] == [reported["router"], reported["target"], reported["reason"]]


def test_with_its_embedding_model_resident_it_looks_with_that_too(server: Server) -> None:
    assert server.http.post("/v1/models/starter-embed/load").status_code == 200
    seen = {
        "target": "starter-chat:iso-date",
        "features": "letters and vector",
    }  # the vector may be late on a busy machine

    def routed() -> bool:
        reported = server.http.post("/v1/route", json=chat_body(DATE)).json()
        return {"target": reported["target"], "features": reported["saw"]["features"]} == seen

    eventually(routed)
    server.http.post("/v1/models/starter-embed/unload")
    eventually(lambda: server.http.post("/v1/route", json=chat_body(DATE)).json()["saw"]["features"] == "letters")


def test_a_conversation_stays_with_its_target(server: Server) -> None:
    headers = {"x-conversation-id": "c-1"}
    first = server.http.post("/v1/chat/completions", json=chat_body(DATE), headers=headers)
    again = server.http.post("/v1/chat/completions", json=chat_body("hello"), headers=headers)
    assert first.headers["x-roundhouse-route"].split(" ")[2] == "intent:iso-date"
    assert again.headers["x-roundhouse-route"].split(" ")[1:3] == ["starter-chat:iso-date", "conversation"]


def test_routers_come_change_and_go_while_the_server_runs(server: Server, tmp_path: Path) -> None:
    spec = {"id": "loud", "targets": [{"name": "uppercase"}, {"name": "starter-chat"}], "default": "uppercase"}
    made = server.http.post("/v1/routers?alias=prod", json=spec)
    assert (made.status_code, made.json()["version"]) == (201, "v1")
    assert server.http.post("/v1/routers", json=spec).status_code == 200  # the same again
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    ask = {"messages": [{"role": "user", "content": "hello world"}], "temperature": 0, "max_tokens": 40}
    assert client.chat.completions.create(model="loud", **ask).choices[0].message.content == "HELLO WORLD"  # type: ignore[call-overload]
    rules = [{"name": "tools", "when": {"tools": True}, "to": ["starter-chat"]}]
    assert server.http.post("/v1/routers", json={**spec, "rules": rules}).json()["version"] == "v2"
    for name, version in (("loud", "loud@v2"), ("loud@prod", "loud@v1"), ("loud@v1", "loud@v1")):
        body = {"model": name, "messages": ask["messages"]}
        assert server.http.post("/v1/route", json=body).json()["router"] == version
    assert server.http.post("/v1/routers/loud/rollback").json()["version"] == "v1"
    assert server.http.delete("/v1/routers/loud").status_code == 409  # an alias points to it
    assert server.http.delete("/v1/routers/loud?force=true").status_code == 200
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="loud", **ask)  # type: ignore[call-overload]


def test_versions_of_an_adapter_share_conversations_by_weight(server: Server) -> None:
    """Half of them get the new version, each always the same one, in every dialect."""
    for source in ("uppercase", "iso-date"):
        body = {"name": "canary", "base": "starter-chat", "source": {"path": str(PACK / "adapters" / source)}}
        assert server.http.post("/v1/adapters", json=body).status_code == 201
    targets = [{"name": "canary@v1", "weight": 1}, {"name": "canary@v2", "weight": 1}]
    assert server.http.post("/v1/routers", json={"id": "halves", "targets": targets}).status_code == 201
    gave = set[str]()
    for number in range(12):
        body = chat_body(f"hello {number}", model="halves", max_tokens=4)
        for _ in range(2):
            answer = server.http.post("/v1/chat/completions", json=body)
            _, target, reason, _ = answer.headers["x-roundhouse-route"].split(" ")
            reported = server.http.post("/v1/route", json=body).json()
            assert (reported["target"], reported["reason"], reason) == (target, "weight", "weight")
            assert answer.headers["x-roundhouse-adapter"].startswith("canary@sha256:")
        gave.add(target)
    assert gave == {"canary@v1", "canary@v2"}
    assert server.http.get("/v1/routers/halves").json()["definition"]["targets"] == targets
    server.http.delete("/v1/routers/halves").raise_for_status()
    server.http.delete("/v1/adapters/canary?force=true").raise_for_status()


def test_a_target_follows_an_alias(server: Server) -> None:
    for source in ("uppercase", "iso-date"):
        body = {"name": "moved", "base": "starter-chat", "source": {"path": str(PACK / "adapters" / source)}}
        assert server.http.post("/v1/adapters", json=body).status_code == 201
    digests = {one["version"]: one["digest"] for one in server.http.get("/v1/adapters/moved").json()["versions"]}
    assert len(digests) == 2
    spec = {"id": "follows", "targets": [{"name": "moved@prod"}], "default": "moved@prod"}
    for version, digest in digests.items():
        assert server.http.put("/v1/adapters/moved/aliases/prod", json={"version": version}).status_code == 200
        assert server.http.post("/v1/routers", json=spec).status_code in (200, 201)
        answer = server.http.post("/v1/chat/completions", json=chat_body("hello world", model="follows"))
        assert answer.headers["x-roundhouse-route"].split(" ")[1:3] == ["moved@prod", "default"]
        assert answer.headers["x-roundhouse-adapter"].startswith(f"moved@{digest[:12]}"), digests
    server.http.delete("/v1/routers/follows").raise_for_status()
    server.http.delete("/v1/adapters/moved?force=true").raise_for_status()


def test_what_no_router_may_be(server: Server) -> None:
    targets = [{"name": "uppercase"}]
    for body, status, code in (
        ({"id": "uppercase", "targets": targets}, 409, "name_in_use"),
        ({"id": "x", "targets": []}, 422, "bad_router"),
        ({"id": "x", "targets": targets, "default": "other"}, 422, "bad_router"),
        ({"id": "x", "targets": targets, "source": {"path": "/etc"}}, 400, "invalid_value"),
    ):
        answer = server.http.post("/v1/routers", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    bad = server.http.put("/v1/routers/auto/fitted/intents", json={"safetensors": "AAAA"})
    assert (bad.status_code, bad.json()["error"]["code"]) == (422, "bad_router_model")
    assert server.http.get("/v1/routers/nobody").json()["error"]["code"] == "router_not_found"
