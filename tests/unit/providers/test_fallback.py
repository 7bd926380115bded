"""Attempts at a router's fall-backs in their order, each with a row in the ledger."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from models.messages import Chunk, Event, ResponseEnd, ResponseStart, Usage
from registry.errors import ProviderFailed, QueueFull, RoundhouseError, Unavailable
from routing.providers.breaker import RUN, Phase
from runtime.gateway.context import RequestContext
from runtime.gateway.record import End, RequestRecord
from runtime.gateway.target import Target
from runtime.http import serving
from runtime.http.attempts import attempts
from runtime.http.dialect import Head, Parts
from runtime.http.routes import ENDPOINTS
from tenants.caller import EVERYBODY
from tenants.limits.limiter import Limiter
from tenants.limits.records import Kind, Limit
from tests.eventually import PATIENCE
from tests.fakes import traces
from tests.fakes.provider import HANG, Play
from tests.unit.http.answering import Answered, answer
from tests.unit.providers.plays import LONG, timeouts
from tests.unit.providers.rig import Rig, rigged, rigged_with

LOCAL: list[Event] = [
    ResponseStart(status=200, content_type="application/json"),
    Chunk(data=b'{"model":"chat"}'),
    ResponseEnd(usage=Usage(prompt_tokens=5, completion_tokens=2)),
]


@pytest.fixture
def routed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the router's fall-backs after `first/big` by the names in this list."""
    names: list[str] = []

    monkeypatch.setattr(serving, "_fallbacks", lambda _: names)
    return names


def two(first: Play, second: Play, **more: Any) -> dict[str, Any]:
    return {
        "first": (lambda seen: first, "openai", {"timeouts": timeouts(first), **more}),
        "second": (lambda seen: second, "anthropic", {}),
    }


FAILS: dict[str, tuple[Play, str]] = {
    "429": (traces.error(429), "provider_busy"),
    "500": (traces.error(500), "provider_failed"),
    "no credit": (traces.error(402), "provider_no_credit"),
    "key": (traces.error(401), "provider_key"),
    "hang": (Play([HANG]), "provider_timeout"),
    "garbage": (Play([b"<"]), "provider_answer"),
}


@pytest.mark.parametrize("name", FAILS)
async def test_the_next_target_answers(tmp_path: Path, routed: list[str], name: str) -> None:
    """It speaks the other dialect here, and the answer has the name that the client used."""
    routed.append("second/big")
    play, code = FAILS[name]
    async with rigged_with(tmp_path, two(play, traces.message("big"))) as rig:
        found = await rig.chat("first/big")
        assert (found.status_code, found.json()["model"]) == (200, "first/big")
        assert found.headers["x-roundhouse-model"] == "second/big@v1"
        assert found.headers["x-roundhouse-failed-attempts"] == f"first/big {code}"
        (record,) = rig.gateway.records.all
        assert record.attempt == 2
        assert record.target
        assert (record.target.model, record.usage.completion_tokens) == ("second/big", 5)


async def test_after_a_target_exceeds_its_total_timeout_the_next_one_answers(tmp_path: Path, routed: list[str]) -> None:
    """The limit is `whole` of its recipe, while the client still has time."""
    routed.append("second/big")
    times = {"first_byte": 500.0, "between_bytes": 500.0, "whole": 0.3}
    async with rigged_with(tmp_path, two(Play([HANG]), traces.message("big"), timeouts=times)) as rig:
        body = {"model": "first/big", "messages": [{"role": "user", "content": "hi"}]}
        found = await rig.http.post("/v1/chat/completions", json=body, headers={"X-Request-Timeout": "500"})
        assert found.status_code == 200, found.text
        assert found.headers["x-roundhouse-failed-attempts"] == "first/big provider_timeout"


async def test_a_refusal_on_a_fallbacks_second_try_is_not_the_answer(tmp_path: Path, routed: list[str]) -> None:
    """The error before it is the answer."""
    routed.append("second/big")
    plays = [traces.error(503), traces.error(400)]
    scripts = {
        **two(traces.error(500), Play([HANG])),
        "second": (lambda seen: plays.pop(0), "anthropic", {"retries": 2}),
    }
    async with rigged_with(tmp_path, scripts) as rig:
        found = await rig.chat("first/big")
        assert (found.status_code, found.json()["error"]["code"]) == (503, "provider_overloaded"), found.text
        assert plays == [], "the fall-back got two requests"


def limited(money: int) -> Limiter:
    """Return a limiter with a budget of `money` per day and ten requests per minute for the team."""
    limiter = Limiter()
    kinds = ((Kind.DAY, money), (Kind.REQUESTS, 10))
    limiter.replace([Limit(str(kind), "team", "default", kind, most) for kind, most in kinds], {})
    return limiter


def priced(first: Play, second: Play) -> dict[str, Any]:
    """Return two providers: completion tokens are free at the first and cost 1 at the second, which makes five."""
    scripts = two(first, second)
    dear = {"models": [{"name": "big", "price": {"output": 1e6}}]}
    return {**scripts, "second": (scripts["second"][0], "anthropic", dear)}


async def test_a_budget_reserves_what_fits_into_a_providers_context(tmp_path: Path) -> None:
    limiter, models = limited(50_000), [{"name": "big", "context_length": 200_000, "price": {"input": 1}}]
    scripts: Any = {"there": (lambda _: traces.chat("big"), "openai", {"models": models})}
    async with rigged_with(tmp_path, scripts, limiter=limiter) as rig:
        for size, status in ((40_000, 200), (60_000, 429)):
            prompt = [{"role": "user", "content": "x" * size}]
            assert (await rig.chat(messages=prompt, max_tokens=1)).status_code == status


async def test_a_providers_work_uses_no_device_seconds(tmp_path: Path) -> None:
    scripts: Any = {"there": (lambda _: traces.chat("big"), "openai", {})}
    async with rigged_with(tmp_path, scripts) as rig:
        rig.gateway.links["chat"].script = lambda _: LOCAL
        for model in ("there/big", "chat"):
            assert (await rig.chat(model)).status_code == 200
        there, here = rig.gateway.records.all
        assert "device" not in there.seconds
        assert here.seconds["device"] > 0


def left(limiter: Limiter) -> tuple[int, int]:
    found = limiter.levels(EVERYBODY, "second/big")
    return found[Kind.DAY].remaining, found[Kind.REQUESTS].remaining


async def test_a_fallback_is_admitted_by_its_own_price(tmp_path: Path, routed: list[str]) -> None:
    """The request counts only once, regardless of its attempts."""
    routed.append("second/big")
    limiter = limited(20 * 10**6)
    async with rigged_with(tmp_path, priced(traces.error(500), traces.message("big")), limiter=limiter) as rig:
        assert (await rig.chat("first/big", max_tokens=10)).status_code == 200
        assert left(limiter) == (15 * 10**6, 9)
        refused = await rig.chat("first/big", max_tokens=16)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "project_spend_limit_exceeded")
        assert refused.headers["x-should-retry"] == "false"
        assert len(rig.fakes[1].seen) == 1, "an unaffordable target gets no request"
        assert left(limiter) == (15 * 10**6, 8)


async def test_a_local_model_may_be_a_fallback(tmp_path: Path, routed: list[str]) -> None:
    routed += ["nowhere/at-all", "chat"]
    async with rigged_with(tmp_path, two(traces.error(500), traces.error(500))) as rig:
        rig.gateway.links["chat"].script = lambda _: LOCAL
        found = await rig.chat("first/big")
        assert found.status_code == 200
        assert found.headers["x-roundhouse-model"] == "chat@rev"


async def test_a_provider_may_be_the_fallback_of_a_local_model(tmp_path: Path, routed: list[str]) -> None:
    routed.append("second/big")
    async with rigged_with(tmp_path, two(traces.error(500), traces.message("big"))) as rig:
        for error in (QueueFull("full"), Unavailable("loading")):
            rig.gateway.links["chat"].script = lambda _, e=error: [e]
            assert (await rig.chat("chat")).headers["x-roundhouse-model"] == "second/big@v1"
        rig.gateway.links["chat"].script = lambda _: [
            ResponseStart(500, "application/json"),
            Chunk(b"{}"),
            ResponseEnd(Usage()),
        ]
        assert (await rig.chat("chat")).status_code == 200


async def test_a_model_named_directly_has_no_fallback(tmp_path: Path) -> None:
    async with rigged_with(tmp_path, two(traces.error(500), traces.message("big"))) as rig:
        assert (await rig.chat("first/big")).status_code == 502
        assert not rig.fakes[1].seen


async def test_a_client_error_is_not_retried(tmp_path: Path, routed: list[str]) -> None:
    routed.append("second/big")
    async with rigged_with(tmp_path, two(traces.error(422), traces.message("big"))) as rig:
        assert (await rig.chat("first/big")).status_code == 422
        assert not rig.fakes[1].seen


REFUSED: dict[str, tuple[dict[str, Any], Play]] = {
    "here": ({"seed": 1}, traces.message("big")),
    "there": ({}, traces.error(400, "invalid_request_error")),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_fallback_that_refuses_the_request_is_skipped(tmp_path: Path, routed: list[str], name: str) -> None:
    """Either its dialect lacks a field, or the provider refuses it."""
    more, play = REFUSED[name]
    routed += ["second/big", "chat"]
    async with rigged_with(tmp_path, two(traces.error(500), play)) as rig:
        rig.gateway.links["chat"].script = lambda _: LOCAL
        found = await rig.chat("first/big", **more)
        assert (found.status_code, found.headers["x-roundhouse-model"]) == (200, "chat@rev")
        assert found.headers["x-roundhouse-failed-attempts"].startswith("first/big provider_failed, second/big ")


@pytest.mark.parametrize("name", REFUSED)
async def test_the_first_error_is_reported_if_all_fallbacks_refuse(
    tmp_path: Path, routed: list[str], name: str
) -> None:
    more, play = REFUSED[name]
    routed.append("second/big")
    async with rigged_with(tmp_path, two(traces.error(500), play)) as rig:
        found = await rig.chat("first/big", **more)
        assert (found.status_code, found.json()["error"]["code"]) == (502, "provider_failed")
        (record,) = rig.gateway.records.all
        assert (record.code, record.target and record.target.model) == ("provider_failed", "first/big")
    async with rigged_with(tmp_path / "busy", two(traces.error(503), play)) as rig:
        assert (await rig.chat("first/big", **more)).status_code == 503
        (record,) = rig.gateway.records.all
        assert record.end is End.FAILED, "the attempt was admitted"
    plays = [traces.error(500), traces.chat("big")]
    scripts = {**two(traces.error(500), play), "first": (lambda seen: plays.pop(0), "openai", {"retries": 1})}
    async with rigged_with(tmp_path / "again", scripts) as rig:
        assert (await rig.chat("first/big", **more)).status_code == 200, "the first target is retried"


async def test_a_field_that_the_first_target_lacks_is_the_clients_fault(tmp_path: Path, routed: list[str]) -> None:
    routed.append("first/big")
    async with rigged_with(tmp_path, two(traces.chat("big"), traces.message("big"))) as rig:
        found = await rig.chat("second/big", seed=1)
        assert (found.status_code, found.json()["error"]["param"]) == (400, "seed")
        assert not rig.fakes[0].seen


async def test_the_last_error_is_reported_if_all_targets_fail(tmp_path: Path, routed: list[str]) -> None:
    routed.append("second/big")
    async with rigged_with(tmp_path, two(traces.error(500), traces.error(529, "overloaded_error"))) as rig:
        found = await rig.chat("first/big")
        assert (found.status_code, found.json()["error"]["code"]) == (503, "provider_overloaded")
        assert len(rig.gateway.records.all) == 1


async def test_before_the_first_byte_a_stream_falls_back(tmp_path: Path, routed: list[str]) -> None:
    routed.append("second/big")
    play = Play([traces.chat_events("big")[0], HANG], content_type=traces.EVENTS)
    async with rigged_with(tmp_path, two(play, traces.message_stream("big"))) as rig:
        found = await rig.chat("first/big", stream=True)
        assert found.status_code == 200
        assert "hello" in found.text
        assert found.text.endswith("data: [DONE]\n\n")


@pytest.mark.long
async def test_targets_share_the_deadline(tmp_path: Path, routed: list[str]) -> None:
    """A first target that hangs gets half of the deadline, and the second one the rest."""
    routed.append("second/big")
    scripts = two(Play([HANG]), traces.message("big"), timeouts={})
    async with rigged_with(tmp_path, scripts) as rig:
        for seconds in (1.0, 10.0, PATIENCE):  # longer if this machine is too slow
            if (found := await _with_deadline(rig, seconds)).status == 200:
                break
        assert found.status == 200
        hung = {**two(Play([HANG]), Play([HANG]), timeouts={})}
    async with rigged_with(tmp_path / "2", hung) as rig:
        async with asyncio.timeout(PATIENCE):
            found = await _with_deadline(rig, 0.6)
        assert (found.status, json.loads(found.body)["error"]["code"]) == (504, "deadline_exceeded")


async def test_a_target_that_hangs_for_its_share_of_the_deadline_opens_its_breaker(
    tmp_path: Path, routed: list[str]
) -> None:
    routed.append("second/big")
    scripts = two(Play([HANG]), traces.message("big"), timeouts={"between_bytes": 0.001})
    async with rigged_with(tmp_path, scripts) as rig:
        breakers, attempts = rig.gateway.providers.upstreams["first"].breakers, 0
        async with asyncio.timeout(PATIENCE):
            while not attempts or breakers["big"].phase is not Phase.OPEN:  # a busy machine may not reach it in time
                await _with_deadline(rig, 0.6)
                attempts += 1
        assert attempts >= RUN


async def _with_deadline(rig: Rig, seconds: float) -> Answered:
    body = json.dumps({"model": "first/big", "messages": [{"role": "user", "content": "hi"}]}).encode()
    context = RequestContext("x", deadline=asyncio.get_running_loop().time() + seconds)
    return await answer(rig.gateway.gateway, context, ENDPOINTS["/v1/chat/completions"], body)


def ledger_records(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[RequestRecord]:
    """Return the list to which the records for the ledger will be added."""
    rows: list[RequestRecord] = []
    for method in ("take", "attempt"):
        monkeypatch.setattr(rig.gateway.gateway._ledger, method, rows.append)
    return rows


async def test_a_fallback_that_refuses_ends_its_own_row_only(
    tmp_path: Path, routed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local model refuses with a complete answer, whose status is known before its end is recorded."""
    routed += ["chat", "second/big"]
    refusal: list[Event] = [
        ResponseStart(status=400, content_type="application/json"),
        Chunk(data=b'{"error":{"message":"no"}}'),
        ResponseEnd(usage=Usage()),
    ]
    async with rigged_with(tmp_path, two(traces.error(500), traces.message("big"))) as rig:
        rig.gateway.links["chat"].script = lambda _: refusal
        rows = ledger_records(rig, monkeypatch)
        found = await rig.chat("first/big")
        assert (found.status_code, found.headers["x-roundhouse-model"]) == (200, "second/big@v1")
    ends = [(row.attempt, row.target and row.target.model, row.end) for row in rows]
    assert ends == [(1, "first/big", End.FAILED), (2, "chat", End.REFUSED), (3, "second/big", End.DONE)]


async def test_a_failed_attempts_cost_is_in_its_row(
    tmp_path: Path, routed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider reports that it has read the prompt before it fails."""
    routed.append("second/big")
    overloaded = b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "no"}}\n\n'
    first = Play([traces.message_events("big")[0], overloaded], content_type=traces.EVENTS)
    priced = {"models": [{"name": "big", "price": {"input": 2, "cached_input": 1, "output": 6}}]}
    scripts: Any = {
        "first": (lambda seen: first, "anthropic", {"timeouts": LONG, **priced}),
        "second": (lambda seen: traces.chat_stream("big"), "openai", priced),
    }
    async with rigged_with(tmp_path, scripts) as rig:
        rows = ledger_records(rig, monkeypatch)
        found = await rig.chat("first/big", stream=True)
        assert found.headers["x-roundhouse-failed-attempts"] == "first/big provider_overloaded"
    failed, done = rows
    metrics = rig.gateway.metrics
    used = {
        s.labels["kind"]: s.value for m in metrics.team_tokens.collect() for s in m.samples if s.name.endswith("_total")
    }
    assert used == {"prompt": 24, "cached": 8, "completion": failed.usage.completion_tokens + 5}, "the sum of both rows"
    spent = [s.value for m in metrics.team_cost.collect() for s in m.samples if s.name.endswith("_total")]
    assert spent == [pytest.approx((failed.cost + done.cost) / 1e6)]
    requested = [s.value for m in metrics.team_requests.collect() for s in m.samples if s.name.endswith("_total")]
    assert requested == [1]
    assert (failed.code, failed.usage.prompt_tokens, failed.usage.cached_tokens) == ("provider_overloaded", 12, 4)
    assert failed.cost == 8 * 2 + 4 * 1 + failed.usage.completion_tokens * 6
    assert done.cost == 8 * 2 + 4 * 1 + 5 * 6


# --- the attempts ----------------------------------------------------------------------------------------------------
async def test_a_target_is_retried_after_the_backends_pause(tmp_path: Path) -> None:
    """Without a network: only the attempts are scripted."""
    script: list[RoundhouseError | None] = [ProviderFailed("x", again=True), None]

    async def once() -> Parts:
        if (error := script.pop(0)) is not None:
            raise error
        yield Head(200, "text/plain")
        yield b"done"

    async with rigged(tmp_path, lambda seen: Play()) as rig:
        gateway = rig.gateway.gateway
        target = Target("there/big", "there/big", "v1", backend="providers", provider="there")
        provider = rig.gateway.providers.upstreams["there"]
        provider.provider = provider.provider.model_copy(update={"retries": 1})
        provider.enter(first=True)
        with gateway.record(RequestContext("x"), "/x") as request:
            request.attempt.target = target
            parts = [p async for p in attempts(gateway, request, (), once)]
        assert parts[-1] == b"done"
        assert request.tried == ["there/big"]
