"""The data behind the pages and the stream of events: each part with the test's clock."""

import asyncio
import gc
import json
from typing import Any

import pytest

from console.history import CAUSES, LAST_DECISIONS, MINUTE, MOST_TEAMS, OTHER, Decisions, History
from console.live import Live, Stalls
from registry.errors import QueueFull
from tests.unit.console.conftest import Console
from tests.unit.console.test_pages import row
from tests.unit.http.fakes import FakeGateway


def test_an_adapter_is_drawn_in_the_stall_of_its_victim() -> None:
    stalls = Stalls()
    assert stalls.assign(3, ["a", "b"], {}) == {"a": 0, "b": 1}
    assert stalls.assign(3, ["b"], {"c": "a"}) == {"b": 1, "c": 0}
    assert stalls.assign(3, ["c", "b"], {"d": None}) == {"b": 1, "c": 0, "d": 2}
    assert stalls.assign(2, ["c", "b", "d"], {}) == {"b": 1, "c": 0}, "never more than there are stalls"


def test_the_last_minute_is_summed_and_forgotten() -> None:
    now = 1000.0
    history = History(lambda: now)
    for _ in range(3):
        history.take(row())
    history.swapped()
    minute = history.minute()
    assert (minute.requests, minute.tokens, minute.swaps) == (3, 15, 1)
    assert set(minute.causes) == set(CAUSES)
    assert minute.causes["decode"] == pytest.approx(0.9)
    assert minute.first_p90 == pytest.approx(0.112)
    assert (sum(minute.request_rates), minute.request_rates[-1]) == (3, 3)
    now += MINUTE
    assert history.minute().requests == 0
    assert len(history.rows()) == 3, "the rows are kept"


def test_teams_beyond_the_bound_are_summed() -> None:
    history = History(lambda: 5.0)
    for number in range(MOST_TEAMS + 30):
        history.take(row(team=f"t{number}"))
    assert len(history._seconds[-1].teams) == MOST_TEAMS + 1
    assert OTHER in history.shares()


def test_decisions_are_bounded_and_newest_first_and_wake_the_stream() -> None:
    received: list[bool] = []
    decisions = Decisions(lambda: received.append(True), lambda: 1.0)
    for number in range(LAST_DECISIONS + 5):
        decisions.record("swap", "chat", f"a{number}", "comes into a free place")
    assert len(decisions.last()) == LAST_DECISIONS
    assert [one.subject for one in decisions.last(2)] == [f"a{LAST_DECISIONS + 4}", f"a{LAST_DECISIONS + 3}"]
    assert len(received) == LAST_DECISIONS + 5


def event(text: bytes) -> Any:
    assert text.startswith(b"event: now\ndata: ")
    return json.loads(text.split(b"data: ", 1)[1])


async def test_one_sampler_serves_all_viewers_and_ends_with_the_last(console: Console) -> None:
    async with console() as displayed:
        gateway, looks = displayed.gateway.gateway, 0

        def look() -> Any:
            nonlocal looks
            looks += 1
            return gateway.services.live(gateway.phase)

        gateway.services.console.history.take(row(id="ours", team="ours"))
        gateway.services.console.history.take(row(id="theirs", team="theirs"))
        live = Live(gateway.services.console.view_for, every=3600.0, least=0.0)
        streams = [live.events(look, team) for team in ("ours", None, "ours", None)]
        for stream in streams:
            assert await anext(stream) == b"retry: 1000\n\n"
        found = [event(await anext(stream)) for stream in streams]
        assert looks == 1, "one sample for all"
        assert live.viewers == 4
        assert [one["shares"] is None for one in found] == [True, False, True, False]
        ids = [[request["id"] for request in one["requests"]] for one in found]
        assert ids == [["ours"], ["theirs", "ours"]] * 2, "a team sees its own"
        live.poke()
        assert [event(await anext(stream))["phase"] for stream in streams] == ["ready"] * 4
        for stream in streams:
            await stream.aclose()
        assert (live.viewers, live._sampler) == (0, None)
        live.poke()
        assert looks == 2, "without viewers nothing is sampled"


async def settle(steps: int = 20) -> None:
    for _ in range(steps):
        await asyncio.sleep(0)


@pytest.mark.parametrize("steps", range(6))
async def test_the_sampler_ends_although_a_decision_wakes_it_at_that_moment(steps: int) -> None:
    """Python 3.11's wait_for drops a cancellation that comes with its result, so it sampled without viewers."""
    nothing: Any = object()
    live = Live(lambda now, _: now, every=3600.0, least=0.0)
    stream = live.events(lambda: nothing, None)
    await anext(stream)
    await settle()
    sampler = live._sampler
    assert sampler is not None
    live.poke()
    await settle(steps)
    await stream.aclose()
    await settle()
    assert sampler.done()


async def test_streams_end_when_the_server_stops_and_are_bounded(console: Console) -> None:
    async with console() as displayed:
        gateway = displayed.gateway.gateway
        live = Live(gateway.services.console.view_for, most=64, every=3600.0)
        stream = live.events(lambda: gateway.services.live("ready"), None)
        await anext(stream)
        await anext(stream)
        waits = asyncio.ensure_future(anext(stream, None))
        await asyncio.sleep(0)
        live.close()
        assert await waits is None


async def test_one_team_cannot_take_all_viewers(console: Console) -> None:
    async with console() as displayed:
        gateway = displayed.gateway.gateway
        live = Live(gateway.services.console.view_for, most=8, every=3600.0)

        async def view(team: str | None) -> Any:
            stream = live.events(lambda: gateway.services.live("ready"), team)
            await anext(stream)
            return stream

        theirs = [await view("greedy") for _ in range(6)]
        with pytest.raises(QueueFull, match="6 viewers of your team"):
            await view("greedy")
        ours = [await view("search"), await view(None)]
        await theirs.pop().aclose()
        theirs.append(await view("greedy"))
        for stream in theirs + ours:
            await stream.aclose()
        assert live.viewers == 0
        await (await view("greedy")).aclose()


async def test_simultaneous_viewers_are_counted_before_they_are_answered(console: Console) -> None:
    """Of 2,000 at once, 100 used to be admitted, of which 36 broke off after their 200."""
    async with console() as displayed:
        gateway = displayed.gateway.gateway
        live = Live(gateway.services.console.view_for, most=2, every=3600.0)
        incoming = [live.opened(lambda: gateway.services.live("ready"), None, lambda: True) for _ in range(5)]
        found = await asyncio.gather(*incoming, return_exceptions=True)
        refused, streams = found[2:], found[:2]
        assert [type(one) for one in refused] == [QueueFull] * 3
        assert live.viewers == 2
        assert [await anext(one) for one in streams if not isinstance(one, BaseException)] == [b"retry: 1000\n\n"] * 2
        await streams[0].aclose()  # type: ignore[union-attr]
        assert live.viewers == 1
        never_read = await live.opened(lambda: gateway.services.live("ready"), None, lambda: True)
        del never_read
        gc.collect()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert live.viewers == 1, "a viewer that left before the first byte no longer counts"
        await streams[1].aclose()  # type: ignore[union-attr]
        assert live.viewers == 0


async def test_the_causes_of_waiting_are_a_metric(console: Console) -> None:
    async with console() as displayed:
        body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
        await displayed.client.post("/v1/chat/completions", json=body)
        text = (await displayed.client.get("/metrics")).text
        for cause in set(CAUSES) - {"provider"}:
            assert f'roundhouse_wait_seconds_total{{cause="{cause}",model="chat"}}' in text


def test_the_ring_of_a_base_has_its_adapters_names(tmp_path: Any) -> None:
    gateway = FakeGateway(tmp_path)
    gateway.queues["chat"].policy.resize(4, 8, 2)
    gateway.queues["chat"].policy.reset()
    [ring] = gateway.gateway.services.live("ready").rings
    assert (ring.model, ring.places, ring.stalls, ring.away) == ("chat", 4, [], [])
    assert gateway.names.label_of("chat", "sha256:" + "a" * 64) == "aaaaaaaa"
