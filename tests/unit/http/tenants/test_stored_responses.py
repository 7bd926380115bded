"""Stored responses: what the engine gets, what is stored, who can read it, and until when."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from openai.types.responses import Response as OpenAIResponse

from models import sse
from models.messages import Chunk, Event, HttpCall, ResponseEnd, ResponseStart, Usage
from registry.bounds import Bounds
from registry.errors import EngineFailed, RoundhouseError, Unavailable
from registry.storage.database import Database
from runtime.gateway.sinks.operators import RequestLog
from runtime.http.responses.conversation import listed
from tenants.caller import Caller, Scope
from tenants.keys.table import KeyTable
from tenants.ledger.ledger import Ledger
from tenants.responses.rows import StoredResponse
from tenants.responses.store import ResponseStore
from tenants.responses.table import ResponseTable
from tenants.storage.opening import open_tables
from tests.fakes.clocks import Clock
from tests.unit.http.fakes import FakeGateway, application
from tests.unit.http.tenants.test_usage import LedgerRig
from tests.unit.tenants.conftest import PEPPER

PATH = "/v1/responses"
SEARCH, SPEECH = (Caller(team, None, frozenset((Scope.INFER,))) for team in ("search", "speech"))
SECRET = "seven small boats"
END = ResponseEnd(usage=Usage(prompt_tokens=7, completion_tokens=3))


def engine_answer(text: str) -> dict[str, Any]:
    """Return the engine's answer of one message."""
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    return {
        "id": "resp_engine", "object": "response", "created_at": 1, "status": "completed", "model": "chat",
        "output": [message], "store": False, "background": False, "previous_response_id": None, "tools": [],
        "tool_choice": "auto", "parallel_tool_calls": True,
    }  # fmt: skip


def script(request: Any) -> list[Event | RoundhouseError]:
    """Answer with the length of the input, which is 5 for the string `hello`."""
    body = json.loads(request.body)
    answer = engine_answer(f"{len(body['input'])} {SECRET}")
    if not body.get("stream"):
        return [
            ResponseStart(status=200, content_type="application/json"),
            Chunk(data=json.dumps(answer).encode()),
            END,
        ]
    events = [
        sse.event({"type": "response.created", "response": {**answer, "output": []}}, "response.created"),
        sse.event({"type": "response.output_text.delta", "delta": SECRET}, "response.output_text.delta"),
        sse.event({"type": "response.completed", "response": answer}, "response.completed"),
    ]
    return [ResponseStart(status=200, content_type="text/event-stream"), *(Chunk(data=one) for one in events), END]


@dataclass
class Rig(LedgerRig):
    store: ResponseStore
    teams: KeyTable

    async def respond(self, caller: Caller = SEARCH, **body: Any) -> httpx.Response:
        return await self.call(caller, "POST", PATH, json={"model": "chat", "input": "hello", **body})

    async def get(self, id_: str, more: str = "", caller: Caller = SEARCH, method: str = "GET") -> httpx.Response:
        return await self.call(caller, method, f"{PATH}/{id_}{more}")

    async def ended(self, id_: str) -> dict[str, Any]:
        """Return a background response after its end."""
        if (task := self.store._running.get(id_)) is not None:
            await asyncio.wait({task})
        found: dict[str, Any] = (await self.get(id_)).json()
        return found

    def given(self) -> dict[str, Any]:
        """Return the body of the engine's last request."""
        found: dict[str, Any] = json.loads(self.gateway.links["chat"].requests[-1].body)
        return found


async def open_store(folder: Path, database: Database, bounds: Bounds) -> ResponseStore:
    store = ResponseStore(folder / "data", bounds=bounds)
    await store.read(database)
    return store


@pytest.fixture
def bounds() -> Bounds:
    return Bounds()


@pytest.fixture
async def rig(tmp_path: Path, bounds: Bounds) -> AsyncIterator[Rig]:
    database = open_tables(tmp_path / "data")
    teams = KeyTable(database, PEPPER)
    for team, hours in (("search", 24), ("speech", 1), ("plain", 0)):
        teams.create_team(team)
        teams.edit_team(team, response_hours=hours)
    ledger = Ledger(tmp_path / "data")
    await ledger.enable(database)
    store = await open_store(tmp_path, database, bounds)
    gateway = FakeGateway(tmp_path, ledger=ledger, responses=store, sinks=[RequestLog()])
    gateway.links["chat"].script = script
    yield Rig(gateway, ledger, database, application(gateway), store, teams)
    await store.close()
    await ledger.close()
    database.close()


# --- requests and answers --------------------------------------------------------------------------------------------
async def test_requests_of_a_team_that_stores_nothing_are_unchanged(rig: Rig) -> None:
    more = {"store": True, "previous_response_id": "resp_1", "background": True}
    answer = await rig.respond(Caller("plain"), **more)
    assert rig.given() == {"model": "chat", "input": "hello", **more}
    assert answer.json() == engine_answer(f"5 {SECRET}")
    missing = await rig.get(answer.json()["id"], caller=Caller("plain"))
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "response_not_found")
    assert "docs/chat.md" in missing.json()["error"]["message"]


async def test_an_answer_is_stored_as_it_was_sent(rig: Rig) -> None:
    given = (await rig.respond(store=True)).json()
    assert rig.given() == {"model": "chat", "input": "hello"}, "the engine stores nothing"
    assert given["id"].startswith("resp_")
    assert given == {**engine_answer(f"5 {SECRET}"), "id": given["id"], "store": True}
    assert (await rig.get(given["id"])).json() == given
    usual = (await rig.respond()).json()
    assert usual["store"], "OpenAI's default"
    unstored = (await rig.respond(store=False)).json()
    assert not unstored["store"]
    assert rig.given()["store"] is False, "a provider would store it"
    assert (await rig.get(unstored["id"])).status_code == 404


@pytest.mark.parametrize("form", ["without names", "name after the data"])
async def test_a_stream_is_stored_without_names_of_its_events(rig: Rig, form: str) -> None:
    """LiteLLM sends none. The answer kept the provider's id, by which nothing was stored."""
    events = [one.data for one in script(HttpCall(path="", body=b'{"input":"","stream":1}', served="", display_name=""))
              if isinstance(one, Chunk)]  # fmt: skip
    empty = sse.event({"type": "response.queued", "response": None}, "response.queued")  # broke the connection
    split = [event.rstrip().split(b"\n") for event in (empty, *events)]
    lines = [line[1:] if form == "without names" else line[::-1] for line in split]
    chunks = [Chunk(data=b"\r\n".join([*line, b"", b""])) for line in lines]
    rig.gateway.links["chat"].script = lambda _: [
        ResponseStart(status=200, content_type="text/event-stream"), *chunks, END
    ]  # fmt: skip
    reader = sse.Reader()
    found = [json.loads(data) for data in reader.feed((await rig.respond(stream=True)).content)]
    ids = {one["response"]["id"] for one in found if one.get("response")}
    assert len(ids) == 1
    assert (await rig.get(ids.pop())).json()["output"] == engine_answer(f"0 {SECRET}")["output"]


async def test_counting_continues_from_a_stored_response_and_stores_nothing(rig: Rig) -> None:
    first = (await rig.respond()).json()
    counted: dict[str, Any] = {"object": "response.input_tokens", "input_tokens": 9}
    start = ResponseStart(status=200, content_type="application/json")
    rig.gateway.links["chat"].script = lambda _: [start, Chunk(data=json.dumps(counted).encode()), END]
    body = {"model": "chat", "input": "more", "previous_response_id": first["id"]}
    answer = await rig.call(SEARCH, "POST", f"{PATH}/input_tokens", json=body)
    assert answer.json() == counted
    turns = [{"type": "message", "role": "user", "content": text} for text in ("hello", "more")]
    assert rig.given() == {"model": "chat", "input": [turns[0], *first["output"], turns[1]]}
    with rig.database.read() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM responses")).scalar() == 1


async def test_a_stream_names_the_same_response_throughout(rig: Rig) -> None:
    events = [json.loads(data) for data in sse.Reader().feed((await rig.respond(stream=True)).content)]
    assert [event["type"].rpartition(".")[2] for event in events] == ["created", "delta", "completed"]
    responses = [event["response"] for event in events if "response" in event]
    assert len({one["id"] for one in responses}) == 1
    assert all(one["store"] for one in responses)
    assert (await rig.get(responses[0]["id"])).json() == responses[-1]


async def test_a_conversation_continues_after_its_first_response_was_deleted(rig: Rig) -> None:
    first = (await rig.respond()).json()
    call_output = {"type": "function_call_output", "call_id": "c1", "output": "on"}
    second = (await rig.respond(input=[call_output], previous_response_id=first["id"], instructions="be brief")).json()
    hello = {"type": "message", "role": "user", "content": "hello"}
    assert rig.given()["input"] == [hello, *first["output"], call_output]
    assert second["previous_response_id"] == first["id"]
    assert (await rig.get(first["id"], method="DELETE")).json() == {
        "id": first["id"], "object": "response", "deleted": True,
    }  # fmt: skip
    assert (await rig.get(first["id"])).status_code == 404
    third = await rig.respond(previous_response_id=second["id"], store=False)
    assert rig.given()["input"] == [hello, *first["output"], call_output, *second["output"], hello]
    assert "instructions" not in rig.given(), "instructions are for one response only"
    assert third.json()["previous_response_id"] == second["id"]
    gone = await rig.respond(previous_response_id=first["id"])
    error = gone.json()["error"]
    assert (gone.status_code, error["code"], error["param"]) == (
        400, "previous_response_not_found", "previous_response_id",
    )  # fmt: skip


@pytest.mark.parametrize("output", [None, "hello", {}])
async def test_an_answer_without_a_list_of_items_cannot_be_continued(rig: Rig, output: Any) -> None:
    answer = {**engine_answer("hello"), "output": output}
    head = ResponseStart(status=200, content_type="application/json")
    rig.gateway.links["chat"].script = lambda _: [head, Chunk(data=json.dumps(answer).encode()), END]
    first = (await rig.respond()).json()["id"]
    second = await rig.respond(previous_response_id=first)
    assert (second.status_code, second.json()["error"]["param"]) == (400, "previous_response_id")


async def test_input_items_are_listed_in_pages(rig: Rig) -> None:
    first = (await rig.respond()).json()
    second = (await rig.respond(previous_response_id=first["id"], input="more")).json()["id"]
    everything = (await rig.get(second, "/input_items?order=asc")).json()
    assert [(one["type"], one["role"], one["content"][0]["text"]) for one in everything["data"]] == [
        ("message", "user", "hello"), ("message", "assistant", f"5 {SECRET}"), ("message", "user", "more"),
    ]  # fmt: skip
    assert all(one["id"] for one in everything["data"])
    assert not everything["has_more"]
    ids, after = [], ""
    for has_more in (True, True, False):
        found = (await rig.get(second, f"/input_items?limit=1{after}")).json()
        assert (found["has_more"], found["first_id"]) == (has_more, found["last_id"])
        ids.append(found["last_id"])
        after = f"&after={ids[-1]}"
    assert ids == [one["id"] for one in everything["data"]][::-1], "newest first"
    assert (await rig.get(second, "/input_items?after=other")).status_code == 400


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"store": "yes"}, "store"),
        ({"background": 1}, "background"),
        ({"previous_response_id": 7}, "previous_response_id"),
        ({"background": True, "store": False}, "store"),
        ({"background": True, "stream": True}, "stream"),
        ({"background": True, "tools": 5}, "tools"),
        ({"background": True, "tools": ["search"]}, "tools[0]"),
        ({"background": True, "input": ["hello"]}, "input"),
        ({"background": True, "input": [None, 5]}, "input"),
    ],
)
async def test_invalid_requests_are_refused(rig: Rig, body: dict[str, Any], param: str) -> None:
    answer = await rig.respond(**body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert rig.gateway.links["chat"].requests == []


@pytest.mark.parametrize("answer", [{}, {"background": False}], ids=str)
async def test_a_response_that_was_not_made_in_the_background_cannot_be_cancelled(
    rig: Rig, answer: dict[str, Any]
) -> None:
    plain = {name: value for name, value in engine_answer("hi").items() if name != "background"}
    start = ResponseStart(status=200, content_type="application/json")
    rig.gateway.links["chat"].script = lambda _: [start, Chunk(data=json.dumps({**plain, **answer}).encode()), END]
    id_ = (await rig.respond()).json()["id"]
    refused = await rig.get(id_, "/cancel", method="POST")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "response_id")


async def test_errors_are_passed_on_and_not_stored(rig: Rig) -> None:
    assert (await rig.call(SEARCH, "POST", PATH, content=b"{")).json()["error"]["code"] == "invalid_json"
    assert (await rig.respond(model="none")).status_code == 404
    rig.gateway.links["chat"].script = lambda _: [EngineFailed("broken")]
    assert (await rig.respond()).status_code == 500
    with rig.database.read() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM responses")).scalar() == 0


async def test_an_answer_that_cannot_be_stored_says_so(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> bool:
        raise Unavailable("full", code="disk_full")

    monkeypatch.setattr(ResponseTable, "put", full)
    answer = await rig.respond()
    assert (answer.status_code, answer.json()["store"]) == (200, False)


# --- other teams -----------------------------------------------------------------------------------------------------
async def test_another_teams_response_does_not_exist(rig: Rig) -> None:
    mine = (await rig.respond()).json()["id"]
    for method, more in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
        found, unknown = [await rig.get(id_, more, SPEECH, method) for id_ in (mine, "resp_none")]
        assert (found.status_code, unknown.status_code) == (404, 404)
        assert found.text.replace(mine, "resp_none") == unknown.text
    refused = await rig.respond(SPEECH, previous_response_id=mine)
    assert refused.json()["error"]["code"] == "previous_response_not_found"
    assert (await rig.get(mine)).status_code == 200


async def test_archived_teams_and_teams_that_stop_storing_lose_their_responses(rig: Rig) -> None:
    mine, other = (await rig.respond()).json()["id"], (await rig.respond(SPEECH)).json()["id"]
    rig.teams.archive("search", True)
    assert (await rig.get(mine)).status_code == 404
    assert not (await rig.respond()).json()["store"], "a request with a key that was valid before is not stored either"
    assert (await rig.get(other, caller=SPEECH)).status_code == 200
    rig.teams.edit_team("speech", response_hours=0)
    assert (await rig.get(other, caller=SPEECH)).status_code == 404
    await rig.store.read(rig.database)
    assert not (await rig.respond(SPEECH, store=True)).json()["store"]


# --- background ------------------------------------------------------------------------------------------------------
async def test_a_background_response_can_be_read_until_and_after_its_end(rig: Rig) -> None:
    link = rig.gateway.links["chat"]
    link.gate.clear()
    begun = (await rig.respond(background=True)).json()
    OpenAIResponse.model_validate(begun, strict=True)
    assert (begun["status"], begun["background"], begun["store"], begun["output"]) == ("in_progress", True, True, [])
    assert (await rig.get(begun["id"])).json() == begun
    streamed = await rig.get(begun["id"], "?stream=true")
    assert (streamed.status_code, streamed.json()["error"]["param"]) == (400, "stream")
    link.gate.set()
    ended = await rig.ended(begun["id"])
    assert (ended["id"], ended["status"], ended["background"]) == (begun["id"], "completed", True)
    assert ended["output"] == engine_answer(f"5 {SECRET}")["output"]
    assert "background" not in rig.given()
    await rig.ledger.flush()
    (row,) = rig.rows()
    assert (row.team, row.endpoint, row.state, row.completion_tokens) == ("search", PATH, "settled", 3)
    assert (await rig.get(begun["id"], "/cancel", method="POST")).json() == ended, (
        "cancelling a finished response changes nothing"
    )
    plain = (await rig.respond()).json()["id"]
    assert (await rig.get(plain, "/cancel", method="POST")).status_code == 400


async def test_background_work_ends_when_it_is_cancelled_or_deleted(rig: Rig) -> None:
    link = rig.gateway.links["chat"]
    link.gate.clear()
    first, second = [(await rig.respond(background=True)).json()["id"] for _ in range(2)]
    while len(link.requests) < 2:  # so that the engine has both to cancel
        await asyncio.sleep(0)
    early = await rig.respond(previous_response_id=first)
    assert "in_progress" in early.json()["error"]["message"]
    cancelled = (await rig.get(first, "/cancel", method="POST")).json()
    assert (cancelled["status"], cancelled) == ("cancelled", (await rig.get(first)).json())
    assert (await rig.get(second, method="DELETE")).status_code == 200
    assert len(link.cancelled) == 2
    assert (await rig.get(second)).status_code == 404
    await rig.ledger.flush()
    assert [row.end for row in rig.rows()] == ["cancelled", "cancelled"]


@pytest.mark.parametrize(
    ("error", "code"), [(EngineFailed("broken"), "server_error"), (Unavailable("loading"), "server_error")]
)
async def test_a_failed_background_response_has_its_error(rig: Rig, error: RoundhouseError, code: str) -> None:
    rig.gateway.links["chat"].script = lambda _: [error]
    failed = await rig.ended((await rig.respond(background=True)).json()["id"])
    assert (failed["status"], failed["error"]) == ("failed", {"code": code, "message": error.message})
    assert (await rig.respond(background=True, model="none")).status_code == 404, (
        "at once, as it is known before the work"
    )


async def test_a_stopped_or_killed_server_leaves_no_response_in_progress(rig: Rig, tmp_path: Path) -> None:
    rig.gateway.links["chat"].gate.clear()
    killed, stopped = [(await rig.respond(background=True)).json()["id"] for _ in range(2)]
    again = await open_store(tmp_path, rig.database, Bounds())  # as after a kill, when no end was written
    for id_ in (killed, stopped):
        found = json.loads((await again.get("search", id_)).answer)
        assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
    await again.close()
    third = (await rig.respond(background=True)).json()["id"]
    await rig.store.close()
    assert (await rig.get(third)).json()["status"] == "failed"


async def test_a_response_whose_end_could_not_be_written_has_failed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    end = ResponseTable.end

    def broken(*_: Any) -> bool:
        raise Unavailable("full", code="disk_full")

    monkeypatch.setattr(ResponseTable, "end", broken)
    link = rig.gateway.links["chat"]
    link.gate.clear()
    id_ = (await rig.respond(background=True)).json()["id"]
    task = rig.store._running[id_]
    link.gate.set()
    await asyncio.wait({task})
    monkeypatch.setattr(ResponseTable, "end", end)
    assert (await rig.get(id_)).json()["status"] == "failed"


# --- bounds and lifetime ---------------------------------------------------------------------------------------------
def sizes(database: Database) -> list[int]:
    with database.read() as connection:
        return list(connection.execute(sa.text("SELECT bytes FROM responses ORDER BY created")).scalars())


@pytest.mark.parametrize("bounds", [Bounds(responses_bytes=2800, response_bytes=1400)])
async def test_the_bytes_of_a_teams_responses_are_bounded(rig: Rig) -> None:
    ids = [(await rig.respond()).json()["id"] for _ in range(9)]
    assert sum(sizes(rig.database)) <= 2800
    stored = [id_ for id_ in ids if (await rig.get(id_)).status_code == 200]
    assert stored == ids[-len(sizes(rig.database)) :], "the oldest are removed"
    long = await rig.respond(input="x" * 1400)
    assert (long.status_code, long.json()["error"]["code"]) == (413, "response_too_large")
    assert (await rig.respond(input="x" * 1400, store=False)).status_code == 200, "as the error advises"
    assert not (await rig.respond(input="x" * 1100)).json()["store"], "too large with its answer"
    long = await rig.respond(background=True, input="x" * 1100)
    assert (long.status_code, long.json()["error"]["code"]) == (413, "response_too_large")
    rig.gateway.links["chat"].gate.clear()
    running = [await rig.respond(background=True, input="x" * 300) for _ in range(3)]
    assert [one.status_code for one in running] == [200, 200, 429]
    assert running[-1].json()["error"]["code"] == "responses_full"
    assert (await rig.get(running[0].json()["id"], "/cancel", method="POST")).status_code == 200
    assert (await rig.respond(background=True)).status_code == 200, "as the error advises"


def test_responses_expire_after_their_hours(tmp_path: Path, clock: Clock) -> None:
    database = open_tables(tmp_path)
    KeyTable(database, PEPPER).create_team("search")
    table = ResponseTable(database, "server", 10_000, clock)
    for id_, hours, running in (("short", 1, False), ("long", 2, False), ("runs", 1, True)):
        assert table.put(id_, "search", hours, b"[]", b'{"status": "x"}', running=running)
    clock.now += 3600
    assert [id_ for id_ in ("short", "long", "runs") if table.get("search", id_)] == ["long", "runs"]
    assert table.sweep() == 1, "a running response is not swept"
    assert table.end("runs", b"{}")
    assert not table.end("runs", b"{}"), "only once"
    assert table.get("search", "runs") is None
    table.put("new", "search", 1, b"[]", b"{}")
    assert len(sizes(database)) == 2, "each new response sweeps, too"
    database.close()


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000_000.0)


# --- logs ----------------------------------------------------------------------------------------------------------
async def test_stored_text_is_not_logged(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="roundhouse.requests"):
        first = (await rig.respond(input=SECRET)).json()["id"]
        await rig.ended((await rig.respond(background=True, previous_response_id=first)).json()["id"])
    assert caplog.records
    assert SECRET not in caplog.text


def test_listed_items_keep_their_kind() -> None:
    """Only a message's type may be left out."""
    items = [{"type": "function_call", "call_id": "c"}, {"role": "user", "content": "hi"}]
    row = StoredResponse("resp_1", "default", "s", 0.0, 1.0, False, json.dumps(items).encode(), b"{}")
    assert [item["type"] for item in listed(row)] == ["function_call", "message"]
    assert [item["id"].partition("_")[0] for item in listed(row)] == ["item", "msg"]


def test_listed_items_have_ids_of_their_own() -> None:
    """A page could not be continued after an id that stands for several items."""
    items = [{"role": "user", "content": "hi", "id": id_} for id_ in ("msg_1", "msg_2", "msg_1", 5, {}, None)]
    row = StoredResponse("resp_1", "default", "s", 0.0, 1.0, False, json.dumps(items).encode(), b"{}")
    ids = [item["id"] for item in listed(row)]
    assert ids[:2] == ["msg_1", "msg_2"]
    assert len(set(ids)) == 6
    assert all(id_.startswith("msg_") for id_ in ids)
