"""Ledger rows of requests to scripted engines, and `GET /v1/usage`."""

import asyncio
import csv
import io
import json
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from models.messages import Chunk, ResponseEnd, ResponseStart, Usage
from registry.errors import BadRequest, EngineFailed, Unavailable
from registry.recipes.definition import Prices, Task
from registry.storage.database import Database
from runtime.gateway.context import RequestContext
from runtime.gateway.names import ModelRef
from runtime.gateway.target import Target
from runtime.http.routes import ENDPOINTS
from runtime.http.routing import endpoints
from tenants.caller import EVERYBODY, Caller, Scope
from tenants.costs.compare import ProviderPrice
from tenants.keys.table import KeyTable
from tenants.ledger.ledger import Ledger
from tenants.ledger.rows import Entry, Settlement
from tenants.ledger.table import LedgerTable
from tenants.ledger.view import UsageReport
from tenants.limits.limiter import Limiter
from tenants.limits.records import Kind, Limit
from tenants.storage.opening import open_tables
from tests.fakes.clocks import LimiterClock
from tests.unit.http.answering import answer
from tests.unit.http.fakes import CallerLayer, FakeGateway, Wire, application

PATH = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "chat", "messages": []}
STREAM = ResponseStart(status=200, content_type="text/event-stream")
CHUNK = Chunk(data=b"data: {}\n\n")
END = ResponseEnd(usage=Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=4))
SEARCH = Caller("search", "key00001", frozenset((Scope.INFER, Scope.USAGE)))
SPEECH = Caller("speech", "key00002", frozenset((Scope.INFER, Scope.USAGE)))
ADMIN = Caller("default", "key00003", frozenset((Scope.ADMIN,)))


@dataclass
class LedgerRig:
    """A scripted gateway with a ledger in a file."""

    gateway: FakeGateway
    ledger: Ledger
    database: Database
    app: FastAPI

    async def ask(self, caller: Caller = SEARCH, **more: Any) -> int:
        context = RequestContext("r-1", caller)
        found = await answer(self.gateway.gateway, context, ENDPOINTS[PATH], json.dumps({**BODY, **more}).encode())
        return found.status

    def rows(self) -> list[Any]:
        with self.database.read() as connection:
            return list(connection.execute(sa.text("SELECT * FROM ledger ORDER BY at, uid")).all())

    async def usage(self, caller: Caller, **params: Any) -> httpx.Response:
        return await self.call(caller, "GET", "/v1/usage", params=params)

    async def call(self, caller: Caller, method: str, path: str, **more: Any) -> httpx.Response:
        app = application(self.gateway, [(CallerLayer, {"caller": caller})])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
            return await client.request(method, path, **more)


@pytest.fixture
def limiter() -> Limiter:
    return Limiter(clock=LimiterClock())


@pytest.fixture
async def rig(tmp_path: Path, limiter: Limiter) -> AsyncIterator[LedgerRig]:
    database = open_tables(tmp_path / "data")
    ledger = Ledger(tmp_path / "data")
    await ledger.enable(database)
    gateway = FakeGateway(tmp_path, ledger=ledger, limiter=limiter)
    gateway.links["chat"].script = lambda _: [STREAM, CHUNK, END]
    gateway.links["chat"].tokens = (7, 1, 4)
    yield LedgerRig(gateway, ledger, database, application(gateway))
    await ledger.close()
    database.close()


async def test_rows_have_the_times_of_the_ledgers_clock(rig: LedgerRig) -> None:
    """The clocks of a fleet's servers may differ."""
    rig.ledger.clock = lambda: 3_600_010.0
    assert await rig.ask() == 200
    assert [(row.at, row.hour) for row in rig.rows()] == [(3_600_010.0, 3_600_000)]
    sums = (await rig.usage(SEARCH, group_by="hour")).json()["data"]
    assert [(one["hour"], one["requests"]) for one in sums] == [(3_600_000, 1)]


async def test_an_engine_sees_no_request_before_the_ledger_has_it(rig: LedgerRig) -> None:
    seen: list[tuple[str, str]] = []
    rig.gateway.links["chat"].look = lambda _: seen.extend((row.state, row.team) for row in rig.rows())
    assert await rig.ask() == 200
    assert seen == [("open", "search")]


async def test_the_maximum_is_reserved_even_without_a_limit(rig: LedgerRig, limiter: Limiter) -> None:
    """It bounds the loss if the server is killed, and counts for a limit that is set during the request."""
    recipe = rig.gateway.entries["chat"].recipe
    rig.gateway.entries["chat"].recipe = recipe.model_copy(update={"price": Prices(input=1, output=2)})
    link, size = rig.gateway.links["chat"], len(json.dumps({**BODY, "max_tokens": 10}, separators=(",", ":")))
    link.gate.clear()
    task = asyncio.create_task(rig.ask(max_tokens=10))
    await link.started.wait()
    (row,) = rig.rows()
    assert (row.state, row.reserved_tokens, row.reserved_micro) == ("open", size + 10, size + 20)
    cap = Limit("t", "team", "search", Kind.TOKENS, 6000)
    limiter.replace([cap], {})
    assert limiter.levels(SEARCH, "chat")[Kind.TOKENS].remaining == 6000 - size - 10
    link.gate.set()
    assert await task == 200
    assert limiter.levels(SEARCH, "chat")[Kind.TOKENS].remaining == 6000 - 10


@pytest.mark.parametrize("explicit_tokens", [2**40, 2**63 - 1, 10**30])
async def test_a_request_over_the_databases_bounds_blocks_no_other(rig: LedgerRig, explicit_tokens: int) -> None:
    """Rows of several requests are one transaction, which comes before the engine could refuse such a number."""
    recipe = rig.gateway.entries["chat"].recipe
    rig.gateway.entries["chat"].recipe = recipe.model_copy(update={"price": Prices(input=1, output=1e6)})
    assert await asyncio.gather(rig.ask(n=explicit_tokens), *(rig.ask(SPEECH) for _ in range(4))) == [200] * 5
    assert {row.state for row in rig.rows()} == {"settled"}


async def test_numbers_and_codes_of_a_provider_are_cut_for_the_ledger(rig: LedgerRig) -> None:
    rig.gateway.links["chat"].script = lambda _: [STREAM, CHUNK, ResponseEnd(usage=Usage(prompt_tokens=10**30))]
    assert await rig.ask() == 200
    rig.gateway.links["chat"].script = lambda _: [BadRequest("no", code="\0" + "c" * 1000)]
    assert await rig.ask(SPEECH) == 400
    await rig.gateway.gateway.flush()
    assert {(row.state, row.prompt_tokens, row.code) for row in rig.rows()} == {
        ("settled", 10**15, None),
        ("settled", 0, "c" * 64),
    }


async def test_a_server_without_teams_checks_no_limits(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path).gateway
    target = Target("chat", "chat", "rev")
    with gateway.record(RequestContext("r"), PATH) as request:
        request.attempt.target = target
        request.understood(ModelRef(Task.CHAT), lambda _: pytest.fail("computed without need"))
        await gateway.admit(request)
        assert request.attempt.admission is None


async def test_an_answered_request_is_settled_in_the_ledger(rig: LedgerRig) -> None:
    assert await rig.ask() == 200
    (row,) = rig.rows()
    assert (row.state, row.end, row.status, row.code) == ("settled", "done", 200, None)
    assert (row.team, row.key, row.model, row.revision, row.endpoint) == ("search", "key00001", "chat", "rev", PATH)
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (7, 4, 3)


async def test_the_query_of_an_adapters_address_is_not_recorded(
    rig: LedgerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold a signature or a token. The client's own answer has the name as it was written."""

    async def provide(*_: Any) -> ModelRef:
        return ModelRef(Task.CHAT, "chat")

    monkeypatch.setattr(rig.gateway.gateway.on_demand, "provide", provide)
    name = "chat:https://x.org/legal.tar?token=5d"
    assert await rig.ask(model=name) == 200
    assert [request.display_name for request in rig.gateway.links["chat"].requests] == [name]
    recorded = "chat:https://x.org/legal.tar?…"
    assert [row._mapping["asked"] for row in rig.rows()] == [recorded]
    history = rig.gateway.gateway.services.console.history.rows()
    assert [msgspec.structs.asdict(row)["asked"] for row in history] == [recorded]


@pytest.mark.parametrize(
    ("error", "end", "status"),
    [
        (EngineFailed("broke"), "failed", 500),
        (Unavailable("died", code="engine_died"), "engine_died", 503),
    ],
)
async def test_failed_requests_are_settled_with_their_error(rig: LedgerRig, error: Any, end: str, status: int) -> None:
    rig.gateway.links["chat"].script = lambda _: [error]
    assert await rig.ask() == status
    await rig.gateway.gateway.flush()
    (row,) = rig.rows()
    assert (row.state, row.end, row.status, row.code) == ("settled", end, status, error.code)


async def test_a_client_that_leaves_is_charged_for_the_tokens_made_so_far(rig: LedgerRig) -> None:
    link = rig.gateway.links["chat"]
    link.gate.clear()
    link.free = 2
    wire = Wire(rig.app, PATH, [json.dumps({**BODY, "stream": True}).encode()])
    task = asyncio.create_task(wire.run())
    await wire.first.wait()
    wire.leave.set()
    await task
    await rig.gateway.gateway.flush()
    (row,) = rig.rows()
    assert (row.state, row.end, row.prompt_tokens, row.completion_tokens) == ("settled", "cancelled", 7, 1)


async def test_a_request_for_an_unknown_model_has_no_row(rig: LedgerRig) -> None:
    assert await rig.ask(model="nobody") == 404
    await rig.gateway.gateway.flush()
    assert rig.rows() == []


async def test_a_team_sees_what_it_used_and_an_admin_sees_all(rig: LedgerRig) -> None:
    await asyncio.gather(*(rig.ask(caller) for caller in (SEARCH, SEARCH, SPEECH)))
    found = (await rig.usage(SEARCH)).json()
    assert found["data"] == [{**found["data"][0], "requests": 2, "input_tokens": 14, "output_tokens": 6}]
    assert (await rig.usage(SEARCH, team_id="search", group_by="team")).json()["data"][0]["team_id"] == "search"
    refused = await rig.usage(SEARCH, team_id="speech")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_scope")
    teams = (await rig.usage(ADMIN, group_by=["team", "key,model"])).json()
    assert teams["group_by"] == ["team", "key", "model"]
    assert {(one["team_id"], one["api_key_id"], one["model"], one["requests"]) for one in teams["data"]} == {
        ("search", "key00001", "chat", 2),
        ("speech", "key00002", "chat", 1),
    }
    assert (await rig.usage(ADMIN, team_id="speech")).json()["data"][0]["requests"] == 1
    assert (await rig.usage(ADMIN, date="2001-01-01")).json()["data"][0]["requests"] == 0


async def test_an_unknown_team_is_refused_unless_it_has_rows(rig: LedgerRig) -> None:
    missing = await rig.usage(ADMIN, team_id="serch")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "team_not_found")
    assert missing.json()["error"]["param"] == "team_id"
    KeyTable(rig.database, b"pepper").create_team("idle")
    assert (await rig.usage(ADMIN, team_id="idle")).json()["data"][0]["requests"] == 0
    await rig.ask(SEARCH)
    assert (await rig.usage(ADMIN, team_id="search")).json()["data"][0]["requests"] == 1, (
        "though no such team exists now"
    )


@pytest.mark.parametrize("wrong", [{"group_by": "user"}, {"date": "today"}, {"from": "9", "to": "8"}])
async def test_invalid_queries_are_refused(rig: LedgerRig, wrong: dict[str, str]) -> None:
    found = await rig.usage(ADMIN, **wrong)
    assert found.status_code == 400
    assert found.json()["error"]["param"] in (*wrong, "group_by")


async def test_metrics_and_ledger_count_the_same_for_many_requests(rig: LedgerRig) -> None:
    link = rig.gateway.links["chat"]
    link.script = lambda _: [STREAM, CHUNK, END]
    statuses = [await asyncio.gather(*(rig.ask() for _ in range(30))) for _ in range(10)]
    assert {status for batch in statuses for status in batch} == {200}
    found = (await rig.usage(ADMIN)).json()["data"][0]
    assert (found["requests"], found["input_tokens"], found["output_tokens"]) == (300, 2100, 900)
    assert LedgerTable(rig.database, "").differences() == []
    counted = rig.gateway.metrics.tokens.labels("chat", "prompt")._value.get()
    assert counted == 2100, "metrics and ledger count the same"


async def test_a_server_without_tables_has_no_ledger(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    gateway.links["chat"].script = lambda _: [STREAM, CHUNK, END]
    assert (await client.post(PATH, json=BODY)).status_code == 200
    found = await client.get("/v1/usage")
    assert (found.status_code, found.json()["error"]["code"]) == (404, "no_ledger")
    assert gateway.records.all[0].entry is None


async def test_usage_has_costs_feedback_daily_reports_and_csv(rig: LedgerRig, tmp_path: Path) -> None:
    recipe = rig.gateway.entries["chat"].recipe
    rig.gateway.entries["chat"].recipe = recipe.model_copy(update={"price": Prices(input=1, output=2)})
    with rig.database.write() as connection:
        connection.execute(sa.text("INSERT INTO teams (id, name, created) VALUES ('search', 'Search', 5.0)"))
    assert await rig.ask() == 200
    for accepted in (False, False, True):
        body = {"request_id": "r-1", "accepted": accepted}
        assert (await rig.call(SEARCH, "POST", "/v1/feedback", json=body)).status_code == 200
    metrics = rig.gateway.metrics
    judged = {word: metrics.judged.labels("chat", word)._value.get() for word in ("accepted", "rejected")}
    assert judged == {"accepted": 1, "rejected": 1}, "the same feedback twice counts once"
    assert metrics.cost.labels("chat")._value.get() == pytest.approx(13e-6)
    (found,) = (await rig.usage(SEARCH)).json()["data"]
    assert (found["cost"], found["cost_per_accepted"], found["rejected"]) == (13e-6, 13e-6, 0)
    assert found["device_seconds"] > 0
    unknown = await rig.call(SPEECH, "POST", "/v1/feedback", json={"request_id": "r-1", "accepted": True})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "request_not_found")
    text = (await rig.usage(SEARCH, group_by="model", format="csv")).text
    assert [row["model"] for row in csv.DictReader(io.StringIO(text))] == ["chat"]
    nothing = await rig.usage(SEARCH, group_by="model", format="csv", date="2020-01-01")
    assert nothing.text == text.splitlines(keepends=True)[0], "an empty file has the columns, too"
    today = time.strftime("%Y-%m-%d", time.gmtime())
    for form, start in (("json", b'{"object":"usage.day"'), ("csv", b"team,date"), ("html", b"<!doctype html>")):
        params = {"date": today, "format": form}
        day = await rig.call(SEARCH, "GET", "/v1/usage/daily", params=params)
        assert day.status_code == 200
        assert day.content.startswith(start)
    other = await rig.call(SPEECH, "GET", "/v1/usage/daily", params={"team_id": "search"})
    assert other.status_code == 403
    none = await rig.call(SEARCH, "GET", "/v1/usage/comparison")
    assert (none.status_code, none.json()["error"]["code"]) == (404, "no_prices")
    table = tmp_path / "prices.yaml"
    table.write_text("- {provider: p, model: m, for: ['*'], from: 2020-01-01, output: 20}")
    gateway = rig.gateway.gateway
    gateway.services = replace(gateway.services, usage=UsageReport(rig.ledger, "EUR", table))
    (row,) = (await rig.call(SEARCH, "GET", "/v1/usage/comparison")).json()["data"]
    assert (row["theirs"], row["ours"], round(row["saving_percent"], 1)) == (60e-6, 13e-6, 78.3)


async def test_a_table_of_prices_is_not_read_on_the_event_loop(rig: LedgerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred rows take 30 ms, which would delay every stream."""
    threads: list[threading.Thread] = []

    def read(_: Path) -> list[ProviderPrice]:
        threads.append(threading.current_thread())
        return []

    monkeypatch.setattr("tenants.ledger.view.read_prices", read)
    gateway = rig.gateway.gateway
    gateway.services = replace(gateway.services, usage=UsageReport(rig.ledger, "EUR", Path("prices.yaml")))
    for path in ("comparison", "daily?team_id=default"):
        await rig.call(ADMIN, "GET", f"/v1/usage/{path}")
    assert len(threads) == 2
    assert threading.main_thread() not in threads


async def test_a_team_sees_its_own_request_with_its_ledger_rows(rig: LedgerRig) -> None:
    await rig.ask(SEARCH)
    mine = await rig.call(SEARCH, "GET", "/v1/requests/r-1")
    found = mine.json()
    assert (mine.status_code, found["record"]["end"], found["record"]["causes"].keys() >= {"queue"}) == (
        200,
        "done",
        True,
    )
    assert [(row["team"], row["state"], row["completion_tokens"]) for row in found["ledger"]] == [
        ("search", "settled", 3)
    ]
    assert "messages" not in mine.text
    assert (await rig.call(ADMIN, "GET", "/v1/requests/r-1")).status_code == 200
    other = await rig.call(SPEECH, "GET", "/v1/requests/r-1")
    assert (other.status_code, other.json()["error"]["code"]) == (404, "request_not_found")
    assert "search" not in other.text, "the owner is not revealed"


async def test_a_routers_report_covers_only_the_callers_team(rig: LedgerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.gateway.gateway.services.routers, "show", lambda name: SimpleNamespace(name=name))
    for team in ("search", "speech"):
        entry = Entry(team, "r-1", 1, time.time(), team, "", PATH, f"{team}-model", "rev", "", "interactive", "api",
                      router="auto@v1", reason="state")  # fmt: skip
        LedgerTable(rig.database, "").write([entry], [Settlement(entry, "done", 200, None)])
    operator = Caller("default", "key00004", frozenset((Scope.ADMIN, Scope.MODELS)))
    models = Caller("search", "key00005", frozenset((Scope.MODELS,)))
    for caller, seen in ((operator, ["search-model", "speech-model"]), (models, ["search-model"])):
        found = (await rig.call(caller, "GET", "/v1/routers/auto/report")).json()
        assert (found["requests"], [one["target"] for one in found["outcomes"]]) == (len(seen), seen)


async def test_a_report_is_computed_in_a_thread(rig: LedgerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest report took two seconds, during which no stream got a token."""
    threads: list[threading.Thread] = []
    monkeypatch.setattr(rig.gateway.gateway.services.routers, "show", lambda name: SimpleNamespace(name=name))
    monkeypatch.setattr(endpoints, "replay", lambda rows: threads.append(threading.current_thread()) or [])
    assert (await rig.call(ADMIN, "GET", "/v1/routers/auto/report")).status_code == 200
    assert [thread is threading.main_thread() for thread in threads] == [False]


async def test_without_keys_and_limits_requests_are_counted_without_waiting_for_a_commit(
    rig: LedgerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.gateway.links["chat"].script = lambda _: [STREAM, CHUNK, END]
    sink: Any = rig.gateway.gateway._ledger
    monkeypatch.setattr(sink, "_is_lenient", lambda: True)
    monkeypatch.setattr(rig.ledger, "begin", lambda _: pytest.fail("the request waits for a commit"))
    assert [await rig.ask(EVERYBODY) for _ in range(3)] == [200] * 3
    [row] = (await rig.usage(EVERYBODY, group_by="team")).json()["data"]
    assert (row["team_id"], row["requests"], row["output_tokens"]) == ("default", 3, 9)
    assert LedgerTable(rig.database, "").differences() == []


async def test_without_keys_and_limits_a_broken_ledger_stops_no_request(
    rig: LedgerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.gateway.links["chat"].script = lambda _: [STREAM, CHUNK, END]
    monkeypatch.setattr(type(rig.ledger), "is_failing", True)
    assert rig.gateway.gateway.degraded == ["ledger_unavailable"]
    sink: Any = rig.gateway.gateway._ledger
    monkeypatch.setattr(sink, "_is_lenient", lambda: True)
    assert rig.gateway.gateway.degraded == ["usage_uncounted"]
    assert await rig.ask(EVERYBODY) == 200
    monkeypatch.setattr(type(rig.ledger), "is_failing", False)
    monkeypatch.setattr(type(rig.ledger), "backlog", 10_001)
    assert await rig.ask(EVERYBODY) == 200
    assert rig.rows() == [], "rows that cannot be written are dropped, so that memory is bounded"
