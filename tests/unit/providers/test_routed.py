"""Fall-backs, budgets and names of the answering model with a real router, over HTTP, with fakes on sockets."""

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
from tests.fakes.provider import CUT, HANG, Play
from tests.unit.providers.plays import timeouts
from tests.unit.providers.rig import Rig, rigged_with

TARGETS = [{"name": "first/big"}, {"name": "second/big"}]
LOCAL: list[Event] = [ResponseStart(200, "application/json"), Chunk(b'{"model":"chat"}'), ResponseEnd(Usage(5, 2))]


@asynccontextmanager
async def routed(folder: Path, first: Play, second: Play, **router: Any) -> AsyncIterator[tuple[Rig, list[Any]]]:
    """Yield a gateway with the router `auto`, default `first/big`, and a list for the ledger's rows at its end."""
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
        assert found.headers["x-roundhouse-route"] == "auto@v1 first/big default -", "the router's decision"
        assert found.headers["x-roundhouse-model"] == "second/big@v1", "the model that answered"
        assert found.headers["x-roundhouse-failed-attempts"] == "first/big provider_failed"
    assert [(r.attempt, r.asked, r.router, r.target, r.reason, r.model, r.end, r.code) for r in rows] == [
        (1, "auto", "auto@v1", "first/big", "default", "first/big", "failed", "provider_failed"),
        (2, "auto", "auto@v1", "first/big", "default", "second/big", "done", None),
    ]
    assert len({row.request for row in rows}) == 1
    assert (rows[0].completion_tokens, rows[1].completion_tokens) == (0, 5)


async def test_ollamas_durations_are_those_of_the_last_attempt(tmp_path: Path) -> None:
    """The first token of an attempt that then failed made `prompt_eval_duration` negative."""
    events = traces.chat_events("big", tool=True)[:2]  # the call is not sent before it is complete
    first = Play([*events, CUT], content_type=traces.EVENTS)
    body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
    async with routed(tmp_path, first, traces.message_stream("big"), fallbacks=["second/big"]) as (rig, _):
        found = await rig.http.post("/api/chat", json=body)
        assert found.headers["x-roundhouse-failed-attempts"] == "first/big provider_failed"
        last = json.loads(found.text.splitlines()[-1])
        assert [name for name, value in last.items() if name.endswith("_duration") and value < 0] == []


async def test_a_conversation_keeps_its_target_despite_a_fallback(tmp_path: Path) -> None:
    """The chosen target is tried first each time, and continues the conversation once it has recovered."""
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


async def test_a_router_without_fallbacks_reports_the_error(tmp_path: Path) -> None:
    async with routed(tmp_path, traces.error(500), traces.message("big")) as (rig, rows):
        found = await rig.chat("auto")
        assert (found.status_code, found.json()["error"]["code"]) == (502, "provider_failed")
        assert "model_used" not in found.text
        assert not rig.fakes[1].seen
    assert [(row.model, row.end) for row in rows] == [("first/big", "failed")]


async def test_a_routed_stream_that_has_begun_has_no_fallback(tmp_path: Path) -> None:
    broken = Play([*traces.chat_events("big")[:2], HANG], content_type=traces.EVENTS)
    async with routed(tmp_path, broken, traces.message_stream("big"), fallbacks=["second/big"]) as (rig, rows):
        found = await rig.chat("auto", stream=True)
        events = [json.loads(line[6:]) for line in found.text.splitlines() if line.startswith("data: ")]
        assert (found.status_code, events[0]["model_used"]) == (200, "first/big")
        assert events[-1]["error"]["code"] == "provider_timeout"
        assert "[DONE]" not in found.text
        assert not rig.fakes[1].seen
    assert [(row.model, row.end, row.code) for row in rows] == [("first/big", "failed", "provider_timeout")]


async def test_a_team_with_a_spent_budget_is_routed_to_a_free_model(tmp_path: Path) -> None:
    """Each answer has five tokens at 1 each, out of the team's budget of 20 per day."""
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
            assert gave == ["first/big", "first/big", "first/big", "chat"], (
                "5 are left, and a request of 10 might exceed them"
            )
            assert (await rig.chat("auto", max_tokens=5)).json()["model_used"] == "first/big"
            reported = await rig.http.post("/v1/route", json={"model": "auto", "messages": [], "max_tokens": 1})
            assert (reported.json()["target"], reported.json()["reason"]) == ("chat", "state"), reported.text
            assert (await rig.chat("first/big", max_tokens=5)).status_code == 429, (
                "a model named directly has no alternative"
            )


async def test_targets_share_conversations_by_weight_as_explained(tmp_path: Path) -> None:
    """The targets are a provider's model and one on this machine; a continued conversation stays where it began."""
    scripts: dict[str, Any] = {"first": (lambda seen: traces.chat("big"), "openai", {})}
    with State(tmp_path / "state") as state:
        async with rigged_with(tmp_path, scripts, state=state) as rig:
            rig.gateway.links["chat"].script = lambda _: LOCAL
            targets = [{"name": "first/big", "weight": 3}, {"name": "chat", "weight": 1}]
            spec = {"id": "auto", "targets": targets, "fallbacks": ["chat"]}
            await rig.gateway.routers.add(RouterContent(RouterSpec.model_validate(spec)), "test")
            gave = list[str]()
            for number in range(60):
                messages = [{"role": "user", "content": f"question {number}"}]
                body = {"model": "auto", "messages": messages}
                reported = (await rig.http.post("/v1/route", json=body)).json()
                answer = await rig.http.post("/v1/chat/completions", json=body)
                assert answer.headers["x-roundhouse-route"] == f"auto@v1 {reported['target']} weight -"
                assert reported["saw"]["weights"] == "first/big 3, chat 1"
                gave.append(answer.json()["model_used"])
                assert gave[-1] == reported["target"]
                messages += [{"role": "assistant", "content": "hello"}, {"role": "user", "content": "and?"}]
                again = await rig.http.post("/v1/chat/completions", json=body)
                assert again.headers["x-roundhouse-route"] == f"auto@v1 {gave[-1]} conversation -"
            assert 5 <= gave.count("chat") <= 27, "a quarter, and always the same ones"


async def test_a_providers_router_reports_no_second_name(tmp_path: Path) -> None:
    """The provider may be a router of another Roundhouse, whose `model_used` is replaced by this server's."""
    answer = json.loads(bytes(traces.chat("auto").parts[0]))  # type: ignore[index,arg-type]
    whole = Play([json.dumps({"model_used": "theirs", **answer}).encode()])
    async with routed(tmp_path, whole, traces.message("big")) as (rig, _):
        found = (await rig.chat("auto")).text
        assert (found.count("model_used"), json.loads(found)["model_used"]) == (1, "first/big")
        assert "model_used" not in (await rig.chat("first/big")).text, "no router of this server was used"
        start, *rest = traces.chat_events("auto")
        reported = start.replace(b"data: {", b'data: {"model_used": "theirs", ', 1)
        rig.fakes[0].script = lambda _: Play([reported, *rest], content_type=traces.EVENTS)
        stream = (await rig.chat("auto", stream=True)).text
        assert (stream.count("model_used"), "theirs" in stream) == (1, False)
