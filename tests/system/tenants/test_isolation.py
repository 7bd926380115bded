"""Teams are isolated: prefix caches in every API, adapters, stored responses, and what requests reveal."""

from typing import Any

import openai
import pytest
from openai.types.responses import ResponseFunctionToolCall

from tests.eventually import PATIENCE, eventually
from tests.system.serving import PACK, Server

pytestmark = pytest.mark.real
WORDS = "seven small boats lay in the green harbour of the old town "
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "chat " + WORDS * 6}], "max_tokens": 2},
    "/v1/completions": {"prompt": "completions " + WORDS * 6, "max_tokens": 2},
    "/v1/responses": {"input": "responses " + WORDS * 6, "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "messages " + WORDS * 6}], "max_tokens": 2},
}


@pytest.fixture(scope="module")
def keyed(locked: Server) -> tuple[Server, str, str]:
    keys = []
    for team in ("harbour", "market"):
        locked.command("teams", "create", team)
        made = locked.command("keys", "create", "--team", team, "--scopes", "infer,models,adapters,paths,usage")
        keys.append(made["value"])
    eventually(lambda: locked.http.get("/v1/models", headers={"x-api-key": keys[-1]}).status_code == 200)
    return locked, keys[0], keys[1]


def cached(server: Server, key: str, path: str, **more: Any) -> float:
    """Return how many of a prompt's tokens were found in the cache, by the server's own count."""
    headers = {"x-api-key": key}

    def count() -> float:
        text = server.http.get("/metrics", headers=headers).text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if 'kind="cached"' in line)

    before = count()
    answer = server.http.post(path, json={"model": "starter-chat", **REQUESTS[path], **more}, headers=headers)
    assert answer.status_code == 200, answer.text
    return count() - before


@pytest.mark.parametrize("path", REQUESTS)
def test_another_teams_prompt_is_not_in_the_cache(keyed: tuple[Server, str, str], path: str) -> None:
    server, harbour, market = keyed
    assert cached(server, harbour, path) == 0
    assert cached(server, market, path) == 0
    assert cached(server, harbour, path) > 0
    assert cached(server, market, path) > 0
    if path != "/v1/messages":  # the others accept a salt from the client
        assert cached(server, harbour, path, cache_salt="mine") == 0
        assert cached(server, harbour, path, cache_salt="mine") > 0
        assert cached(server, market, path, cache_salt="mine") == 0


def _register(server: Server, key: str, content: str, **more: Any) -> Any:
    source = {"path": str(PACK / "adapters" / content)}
    body = {"name": "tune", "base": "starter-chat", "source": source, **more}
    return server.http.post("/v1/adapters", json=body, headers={"x-api-key": key})


def _chat(server: Server, key: str, model: str) -> tuple[int, str]:
    """Return the status, and the answer or the error's code."""
    body = {"model": model, "messages": [{"role": "user", "content": "hello world"}], "temperature": 0}
    answer = server.http.post("/v1/chat/completions", json=body, headers={"x-api-key": key})
    found = answer.json()
    if answer.status_code != 200:
        return answer.status_code, str(found["error"]["code"])
    return 200, str(found["choices"][0]["message"]["content"])


def test_one_name_of_two_teams_is_two_adapters_and_never_the_others(keyed: tuple[Server, str, str]) -> None:
    server, harbour, market = keyed
    assert _register(server, harbour, "uppercase").status_code == 201
    assert _chat(server, harbour, "tune") == (200, "HELLO WORLD")
    assert _chat(server, market, "tune") == (404, "model_not_found")
    assert _chat(server, market, "harbour/tune") == (404, "model_not_found")
    assert _register(server, market, "reverse-words").status_code == 201
    for _ in range(3):  # in turn, so that each finds the other's adapter in the engine
        assert _chat(server, harbour, "tune") == (200, "HELLO WORLD")
        assert _chat(server, market, "tune") == (200, "world hello")

    def http(key: str, method: str, path: str) -> Any:
        return server.http.request(method, f"/v1/adapters{path}", headers={"x-api-key": key})

    mine = {"uppercase", "tune"}
    assert mine <= {a["name"] for a in http(harbour, "GET", "").json()["data"]}
    assert {a["team"] for a in http(harbour, "GET", "").json()["data"]} == {"default", "harbour"}
    for method, path in (("GET", "/harbour/tune"), ("DELETE", "/harbour/tune"), ("PUT", "/harbour/tune/pin")):
        assert http(market, method, path).status_code == 404

    assert http(harbour, "PUT", "/tune/shared").json()["shared"]
    assert _chat(server, market, "harbour/tune") == (200, "HELLO WORLD")
    assert _chat(server, market, "starter-chat:harbour/tune@v1") == (200, "HELLO WORLD")
    assert _chat(server, market, "tune") == (200, "world hello")
    models = server.http.get("/v1/models", headers={"x-api-key": market}).json()["data"]
    assert {"tune", "harbour/tune"} <= {model["id"] for model in models}
    assert http(market, "GET", "/harbour/tune").json()["name"] == "harbour/tune"
    refused = http(market, "DELETE", "/harbour/tune")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_your_adapter")
    assert http(market, "DELETE", "/uppercase").status_code == 403

    assert http(market, "DELETE", "/tune").status_code == 200
    assert _chat(server, market, "tune") == (404, "model_not_found")
    assert _chat(server, market, "uppercase") == (200, "HELLO WORLD")
    text = server.http.get("/metrics", headers={"x-api-key": harbour}).text
    assert 'roundhouse_adapter_requests_total{adapter="harbour/tune",model="starter-chat"}' in text
    assert not http(harbour, "DELETE", "/tune/shared").json()["shared"]
    assert _chat(server, market, "harbour/tune") == (404, "model_not_found")
    assert _chat(server, harbour, "tune") == (200, "HELLO WORLD")


def test_one_team_does_not_see_the_requests_and_usage_of_another(keyed: tuple[Server, str, str]) -> None:
    server, harbour, market = keyed
    headers = [{"x-api-key": key} for key in (harbour, market)]
    body = {"model": "starter-chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}

    def get(reader: dict[str, str], path: str, **params: str) -> Any:
        return server.http.get(path, headers=reader, params=params)

    def requests(reader: dict[str, str]) -> dict[str, int]:
        reported = get(reader, "/v1/usage", group_by="team", **{"from": "2026-01-01"}).json()["data"]
        return {row["team_id"]: row["requests"] for row in reported}

    before = [sum(requests(reader).values()) for reader in headers]
    requested = [server.http.post("/v1/chat/completions", json=body, headers=by) for by in (*headers, headers[0])]
    assert [answer.status_code for answer in requested] == [200] * 3
    assert [requests(reader) for reader in headers] == [{"harbour": before[0] + 2}, {"market": before[1] + 1}]
    ids = [answer.headers["x-request-id"] for answer in requested]
    for team, reader, own, other in (("harbour", headers[0], ids[0], ids[1]), ("market", headers[1], ids[1], ids[0])):
        assert {row["team"] for row in get(reader, f"/v1/requests/{own}").json()["ledger"]} == {team}
        unknown = get(reader, f"/v1/requests/{other}")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "request_not_found")
        other_place = "market" if team == "harbour" else "harbour"
        for path in ("/v1/usage", "/v1/usage/daily"):
            refused = get(reader, path, team_id=other_place)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_scope"), path
        assert get(reader, "/v1/organization/usage/completions", start_time="0").status_code == 403
    judged = server.http.post("/v1/feedback", json={"request_id": ids[0], "accepted": True}, headers=headers[1])
    assert judged.status_code == 404, "nor may it judge another's answer"


LAMP: Any = {
    "type": "function",
    "name": "set_lamp",
    "parameters": {
        "type": "object",
        "properties": {"on": {"type": "boolean"}},
        "required": ["on"],
        "additionalProperties": False,
    },
    "strict": True,
}


def test_stored_responses_go_on_and_are_their_teams(keyed: tuple[Server, str, str]) -> None:
    """Covers a conversation with a tool, a stream, work in the background, and another team's requests."""
    server, harbour, market = keyed
    server.command("teams", "edit", "harbour", "--store-responses", "1")
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key=harbour, max_retries=0, timeout=PATIENCE) as mine,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key=market, max_retries=0, timeout=PATIENCE) as theirs,
    ):
        options: Any = {"model": "starter-chat", "temperature": 0, "max_output_tokens": 24}
        eventually(lambda: mine.responses.create(input="hi", **options).store is True)
        first = mine.responses.create(
            input="Turn the lamp on.", tools=[LAMP], tool_choice={"type": "function", "name": "set_lamp"}, **options
        )
        (call,) = [item for item in first.output if isinstance(item, ResponseFunctionToolCall)]
        assert mine.responses.retrieve(first.id) == first
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "the lamp is on"}
        second = mine.responses.create(input=[result], tools=[LAMP], previous_response_id=first.id, **options)
        assert second.previous_response_id == first.id
        items = list(mine.responses.input_items.list(second.id, order="asc", limit=1))
        assert [item.type for item in items] == ["message", "function_call", "function_call_output"]
        assert second.usage is not None
        assert first.usage is not None
        assert second.usage.input_tokens > first.usage.input_tokens, "the model was given all of it"

        *_, last = mine.responses.create(input="what is a slot", stream=True, **options)
        assert last.type in ("response.completed", "response.incomplete")
        assert mine.responses.retrieve(last.response.id) == last.response

        begun = mine.responses.create(input="what is a slot", background=True, **options)
        eventually(lambda: mine.responses.retrieve(begun.id).status not in ("queued", "in_progress"))
        ended = mine.responses.retrieve(begun.id)
        assert (ended.status, ended.output_text) == (last.response.status, last.response.output_text)
        assert mine.responses.cancel(begun.id).status == ended.status

        with pytest.raises(openai.NotFoundError):
            theirs.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError, match="leave 'previous_response_id' out"):
            theirs.responses.create(input="and?", previous_response_id=first.id, **options)
        mine.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            mine.responses.retrieve(first.id)
    text = server.log.read_text()
    assert "lamp" not in text
    assert begun.id not in text
