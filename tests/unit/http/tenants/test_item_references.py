"""References of requests to items of stored answers by id, as Vercel's AI SDK writes them."""

import json
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa

from models import sse
from models.messages import Chunk, Event, ResponseStart
from registry.bounds import Bounds
from registry.errors import RoundhouseError
from tests.unit.http.tenants.test_stored_responses import END, SPEECH, Rig, bounds, engine_answer, rig

__all__ = ["bounds", "rig"]
HELLO = {"type": "message", "role": "user", "content": "hello"}
Json = dict[str, Any]


def reference(id_: Any) -> Json:
    return {"type": "item_reference", "id": id_}


@pytest.fixture(autouse=True)
def answers(rig: Rig) -> None:
    """Script answers of a reasoning item and a message with new ids."""
    numbers = count(1)

    def script(request: Any) -> list[Event | RoundhouseError]:
        number = next(numbers)
        answer = engine_answer(f"answer {number}")
        thought = {"id": f"rs_{number}", "type": "reasoning", "summary": []}
        answer["output"] = [thought, {**answer["output"][0], "id": f"msg_{number}"}]
        if json.loads(request.body).get("stream"):
            data = sse.event({"type": "response.completed", "response": answer}, "response.completed")
            return [ResponseStart(status=200, content_type="text/event-stream"), Chunk(data=data), END]
        head = ResponseStart(status=200, content_type="application/json")
        return [head, Chunk(data=json.dumps(answer).encode()), END]

    rig.gateway.links["chat"].script = script


async def error(rig: Rig, status: int, *items: Json, **more: Any) -> Json:
    answer = await rig.respond(input=list(items), **more)
    assert answer.status_code == status
    found: Json = answer.json()["error"]
    assert (found["type"], found["param"]) == ("invalid_request_error", "input")
    return found


@pytest.mark.parametrize("begun", [{}, {"stream": True}, {"background": True}])
@pytest.mark.parametrize("then", [{}, {"stream": True}, {"background": True}, {"store": False}])
async def test_references_are_replaced_by_their_items(rig: Rig, begun: Json, then: Json) -> None:
    await stored_id(rig, await rig.respond(**begun), begun)
    items = [HELLO, reference("rs_1"), {"id": "msg_1"}, HELLO]
    second = await rig.respond(input=items, **then)
    assert second.status_code == 200
    last = await stored_id(rig, second, then)
    given = rig.given()["input"]
    assert [item.get("id") for item in given] == [None, "rs_1", "msg_1", None]
    assert given[2]["content"][0]["text"] == "answer 1"
    if last is not None:
        listed = (await rig.get(last, "/input_items?order=asc")).json()["data"]
        assert [item["id"] for item in listed[1:3]] == ["rs_1", "msg_1"]
        await rig.respond(previous_response_id=last)
        assert len(rig.given()["input"]) == len(items) + 2 + 1


async def stored_id(rig: Rig, answer: Any, request: Json) -> str | None:
    """Return the id of a response after its end, or None if it is not stored."""
    body = answer.json() if not request.get("stream") else json.loads(answer.text.partition("data: ")[2])["response"]
    if request.get("background"):
        assert (await rig.ended(body["id"]))["status"] == "completed"
    return body["id"] if body["store"] else None


async def test_items_are_removed_with_their_response(rig: Rig) -> None:
    first = (await rig.respond()).json()["id"]
    assert (await rig.respond(input=[reference("msg_1")])).status_code == 200
    await rig.get(first, method="DELETE")
    gone = await error(rig, 404, reference("msg_1"))
    assert gone["code"] == "item_not_found"
    assert "store: false" in gone["message"]
    with rig.database.read() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM response_items")).scalar() == 2, (
            "those of the second answer"
        )


async def test_an_item_that_was_not_stored_does_not_exist(rig: Rig) -> None:
    await rig.respond(store=False)
    assert (await error(rig, 404, reference("msg_1")))["code"] == "item_not_found"
    assert len(rig.gateway.links["chat"].requests) == 1


async def test_another_teams_item_does_not_exist(rig: Rig) -> None:
    await rig.respond(SPEECH)
    theirs, unknown = [(await error(rig, 404, reference(id_)))["message"] for id_ in ("msg_1", "msg_none")]
    assert theirs.replace("msg_1", "msg_none") == unknown


async def test_an_item_may_be_in_a_conversation_only_once(rig: Rig) -> None:
    first = (await rig.respond()).json()["id"]
    twice = await error(rig, 400, reference("msg_1"), reference("msg_1"))
    assert twice["code"] == "duplicate_item"
    brought = await error(rig, 400, reference("msg_1"), previous_response_id=first)
    assert brought == twice


async def test_an_id_that_a_provider_gives_twice_is_ambiguous(rig: Rig) -> None:
    rig.gateway.links["chat"].script = lambda _: [
        ResponseStart(status=200, content_type="application/json"),
        Chunk(data=json.dumps(engine_answer("same id")).encode()),
        END,
    ]
    await rig.respond()
    assert (await rig.respond(input=[reference("msg_1")])).status_code == 200
    assert (await error(rig, 400, reference("msg_1")))["code"] == "ambiguous_item"


@pytest.mark.parametrize("id_", [None, 7, ["msg_1"], {}, True])
async def test_an_id_that_is_no_string_is_refused(rig: Rig, id_: Any) -> None:
    await error(rig, 400, reference(id_))
    assert (await rig.respond(input=[{"type": "item_reference"}])).status_code == 400


@pytest.mark.parametrize("id_", ["", "\0", "x" * 100_000, "é"])
async def test_odd_ids_do_not_exist(rig: Rig, id_: str) -> None:
    assert len((await error(rig, 404, reference(id_)))["message"]) < 1000


@pytest.mark.parametrize("output", [None, 7, [5], [None], [{"id": 5}], [{}], "x"])
async def test_items_without_an_id_are_stored_but_not_found(rig: Rig, output: Any) -> None:
    answer = {**engine_answer("odd"), "output": output}
    rig.gateway.links["chat"].script = lambda _: [
        ResponseStart(status=200, content_type="application/json"),
        Chunk(data=json.dumps(answer).encode()),
        END,
    ]
    stored = (await rig.respond()).json()
    assert (await rig.get(stored["id"])).json()["output"] == output


@pytest.mark.parametrize("bounds", [Bounds(response_bytes=2000)])
async def test_the_bytes_of_referenced_items_are_bounded(rig: Rig) -> None:
    ids = [f"msg_{number}" for number in range(1, 21)]
    for _ in ids:
        await rig.respond()
    for more in ({}, {"store": False}):
        assert (await error(rig, 413, *map(reference, ids), **more))["code"] == "response_too_large"
    assert (await rig.respond(input=[reference(id_) for id_ in ids[:3]])).status_code == 200


async def test_more_items_than_one_query_reads_are_found(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenants.responses.store.ITEMS_AT_ONCE", 2)
    for _ in range(5):
        await rig.respond()
    ids = [f"msg_{number}" for number in (5, 3, 1, 2, 4)]
    assert (await rig.respond(input=[reference(id_) for id_ in ids])).status_code == 200
    assert [item["id"] for item in rig.given()["input"]] == ids
