"""Fall-backs, budgets and names of who answered, as a router that is there decides: over HTTP, to fakes on sockets."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from models.messages import Chunk, Event, ResponseEnd, ResponseStart, Usage
from registry.recipes.router import RouterSpec
from registry.state.database import State
from routing.routers.content import RouterContent
from tenants.ledger.ledger import Ledger
from tenants.limits.limiter import Limiter
from tenants.limits.records import Kind, Limit
from tenants.storage.opening import open_tables
from tenants.storage.tables import LEDGER
from tests.fakes import traces
from tests.fakes.provider import HANG, Play
from tests.unit.providers.plays import timeouts
from tests.unit.providers.rig import Rig, rigged_with

TARGETS = [{"name": "first/big"}, {"name": "second/big"}]
LOCAL: list[Event] = [ResponseStart(200, "application/json"), Chunk(b'{"model":"chat"}'), ResponseEnd(Usage(5, 2))]


@asynccontextmanager
async def routed(folder: Path, first: Play, second: Play, **router: Any) -> AsyncIterator[tuple[Rig, list[Any]]]:
    """A gateway with the router `auto`, whose default is `first/big`; and the ledger's rows, once it has ended."""
    database, rows = open_tables(folder / "data"), list[Any]()
    ledger = Ledger(folder / "data")
    await ledger.enable(database)
    scripts: dict[str, Any] = {
        "first": (lambda seen: first, "openai", {"timeouts": timeouts(first)}),
        "second": (lambda seen: second, "anthropic", {}),
    }
    with State(folder / "state") as state:
        async with rigged_with(folder, scripts, state=state, ledger=ledger) as rig:
            spec = {"id": "auto", "targets": TARGETS, "default": "first/big", **router}
            await rig.gateway.routers.add(RouterContent(RouterSpec.model_validate(spec)), "test")
            yield rig, rows
            await rig.gateway.gateway.flush()
    with database.read() as connection:
        rows += connection.execute(sa.select(LEDGER).order_by(LEDGER.c.at, LEDGER.c.attempt))
    await ledger.close()
    database.close()


async def test_the_fallback_that_a_router_names_answers(tmp_path: Path) -> None:
    failing = traces.error(500)
    async with routed(tmp_path, failing, traces.message("big"), fallbacks=["second/big"]) as (rig, rows):
        found = await rig.chat("auto")
        assert found.status_code == 200
        assert (found.json()["model"], found.json()["model_used"]) == ("auto", "second/big")
        assert found.json()["choices"][0]["message"]["content"] == "hello there"
        assert found.headers["x-roundhouse-route"] == "auto@v1 first/big default -", "what was decided"
        assert found.headers["x-roundhouse-model"] == "second/big@v1", "who answered"
        assert found.headers["x-roundhouse-failed-attempts"] == "first/big provider_failed"
    assert [(r.attempt, r.asked, r.router, r.target, r.reason, r.model, r.end, r.code) for r in rows] == [
        (1, "auto", "auto@v1", "first/big", "default", "first/big", "failed", "provider_failed"),
        (2, "auto", "auto@v1", "first/big", "default", "second/big", "done", None),
    ]
    assert len({row.request for row in rows}) == 1
    assert (rows[0].completion_tokens, rows[1].completion_tokens) == (0, 5)


async def test_a_conversation_stays_with_the_target_that_was_chosen(tmp_path: Path) -> None:
    """It is asked first again, and has the conversation once it is back; what is decided of it is told as before."""
    async with routed(tmp_path, traces.error(500), traces.message("big"), fallbacks=["second/big"]) as (rig, rows):
        rig.http.headers["x-conversation-id"] = "c"
        one, two = [await rig.chat("auto") for _ in range(2)]
        rig.fakes[0].script = lambda _: traces.chat("big")
        three = await rig.chat("auto")
        routes = [found.headers["x-roundhouse-route"] for found in (one, two, three)]
        assert routes == ["auto@v1 first/big default -", *2 * ["auto@v1 first/big conversation -"]]
        assert [found.json()["model_used"] for found in (one, two, three)] == ["second/big", "second/big", "first/big"]
        assert (len(rig.fakes[0].seen), len(rig.fakes[1].seen)) == (3, 2)
    assert [row.model for row in rows] == ["first/big", "second/big", "first/big", "second/big", "first/big"]


async def test_a_router_that_names_no_fallback_has_none(tmp_path: Path) -> None:
    async with routed(tmp_path, traces.error(500), traces.message("big")) as (rig, rows):
        found = await rig.chat("auto")
        assert (found.status_code, found.json()["error"]["code"]) == (502, "provider_failed")
        assert "model_used" not in found.text
        assert not rig.fakes[1].seen
    assert [(row.model, row.end) for row in rows] == [("first/big", "failed")]


async def test_after_the_first_word_a_router_sends_nowhere_else(tmp_path: Path) -> None:
    broken = Play([*traces.chat_events("big")[:2], HANG], content_type=traces.EVENTS)
    async with routed(tmp_path, broken, traces.message_stream("big"), fallbacks=["second/big"]) as (rig, rows):
        found = await rig.chat("auto", stream=True)
        events = [json.loads(line[6:]) for line in found.text.splitlines() if line.startswith("data: ")]
        assert (found.status_code, events[0]["model_used"]) == (200, "first/big")
        assert events[-1]["error"]["code"] == "provider_timeout"
        assert "[DONE]" not in found.text
        assert not rig.fakes[1].seen
    assert [(row.model, row.end, row.code) for row in rows] == [("first/big", "failed", "provider_timeout")]


async def test_who_has_spent_its_budget_is_sent_to_what_is_free(tmp_path: Path) -> None:
    """A budget of the team, charged by answers: five tokens at 1 each of the 20 that a day has."""
    limiter = Limiter()
    limiter.replace([Limit("day", "team", "default", Kind.DAY, 20 * 10**6)], {})
    dear = {"models": [{"name": "big", "price": {"output": 1e6}}]}
    scripts: dict[str, Any] = {"first": (lambda seen: traces.chat("big"), "openai", dear)}
    with State(tmp_path / "state") as state:
        async with rigged_with(tmp_path, scripts, limiter=limiter, state=state) as rig:
            rig.gateway.links["chat"].script = lambda _: LOCAL
            targets = [{"name": "first/big", "price": 0}, {"name": "chat", "price": 1}]
            spec = RouterSpec.model_validate({"id": "auto", "targets": targets})
            await rig.gateway.routers.add(RouterContent(spec), "test")
            gave = [(await rig.chat("auto", max_tokens=10)).json()["model_used"] for _ in range(4)]
            assert gave == ["first/big", "first/big", "first/big", "chat"], "with 5 left, 10 could be too many"
            assert (await rig.chat("auto", max_tokens=5)).json()["model_used"] == "first/big"
            reported = await rig.http.post("/v1/route", json={"model": "auto", "messages": [], "max_tokens": 1})
            assert (reported.json()["target"], reported.json()["reason"]) == ("chat", "state"), reported.text
            assert (await rig.chat("first/big", max_tokens=5)).status_code == 429, "by its own name it has no other"


async def test_a_providers_router_reports_no_second_name(tmp_path: Path) -> None:
    """Another Roundhouse's router tells `model_used` of its own: here it is the model of this server that answered."""
    answer = json.loads(bytes(traces.chat("auto").parts[0]))  # type: ignore[index,arg-type]
    whole = Play([json.dumps({"model_used": "theirs", **answer}).encode()])
    async with routed(tmp_path, whole, traces.message("big")) as (rig, _):
        found = (await rig.chat("auto")).text
        assert (found.count("model_used"), json.loads(found)["model_used"]) == (1, "first/big")
        assert "model_used" not in (await rig.chat("first/big")).text, "no router of this server's"
        start, *rest = traces.chat_events("auto")
        reported = start.replace(b"data: {", b'data: {"model_used": "theirs", ', 1)
        rig.fakes[0].script = lambda _: Play([reported, *rest], content_type=traces.EVENTS)
        stream = (await rig.chat("auto", stream=True)).text
        assert (stream.count("model_used"), "theirs" in stream) == (1, False)
