"""A failing provider: the failures that its breaker counts, the effect on other traffic, and the four time-outs."""

import asyncio
import json
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from httpx import Response

from models.messages import Chunk, ResponseEnd, ResponseStart, Usage
from routing.providers.breaker import RUN, Phase
from tests.eventually import PATIENCE
from tests.fakes import traces
from tests.fakes.provider import GATE, HANG, Play
from tests.unit.http.fakes import Wire
from tests.unit.providers.plays import AFTER, BEFORE, EVENTS, FIRST, LONG, SHORT, WORDS, error_event, stream
from tests.unit.providers.rig import Rig, rigged, rigged_with
from tests.unit.providers.test_faults import requested

COUNTS: dict[str, tuple[Play, bool, bool]] = {
    "500": (traces.error(500), False, True),
    "an error before words": (FIRST["an error before words"][0], True, True),
    "an error in mid-stream": (stream(*WORDS, error_event("server_error")), True, True),
    "garbage": (BEFORE["garbage"][0], False, True),
    "429": (BEFORE["429"][0], False, False),
    "429 for money": (BEFORE["429 for money"][0], False, False),
    "a limit before words": (FIRST["a limit before words"][0], True, False),
    "400": (traces.error(400), False, False),
    "401": (BEFORE["401"][0], False, False),
    "404": (BEFORE["404"][0], False, False),
}


@pytest.mark.parametrize("name", COUNTS)
async def test_the_breaker_counts_only_failures_of_the_provider(tmp_path: Path, name: str) -> None:
    play, is_stream, counts = COUNTS[name]
    async with rigged(tmp_path, lambda seen: play) as rig:
        for _ in range(RUN):
            await rig.chat(stream=is_stream)
        phase = rig.gateway.providers.upstreams["there"].breakers["big"].phase
        assert phase is (Phase.OPEN if counts else Phase.CLOSED)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({}, 5.0), ({"retry-after-ms": "1"}, 5.0), ({"retry-after": "1"}, 5.0), ({"retry-after": "33"}, 33.0)],
)
async def test_an_overloaded_provider_gets_no_requests_for_its_retry_after(
    tmp_path: Path, headers: dict[str, str], seconds: float
) -> None:
    """Never for less than the breaker's own time."""
    play = traces.error(503, **headers)
    async with rigged(tmp_path, lambda seen: play) as rig:
        upstream = rig.gateway.providers.upstreams["there"]
        upstream._clock, upstream._chance = lambda: 100.0, lambda: 0.0
        for _ in range(RUN):
            await rig.chat()
        found = upstream.breakers["big"]
        assert (found.phase, found.until) == (Phase.OPEN, 100.0 + seconds)


async def test_a_probe_that_streams_delays_no_other_request(tmp_path: Path) -> None:
    plays = [*[traces.error(500)] * RUN, stream(*WORDS, GATE, *EVENTS[2:]), traces.chat("big")]
    async with rigged(tmp_path, lambda seen: plays[len(rig.fake.seen) - 1], timeouts=LONG) as rig:
        upstream, now = rig.gateway.providers.upstreams["there"], [0.0]
        upstream._clock = lambda: now[0]
        for _ in range(RUN):
            await rig.chat()
        now[0] = 10.0
        wire = Wire(rig.app, "/v1/chat/completions", [requested(True)], {"content-type": "application/json"})
        probe = asyncio.create_task(wire.run())
        await wire.first.wait()
        assert phase(rig) is Phase.HALF_OPEN
        assert (await rig.chat()).status_code == 200
        assert phase(rig) is Phase.CLOSED
        rig.fake.gate.set()
        await probe


async def test_a_clients_fault_does_not_change_the_breaker(tmp_path: Path) -> None:
    """It neither ends a run of failures nor closes a half-open breaker."""
    plays = [*[traces.error(500)] * (RUN - 1), traces.error(400), traces.error(500), traces.error(422)]
    async with rigged(tmp_path, lambda seen: plays[len(rig.fake.seen) - 1]) as rig:
        upstream, now = rig.gateway.providers.upstreams["there"], [0.0]
        upstream._clock = lambda: now[0]
        for _ in range(RUN + 1):
            await rig.chat()
        assert phase(rig) is Phase.OPEN
        now[0] = 10.0
        assert (await rig.chat()).status_code == 422
        assert phase(rig) is Phase.HALF_OPEN


@pytest.mark.parametrize("stream", ["true", 1])
async def test_a_stream_field_that_is_no_boolean_is_the_clients_fault(tmp_path: Path, stream: Any) -> None:
    """A provider may read it as `true` and stream unexpectedly. Five such answers opened the breaker for all."""
    async with rigged(tmp_path, lambda seen: traces.chat_stream("big")) as rig:
        for _ in range(RUN):
            refused = await rig.chat(stream=stream)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")
        assert (rig.fake.seen, phase(rig)) == ([], Phase.CLOSED)


async def test_other_traffic_is_unaffected(tmp_path: Path) -> None:
    """One provider has all faults at once, while another provider and local models answer. All faults end."""
    plays = [(play, False) for play, *_ in BEFORE.values()]
    plays += [(play, True) for play, *_ in (*FIRST.values(), *AFTER.values())]
    scripts: Any = {
        "there": (lambda seen: plays[int(seen.body["messages"][0]["content"])][0], "openai",
                  {"timeouts": SHORT, "max_answer": 8 * 2**20}),
        "well": (lambda seen: traces.chat("big"), "openai", {"timeouts": LONG}),
    }  # fmt: skip
    async with rigged_with(tmp_path, scripts) as rig:
        rig.gateway.links["chat"].script = lambda _: [
            ResponseStart(200, "application/json"), Chunk(b'{"model":"chat"}'), ResponseEnd(Usage()),
        ]  # fmt: skip
        rig.fake.gate.set()
        faults = [
            asyncio.create_task(rig.chat(stream=is_stream, messages=[{"role": "user", "content": str(number)}]))
            for number, (_, is_stream) in enumerate(plays)
        ]
        arrived = asyncio.create_task(rig.fake.arrived.wait())
        await asyncio.wait({arrived, *faults}, return_when=asyncio.FIRST_COMPLETED)  # on a busy machine none may arrive
        arrived.cancel()
        others = await asyncio.gather(*(rig.chat(name) for name in ["well/big", "chat"] * 20))
        assert {found.status_code for found in others} == {200}
        async with asyncio.timeout(PATIENCE):
            ended = await asyncio.gather(*faults)
        assert all("error" in found.text for found in ended)
        assert rig.gateway.providers.upstreams["there"].running == 0


# --- a client's own time ---------------------------------------------------------------------------------------------
SOON = {"X-Request-Timeout": "0.05"}


async def impatient(rig: Rig, headers: dict[str, str], **more: Any) -> Response:
    body = {"model": "there/big", "messages": [{"role": "user", "content": "hi"}], **more}
    return await rig.http.post("/v1/chat/completions", json=body, headers=headers)


def phase(rig: Rig) -> Phase:
    return rig.gateway.providers.upstreams["there"].breakers["big"].phase


@pytest.mark.parametrize("headers", [SOON, {"x-stainless-read-timeout": "0.05"}], ids=["whole", "beginning"])
@pytest.mark.parametrize("parts", [[HANG], [WORDS[0], HANG]], ids=["no status", "no words"])
async def test_a_client_with_a_short_deadline_does_not_open_the_breaker(
    tmp_path: Path, headers: dict[str, str], parts: list[Any]
) -> None:
    async with rigged(tmp_path, lambda seen: stream(*parts), timeouts=LONG) as rig:
        for _ in range(2 * RUN):
            found = await impatient(rig, headers, stream=True)
            assert (found.status_code, found.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert phase(rig) is Phase.CLOSED
        assert rig.gateway.providers.upstreams["there"].breakers["big"].run == 0


async def test_a_hanging_provider_opens_its_breaker_even_if_all_deadlines_are_short(tmp_path: Path) -> None:
    """A failure counts once there is no status for the time that a silence in mid-answer may last."""
    timeouts, patient = {**LONG, "between_bytes": 0.001}, {"X-Request-Timeout": "0.3"}
    async with rigged(tmp_path, lambda seen: Play([HANG]), timeouts=timeouts) as rig:
        codes: list[str] = []
        async with asyncio.timeout(PATIENCE):
            while "provider_open" not in codes:  # a busy machine may not reach the provider in time
                codes.append((await impatient(rig, patient)).json()["error"]["code"])
        assert len(codes) > RUN
        assert set(codes[:-1]) == {"deadline_exceeded"}


async def test_a_clients_read_timeout_bounds_only_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rigged(tmp_path, lambda seen: stream(*WORDS, GATE, *EVENTS[2:]), timeouts=LONG) as rig:
        headers = {"content-type": "application/json", "x-stainless-read-timeout": "60"}
        wire = Wire(rig.app, "/v1/chat/completions", [requested(True)], headers)
        async with asyncio.timeout(PATIENCE):
            task = asyncio.create_task(wire.run())
            await wire.first.wait()
            monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time.monotonic() + 61)
            await asyncio.sleep(0.01)  # expired timers run
            rig.fake.gate.set()
            await task
        assert b"".join(part["body"] for part in wire.sent[1:]).endswith(b"data: [DONE]\n\n")
        assert rig.gateway.records.all[0].code is None


# --- the four time-outs ----------------------------------------------------------------------------------------------
async def test_a_connection_that_is_not_accepted_times_out(tmp_path: Path) -> None:
    """The socket listens but accepts nothing, and its queue is full, so the next connection gets no answer."""
    with socket.socket() as listening, ExitStack() as clients:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        where = listening.getsockname()
        for _ in range(2):
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(where)
        url, times = f"http://127.0.0.1:{where[1]}/v1", {**SHORT, "connect": 0.2, "first_byte": PATIENCE}
        async with rigged(tmp_path, lambda seen: Play(), base_url=url, timeouts=times) as rig:
            async with asyncio.timeout(PATIENCE):
                found = await rig.chat()
        assert (found.status_code, found.json()["error"]["code"]) == (504, "provider_timeout")
        assert "no connection in time" in found.json()["error"]["message"]


@pytest.mark.parametrize("parts", [[HANG], [*WORDS, HANG]], ids=["before", "in mid-stream"])
async def test_the_whole_request_has_its_own_time_out(tmp_path: Path, parts: list[Any]) -> None:
    times = {"first_byte": 500.0, "between_bytes": 500.0, "whole": 0.3}
    async with rigged(tmp_path, lambda seen: stream(*parts), timeouts=times) as rig:
        async with asyncio.timeout(PATIENCE):
            found = await rig.chat(stream=True)
        last = json.loads(found.text.split("data: ")[-1])
        assert last["error"]["code"] == "deadline_exceeded"
        assert rig.gateway.providers.upstreams["there"].running == 0
