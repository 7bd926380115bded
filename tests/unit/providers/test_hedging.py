"""A second attempt beside one that is late: who begins first answers, both are in the ledger, and a tenth at most."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry.errors import ProviderFailed
from registry.recipes.router import RouterSpec
from routing.decision import Decision
from routing.providers.breaker import Phase
from runtime.gateway.backend import RouteChoice, Target
from runtime.gateway.record import RequestRecord
from runtime.http import serving
from runtime.http.attempts import hedging
from runtime.http.attempts.retries import attempts
from runtime.http.dialect import Parts
from tenants.caller import EVERYBODY
from tenants.limits.limiter import Limiter
from tenants.limits.records import Kind, Limit
from tests.fakes import traces
from tests.fakes.provider import GATE, HANG, Play, Seen
from tests.unit.providers.rig import Rig, provider, rigged, rigged_with

SOON, NEVER = 0.01, 1000.0
HANGS = Play([HANG])
Rows = list[tuple[int, str, str, str | None]]


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """As if a router had chosen `first/big`, with `second/big` behind it, and a hedge after so long."""
    found = [SOON]

    def attempted(gateway: Any, recorder: Any, target: Target, _none: Sequence[str], *more: Any) -> Parts:
        chosen = RouteChoice("r@v1", Decision("first/big", "state", hedge_after=found[0]))
        return attempts(gateway, recorder, replace(target, routed=chosen), ["nowhere/at-all", "second/big"], *more)

    monkeypatch.setattr(serving, "attempts", attempted)
    return found


@asynccontextmanager
async def two(
    folder: Path, first: Play, then: Play, second: str = "anthropic", **more: Any
) -> AsyncIterator[tuple[Rig, Rows]]:
    """And what the ledger is told: attempt, target, end, code. second: the protocol of the one that plays `then`."""
    scripts: dict[str, Any] = {
        "first": (lambda seen: first, "openai", more),
        "second": (lambda seen: then, second, {}),
    }
    async with rigged_with(folder, scripts) as rig:
        rows: Rows = []

        def take(row: RequestRecord) -> None:
            rows.append((row.context.attempt, row.target.model if row.target else "", row.end.value, row.code))

        gateway: Any = rig.gateway.gateway
        gateway._ledger.take = take
        yield rig, rows


async def test_the_second_one_answers_and_the_first_is_cancelled(tmp_path: Path, seconds: list[float]) -> None:
    async with two(tmp_path, HANGS, traces.message("big")) as (rig, rows):
        found = await rig.chat("first/big")
        assert (found.status_code, found.json()["choices"][0]["message"]["content"]) == (200, "hello there")
        assert found.headers["x-roundhouse-model"] == "second/big@v1"
        assert found.headers["x-roundhouse-failed-attempts"] == "first/big hedged"
        await rig.fakes[0].left.wait()
        assert rows == [(1, "first/big", "cancelled", "hedged"), (2, "second/big", "done", None)]
        (record,) = rig.gateway.records.all
        assert record.usage.completion_tokens == 5


async def test_limits_are_charged_both_and_count_one_request(tmp_path: Path, seconds: list[float]) -> None:
    """While both run both are reserved; in the end who was given up has used what it had read, which is estimated."""
    limiter = Limiter(clock=lambda: 0)
    kinds = ((Kind.TOKENS, 6000), (Kind.AT_ONCE, 1), (Kind.REQUESTS, 5))
    limiter.replace([Limit(str(kind), "team", "default", kind, most) for kind, most in kinds], {})

    def used() -> list[int]:
        found = limiter.levels(EVERYBODY, "x")
        return [most - found[kind].remaining for kind, most in kinds]

    reserved: list[list[int]] = []

    def looks(seen: Seen) -> Play:
        reserved.append(used())
        rig.fakes[1].gate.set()
        return HANGS

    def answers(seen: Seen) -> Play:
        reserved.append(used())
        return Play([GATE, *traces.message("big").parts])  # type: ignore[misc]

    scripts = {"first": (looks, "openai", {}), "second": (answers, "anthropic", {})}
    async with rigged_with(tmp_path, scripts, limiter=limiter) as rig:
        seconds[0] = NEVER
        requested = asyncio.create_task(rig.chat("first/big", max_tokens=10))
        while not reserved:
            await asyncio.sleep(0.001)
        requested.cancel()
        await asyncio.wait({requested})
        ((one, at_once, requests),) = reserved
        given_up = used()[0]
        assert (at_once, requests, used()) == (1, 1, [given_up, 0, 1])
        assert 0 < given_up < one
        seconds[0] = SOON
        rig.fakes[1].gate.clear()
        assert (await rig.chat("first/big", max_tokens=10)).status_code == 200
        assert [given_up + 2 * one, 1, 2] in reserved
        last = rig.gateway.records.all[-1].usage
        assert used() == [2 * given_up + last.prompt_tokens + last.completion_tokens, 0, 2]


async def test_who_begins_in_time_is_alone(tmp_path: Path, seconds: list[float]) -> None:
    seconds[0] = NEVER
    async with two(tmp_path, traces.chat("big"), HANGS) as (rig, rows):
        assert (await rig.chat("first/big")).headers["x-roundhouse-model"] == "first/big@v1"
        assert rig.fakes[1].seen == []
        assert rows == [(1, "first/big", "done", None)]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_first_one_may_still_be_first(tmp_path: Path, seconds: list[float], stream: bool) -> None:
    """It begins once the second was asked, which says nothing."""
    answer = traces.chat_stream("big") if stream else traces.chat("big")
    late = Play([GATE, *answer.parts], content_type=answer.content_type)  # type: ignore[misc]
    async with two(tmp_path, late, Play([b"", HANG])) as (rig, rows):

        def requested(seen: Seen) -> Play:
            rig.fakes[0].gate.set()
            return HANGS

        rig.fakes[1].script = requested
        found = await rig.chat("first/big", stream=stream)
        assert "there" in found.text
        assert found.headers["x-roundhouse-model"] == "first/big@v1"
        await rig.fakes[1].left.wait()
        assert sorted(rows) == [(1, "first/big", "done", None), (2, "second/big", "cancelled", "hedged")]
        (record,) = rig.gateway.records.all
        assert (record.target and record.target.model, record.usage.completion_tokens) == ("first/big", 5)


async def test_one_of_them_fails(tmp_path: Path, seconds: list[float]) -> None:
    async with two(tmp_path, Play([GATE, b"{}"], status=500), traces.message("big")) as (rig, rows):

        def fails_first(seen: Seen) -> Play:
            rig.fakes[0].gate.set()
            return Play([HANG]) if seen.headers.get("x-none") else traces.message("big")

        rig.fakes[1].script = fails_first
        assert (await rig.chat("first/big")).status_code == 200
        assert rows[-1] == (2, "second/big", "done", None)
    async with two(tmp_path / "b", Play([GATE, *traces.chat("big").parts]), traces.error(500)) as (rig, rows):  # type: ignore[misc]
        ended = rig.gateway.gateway.end_attempt

        def failed(recorder: Any, error: Any) -> None:
            ended(recorder, error)
            rig.fakes[0].gate.set()

        rig.gateway.gateway.end_attempt = failed  # type: ignore[method-assign]
        assert (await rig.chat("first/big")).headers["x-roundhouse-model"] == "first/big@v1"
        reported = [(model, end, code) for _, model, end, code in rows]
        assert reported == [("second/big", "failed", "provider_failed"), ("first/big", "done", None)]


def vectors() -> Play:
    return Play([b'{"data": [{"index": 0, "embedding": [1.0, 0.0]}], "usage": {"prompt_tokens": 3}, "model": "embed"}'])


async def test_an_answer_that_is_whole_at_once_is_the_second_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is complete before it is known that it counts: what is told of its end is told of its own row."""

    def attempted(gateway: Any, recorder: Any, target: Target, _none: Sequence[str], *more: Any) -> Parts:
        chosen = RouteChoice("r@v1", Decision("first/embed", "state", hedge_after=SOON))
        return attempts(gateway, recorder, replace(target, routed=chosen), ["second/embed"], *more)

    monkeypatch.setattr(serving, "attempts", attempted)
    async with two(tmp_path, HANGS, vectors(), second="openai") as (rig, rows):
        found = await rig.http.post("/v1/embeddings", json={"model": "first/embed", "input": "a"})
        assert (found.status_code, found.json()["data"][0]["embedding"]) == (200, [1.0, 0.0]), found.text
        assert rows == [(1, "first/embed", "cancelled", "hedged"), (2, "second/embed", "done", None)]
        (record,) = rig.gateway.records.all
        assert (record.target and record.target.model, record.usage.prompt_tokens) == ("second/embed", 3)


async def test_both_fail(tmp_path: Path, seconds: list[float]) -> None:
    """The first by its time, which it shares with the second."""
    timeouts = {"first_byte": 0.2, "whole": 5.0}
    async with two(tmp_path, HANGS, traces.error(500), timeouts=timeouts) as (rig, rows):
        found = await rig.chat("first/big")
        assert (found.status_code, found.json()["error"]["code"]) == (504, "provider_timeout")
        assert [(model, code) for _, model, _, code in rows] == [
            ("second/big", "provider_failed"), ("first/big", "provider_timeout"),
        ]  # fmt: skip


async def test_a_model_that_was_named_itself_is_queried_twice_by_its_provider(tmp_path: Path) -> None:
    plays = [HANGS, traces.chat("big")]
    async with rigged(tmp_path, lambda seen: plays.pop(0), hedge_after=SOON) as rig:
        found = await rig.chat()
        assert (found.status_code, len(rig.fake.seen)) == (200, 2)
        assert found.headers["x-roundhouse-model"] == "there/big@v1"


async def test_at_most_a_tenth_get_a_second_one(tmp_path: Path) -> None:
    async with rigged(tmp_path, lambda seen: HANGS, hedge_after=SOON, timeouts={"first_byte": 0.2}) as rig:
        assert (await rig.chat()).json()["error"]["code"] == "provider_timeout"
        assert len(rig.fake.seen) == 2
        assert (await rig.chat()).json()["error"]["code"] == "provider_timeout"
        assert len(rig.fake.seen) == 3
        upstream = rig.gateway.providers.upstreams["there"]
        (model, *_) = provider(rig.fake).models
        assert upstream.spare(model)
        while upstream.breakers[model.name].phase is Phase.CLOSED:
            upstream.ended(model, upstream.admit(model), ProviderFailed("x"), begun=False)
        assert not upstream.spare(model), "its breaker is open"


async def test_a_fallback_without_other_traffic_is_queried_more_than_once(
    tmp_path: Path, seconds: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of thirty requests is late: it answers once it is decided whether another one is asked."""
    made, other = [], hedging._hedge_target
    async with two(tmp_path, Play([GATE, *traces.chat("big").parts]), traces.message("big")) as (rig, _):  # type: ignore[misc]

        def decided(*given: Any) -> Target | None:
            found = other(*given)
            made.append(found is not None)
            rig.fakes[0].gate.set()
            return found

        monkeypatch.setattr(hedging, "_hedge_target", decided)
        for _ in range(30):
            rig.fakes[0].gate.clear()
            assert (await rig.chat("first/big")).status_code == 200
    assert len(made) == 30
    assert 3 <= sum(made) <= 4


async def test_a_client_that_leaves_ends_both(tmp_path: Path, seconds: list[float]) -> None:
    async with two(tmp_path, HANGS, HANGS) as (rig, rows):
        task = asyncio.create_task(rig.chat("first/big"))
        await rig.fakes[1].arrived.wait()
        task.cancel()
        await asyncio.wait({task})
        for fake in rig.fakes:
            await fake.left.wait()
        assert ("second/big", "hedged") in [(model, code) for _, model, _, code in rows]


def test_a_hedge_asks_a_fall_back() -> None:
    with pytest.raises(ValueError, match="hedge_after"):
        RouterSpec.model_validate({"id": "r", "targets": [{"name": "a"}], "hedge_after": 1})


async def test_a_second_one_that_refuses_the_request_is_no_answer(tmp_path: Path, seconds: list[float]) -> None:
    """The first fails once the second was asked; its error is told, and both have a row."""
    async with two(tmp_path, Play([GATE, b"{}"], status=500), Play()) as (rig, rows):

        def refuses(seen: Seen) -> Play:
            rig.fakes[0].gate.set()
            return traces.error(400, "invalid_request_error")

        rig.fakes[1].script = refuses
        found = await rig.chat("first/big")
        assert (found.status_code, found.json()["error"]["code"]) == (502, "provider_failed")
        assert {(model, end) for _, model, end, _ in rows} == {("first/big", "failed"), ("second/big", "refused")}
