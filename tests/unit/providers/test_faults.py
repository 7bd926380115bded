"""Every failure of a provider, before the first byte and after it, has one outcome, and none hangs.

The same table is in docs/reference/provider.md. No test waits longer than the recipe's time-outs, which are short.
"""

import asyncio
import gc
import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from models.messages import Usage
from routing.providers.call import INLINE_TOKENS, estimated
from routing.providers.pass_through import is_other_model
from runtime.gateway.record import End
from tests.eventually import PATIENCE
from tests.fakes import traces
from tests.fakes.provider import CUT, HANG, Play, Seen
from tests.processor_time import processor_time
from tests.unit.http.fakes import Wire
from tests.unit.providers.plays import AFTER, BEFORE, EVENTS, FIRST, LONG, SHORT, WORDS, bounds, huge, stream
from tests.unit.providers.rig import rigged


@pytest.mark.parametrize("name", BEFORE)
async def test_an_answer_that_fails_has_one_status_and_code(tmp_path: Path, name: str) -> None:
    play, status, code = BEFORE[name]
    async with rigged(tmp_path, lambda seen: play, timeouts=bounds(code), max_answer=8 * 2**20) as rig:
        async with asyncio.timeout(PATIENCE):
            found = await rig.chat()
        assert (found.status_code, found.json()["error"]["code"]) == (status, code), found.text
        assert len(rig.fake.seen) == 1
        assert rig.gateway.records.all[0].code == code
        if name == "429":
            assert found.headers["retry-after"] == "7"
        if name.startswith("a 2 GB"):
            assert rig.fake.sent_bytes < 64 * 2**20


async def test_googles_delay_becomes_retry_after(tmp_path: Path) -> None:
    """Google sends no header, but the delay among the details of its error."""
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.074824224s"}
    details = [{"@type": "type.googleapis.com/google.rpc.Help", "links": []}, info]
    error = {"code": 429, "message": "quota", "status": "RESOURCE_EXHAUSTED", "details": details}
    body = json.dumps([{"error": error}]).encode()
    async with rigged(tmp_path, lambda seen: Play([body], status=429)) as rig:
        found = await rig.chat()
        assert (found.status_code, found.json()["error"]["code"]) == (429, "provider_busy")
        assert found.headers["retry-after"] == "35"


@pytest.mark.parametrize("name", FIRST)
async def test_a_stream_that_fails_before_its_first_word_has_a_status(tmp_path: Path, name: str) -> None:
    play, status, code = FIRST[name]
    async with rigged(tmp_path, lambda seen: play, timeouts=bounds(code)) as rig:
        async with asyncio.timeout(PATIENCE):
            found = await rig.chat(stream=True)
        assert (found.status_code, found.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize("name", AFTER)
async def test_a_stream_that_fails_after_its_first_word_ends_with_an_error_event(tmp_path: Path, name: str) -> None:
    play, code = AFTER[name]
    async with rigged(
        tmp_path, lambda seen: play, timeouts=bounds(code, first_byte=PATIENCE), max_answer=8 * 2**20
    ) as rig:
        wire = Wire(rig.app, "/v1/chat/completions", [requested(True)], {"content-type": "application/json"})
        async with asyncio.timeout(PATIENCE):
            task = asyncio.create_task(wire.run())
            await wire.first.wait()
            rig.fake.gate.set()
            await task
        assert wire.sent[0]["status"] == 200
        text = b"".join(part["body"] for part in wire.sent[1:]).decode()
        events = [event for event in text.split("\n\n") if event]
        last = json.loads(events[-1].removeprefix("data: "))
        assert last["error"]["code"] == code
        assert "hello" in events[1]
        (record,) = rig.gateway.records.all
        assert (record.end, record.code) == (End.FAILED, code)
        assert record.usage.completion_tokens >= 1, "the tokens before the failure are counted"
        assert record.usage.prompt_tokens > 0


async def test_nothing_is_read_after_the_end_of_a_stream(tmp_path: Path) -> None:
    async with rigged(tmp_path, lambda seen: stream(*EVENTS, HANG), timeouts=LONG) as rig:
        found = await rig.chat(stream=True)
        assert found.text.endswith("data: [DONE]\n\n")
        assert rig.gateway.records.all[0].end is End.DONE
        await rig.fake.left.wait()


@pytest.mark.long
@pytest.mark.parametrize("is_stream", [True, False])
async def test_an_error_in_a_200_is_recognised_also_for_streams(tmp_path: Path, is_stream: bool) -> None:
    """For a stream it was treated as garbage, and counted by the breaker."""
    body = b'{"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}'
    async with rigged(tmp_path, lambda seen: Play([body])) as rig:
        found = await rig.chat(stream=is_stream)
        assert (found.status_code, found.json()["error"]["code"]) == (502, "provider_no_credit")
        assert rig.gateway.providers.upstreams["there"].breakers["big"].run == 0


@pytest.mark.parametrize(
    ("path", "requested"),
    [("embeddings", {"model": "there/embed", "input": "x"}),
     ("rerank", {"model": "there/rerank", "query": "x", "documents": ["y"]})],
)  # fmt: skip
async def test_an_error_in_a_200_is_recognised_for_other_tasks(
    tmp_path: Path, path: str, requested: dict[str, Any]
) -> None:
    """It was counted by the breaker, and its message was lost."""
    reported = [
        b'{"error": {"message": "slow down", "code": 429}}',
        b'{"object": "error", "message": "no", "code": 400}',
    ]
    async with rigged(tmp_path, lambda seen: Play([reported[len(rig.fake.seen) - 1]])) as rig:
        found = [await rig.http.post(f"/v1/{path}", json=requested) for _ in reported]
        assert [response.status_code for response in found] == [429, 400]
        assert "slow down" in found[0].text
        assert rig.gateway.providers.upstreams["there"].breakers[requested["model"][6:]].run == 0


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_refusal_in_a_200_is_the_clients_fault(tmp_path: Path, is_stream: bool) -> None:
    """vLLM's streams report refusals like this. Five of them opened the breaker for all clients."""
    refused = b'{"error": {"message": "bad grammar", "type": "BadRequestError", "code": 400}}'
    play = stream(b"data: " + refused + b"\n\n", EVENTS[-1]) if is_stream else Play([refused])
    async with rigged(tmp_path, lambda seen: play) as rig:
        found = await rig.chat(stream=is_stream)
        assert (found.status_code, found.json()["error"]["message"]) == (400, "bad grammar")
        assert rig.gateway.providers.upstreams["there"].breakers["big"].run == 0


@pytest.mark.parametrize(
    ("protocol", "path", "requested"),
    [
        ("openai", "chat/completions", {}),
        ("openai", "responses", {"input": "hi"}),
        ("openai", "messages", {"max_tokens": 9}),
        ("anthropic", "chat/completions", {}),
        ("anthropic", "messages", {"max_tokens": 9}),
        ("anthropic", "messages/count_tokens", {}),
    ],
)
async def test_an_answer_without_content_is_an_error(
    tmp_path: Path, protocol: str, path: str, requested: dict[str, Any]
) -> None:
    """It was passed on with a 200 or as an empty message, and charged."""
    async with rigged(tmp_path, lambda seen: Play([b'{"message": "forbidden"}']), protocol) as rig:
        body = {"model": "there/big", "messages": [{"role": "user", "content": "hi"}], **requested}
        found = await rig.http.post(f"/v1/{path}", json=body)
        assert found.status_code == 502, found.text
        assert "forbidden" in found.json()["error"]["message"]
        assert rig.gateway.records.all[0].usage == Usage()


async def test_an_unrequested_compression_is_understood(tmp_path: Path) -> None:
    """Such an answer was not read as JSON, and the message of a refusal was lost."""

    def script(seen: Seen) -> Play:
        play = traces.chat_stream("big") if seen.body.get("stream") else traces.chat("big")
        if seen.body.get("n") == 0:
            play = Play([b'{"error": {"message": "n is 0"}}'], status=400)
        packed = gzip.compress(b"".join(list(play.parts)))  # type: ignore[call-overload]
        headers = {"content-encoding": "gzip"}
        return Play([packed], play.status, play.content_type, headers)

    async with rigged(tmp_path, script) as rig:
        assert "hello there" in (await rig.chat()).text
        assert "[DONE]" in (await rig.chat(stream=True)).text
        refused = await rig.chat(n=0)
        assert (refused.status_code, refused.json()["error"]["message"]) == (400, "n is 0")


@pytest.mark.parametrize(("status", "code"), [(200, "provider_answer"), (429, "provider_busy"), (400, None)])
async def test_an_unknown_compression_is_an_error_that_keeps_the_status(
    tmp_path: Path, status: int, code: str | None
) -> None:
    play = Play([b"\x0b\x02\x80{}\x03"], status, headers={"content-encoding": "br"})
    async with rigged(tmp_path, lambda seen: play) as rig:
        found = await rig.chat()
        assert (found.status_code, found.json()["error"]["code"]) == (502 if status == 200 else status, code)
        assert ("'br'" in found.text) == (status == 200)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_false_content_encoding_is_an_error(tmp_path: Path, is_stream: bool) -> None:
    play = traces.chat_stream("big") if is_stream else traces.chat("big")
    play.headers["content-encoding"] = "gzip"
    async with rigged(tmp_path, lambda seen: play) as rig:
        found = await rig.chat(stream=is_stream)
        assert (found.status_code, found.json()["error"]["code"]) == (502, "provider_answer")


async def test_a_decompression_bomb_is_refused(tmp_path: Path) -> None:
    play = Play([gzip.compress(b" " * 2**26)], headers={"content-encoding": "gzip"})
    async with rigged(tmp_path, lambda seen: play, max_answer=2**20) as rig:
        found = await rig.chat()
        assert (found.status_code, found.json()["error"]["code"]) == (502, "provider_answer")
        assert "more than" in found.text


async def test_a_stream_of_another_content_type_is_not_read_to_its_end(tmp_path: Path) -> None:
    """The client had to wait until the provider had generated all of it."""
    async with rigged(tmp_path, lambda seen: Play([*EVENTS, HANG], content_type="text/plain"), timeouts=LONG) as rig:
        found = await rig.chat(stream=True)
        assert (found.status_code, found.json()["error"]["code"]) == (502, "provider_answer")
        await rig.fake.left.wait()


async def test_a_large_body_is_not_kept_in_memory(tmp_path: Path) -> None:
    async with rigged(tmp_path, lambda seen: Play(huge), max_answer=8 * 2**20) as rig:
        await rig.chat("there/big")  # for what is imported and created only once
        gc.collect()
        tracemalloc.start()
        try:
            found = await rig.chat()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert found.json()["error"]["code"] == "provider_answer"
        assert peak < 24 * 2**20


# --- another model ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "stated",
    [
        "big",
        "big-2026-11-01",
        "big-20261101",
        "big@20261101",
        "big-0613",
        "big-preview-05-06",
        "org/big",
        "org/big:free",
    ],
)
async def test_a_version_of_the_same_model_is_that_model(tmp_path: Path, stated: str) -> None:
    async with rigged(tmp_path, lambda seen: traces.chat(stated)) as rig:
        found = await rig.chat()
        assert found.status_code == 200
        assert "x-roundhouse-warning" not in found.headers


@pytest.mark.parametrize(("stated", "status"), [("big-20261101", 200), ("big-latest", 200), ("big-mini", 502)])
async def test_an_alias_of_the_latest_model_accepts_its_dated_name(tmp_path: Path, stated: str, status: int) -> None:
    """Anthropic answers like this."""
    models = [{"name": "big-latest", "exact": True}]
    async with rigged(tmp_path, lambda seen: traces.chat(stated), models=models) as rig:
        assert (await rig.chat("there/big-latest")).status_code == status


@pytest.mark.parametrize("stated", ["big-mini", "big-32k", "big-1", "big-1-20261101", "bigger", "mini-big"])
async def test_another_model_of_the_same_family_is_refused(tmp_path: Path, stated: str) -> None:
    async with rigged(tmp_path, lambda seen: traces.chat(stated), models=[{"name": "big", "exact": True}]) as rig:
        found = await rig.chat()
        assert (found.status_code, found.json()["error"]["code"]) == (502, "provider_answer")


def test_comparing_a_long_name_takes_linear_time() -> None:
    """Each date in it is also a number and a shorter date."""
    with processor_time() as seconds:
        assert is_other_model("big", "big" + "-2026-11-01" * 1000 + "x")
        assert seconds() < 1


@pytest.mark.parametrize("is_stream", [True, False])
async def test_another_models_name_is_a_warning_or_an_error(tmp_path: Path, is_stream: bool) -> None:
    play = traces.chat_stream("tiny") if is_stream else traces.chat("tiny")
    async with rigged(tmp_path, lambda seen: play) as rig:
        found = await rig.chat(stream=is_stream)
        assert found.headers["x-roundhouse-warning"] == "the provider says that model tiny answered"
        assert "there/big" in found.text
    async with rigged(tmp_path, lambda seen: play, models=[{"name": "big", "exact": True}]) as rig:
        found = await rig.chat(stream=is_stream)
        assert (found.status_code, found.json()["error"]["code"]) == (502, "provider_answer")


VECTORS = {"data": [{"index": 0, "embedding": [1.0, 0.0]}], "model": "tiny"}
TASKS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "/v1/embeddings": ("embed", {"input": "a"}, VECTORS),
    "/api/embed": ("embed", {"input": "a"}, VECTORS),
    "/v1/rerank": ("rerank", {"query": "q", "documents": ["a"]},
                   {"results": [{"index": 0, "relevance_score": 0.5}], "model": "tiny"}),
    "/v1/audio/transcriptions": ("transcribe", {}, {"text": "two words", "duration": 1.0, "model": "tiny"}),
}  # fmt: skip


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("path", TASKS)
async def test_another_models_name_is_noticed_for_other_tasks(tmp_path: Path, path: str, exact: bool) -> None:
    task, body, reported = TASKS[path]
    sent: dict[str, Any] = {"json": {"model": f"there/{task}", **body}}
    if task == "transcribe":
        sent = {"data": {"model": "there/transcribe"}, "files": {"file": ("a.wav", b"RIFFdata")}}
    models = [{"name": task, "task": task, "exact": exact}]
    async with rigged(tmp_path, lambda seen: Play([json.dumps(reported).encode()]), models=models) as rig:
        found = await rig.http.post(path, **sent)
        if exact:
            assert found.status_code == 502, found.text
        else:
            assert found.headers["x-roundhouse-warning"] == "the provider says that model tiny answered"


async def test_an_impossible_duration_of_a_recording_is_an_error(tmp_path: Path) -> None:
    """No sink could count such a number in milliseconds, so that the reservation was never returned."""
    play = Play([b'{"text": "two words", "duration": 1e308}'])
    async with rigged(tmp_path, lambda seen: play) as rig:
        sent: Any = {"data": {"model": "there/transcribe"}, "files": {"file": ("a.wav", b"RIFFdata")}}
        found = await rig.http.post("/v1/audio/transcriptions", **sent)
        assert (found.status_code, found.json()["error"]["code"]) == (502, "provider_answer")
        assert rig.gateway.records.all[0].usage.audio_seconds < 1


# --- addresses and keys ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("url", ["http://127.0.0.1:{}/v1", "http://localhost:{}/v1", "http://[::ffff:127.0.0.1]:{}/v1"])
async def test_private_addresses_require_the_recipes_permission(tmp_path: Path, url: str) -> None:
    async with rigged(tmp_path, lambda seen: traces.chat("big")) as rig:
        port = rig.fake.port
        upstream = rig.gateway.providers.upstreams["there"]
        upstream.provider = upstream.provider.model_copy(
            update={"base_url": url.format(port), "private_addresses": False}
        )
        found = await rig.chat()
        assert (found.status_code, found.json()["error"]["code"]) == (502, "provider_address")
        assert not rig.fake.seen


async def test_a_port_without_a_listener_is_unreachable(tmp_path: Path) -> None:
    async with rigged(tmp_path, lambda seen: traces.chat("big"), base_url="http://127.0.0.1:9/v1") as rig:
        found = await rig.chat()
        assert (found.status_code, found.json()["error"]["code"]) == (502, "provider_unreachable")


async def test_a_line_end_after_a_key_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that was read from a file has one, and each request was a 500."""
    async with rigged(tmp_path, lambda seen: traces.chat("big")) as rig:
        monkeypatch.setenv("TEST_PROVIDER_KEY", "sk-1\n")
        assert (await rig.chat()).status_code == 200
        assert rig.fake.seen[0].headers["authorization"] == "Bearer sk-1"
        monkeypatch.setenv("TEST_PROVIDER_KEY", "\n")
        assert (await rig.chat()).json()["error"]["code"] == "provider_key"
        assert (await rig.http.get("/v1/providers")).json()["data"][0]["key_is_set"] is False


@pytest.mark.parametrize("key", ["sk-1\nsk-2", "sk-\x07", "\ufeffsk-1"])
async def test_a_key_that_no_header_can_have_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Each request was a 500, and the log had a traceback."""
    monkeypatch.setenv("TEST_PROVIDER_KEY", key)
    async with rigged(tmp_path, lambda seen: traces.chat("big")) as rig:
        found = await rig.chat()
        assert (found.status_code, found.json()["error"]["code"]) == (502, "provider_key")
        assert "TEST_PROVIDER_KEY has a line break or an invisible character" in found.json()["error"]["message"]
        assert (await rig.http.post("/v1/providers/there/test")).json()["ok"] is False
        assert not rig.fake.seen


async def test_a_missing_key_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_PROVIDER_KEY")
    async with rigged(tmp_path, lambda seen: traces.chat("big")) as rig:
        found = await rig.chat()
        assert (found.status_code, found.json()["error"]["code"]) == (502, "provider_key")
        assert "TEST_PROVIDER_KEY" in found.json()["error"]["message"]
        assert not rig.fake.seen


# --- usage -----------------------------------------------------------------------------------------------------------
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBO" * 10_000}}
SOUND = {"type": "input_audio", "input_audio": {"data": "UklG" * 10_000, "format": "wav"}}
WITH_PICTURE = [{"role": "user", "content": [{"type": "text", "text": "what is this? " * 50}, PICTURE, SOUND]}]


async def test_a_picture_is_not_charged_as_text(tmp_path: Path) -> None:
    async with rigged(tmp_path, lambda seen: stream(*WORDS)) as rig:
        await rig.chat(stream=True, messages=WITH_PICTURE)
        (record,) = rig.gateway.records.all
        assert 2 * INLINE_TOKENS < record.usage.prompt_tokens < 2 * INLINE_TOKENS + 500
    short = [{"name": "big", "context_length": 1500}]
    async with rigged(tmp_path / "short", lambda seen: stream(*WORDS), models=short) as rig:
        await rig.chat(stream=True, messages=WITH_PICTURE)
        assert rig.gateway.records.all[0].usage.prompt_tokens == 1500, "no prompt is longer than the context"


def test_estimating_takes_linear_time() -> None:
    """The text repeats what is almost a picture. A search that restarts at each repetition would take minutes."""
    almost = b"A" * 1023 + b" "
    assert estimated(almost * 4096, None) == 2**20


@pytest.mark.parametrize(
    ("play", "is_read"),
    [
        (Play([HANG]), True),
        (Play([b"", CUT]), True),
        (traces.error(500), False),
        (traces.error(429), False),
        (traces.error(400), False),
        (Play([b"<html>"]), False),
    ],
    ids=["hangs", "breaks", "500", "429", "400", "garbage"],
)
async def test_a_prompt_that_was_read_is_charged(tmp_path: Path, play: Play, is_read: bool) -> None:
    """It may have been read if the provider gave no answer, while an error response shows that it was not."""
    times = SHORT if play.parts == [HANG] else LONG
    async with rigged(tmp_path, lambda seen: play, timeouts=times) as rig:
        await rig.chat(messages=[{"role": "user", "content": "x" * 4000}])
        (record,) = rig.gateway.records.all
        assert record.usage.completion_tokens == 0
        assert (1000 < record.usage.prompt_tokens < 1050) if is_read else record.usage.prompt_tokens == 0


@pytest.mark.parametrize("usage", [{}, {"usage": None}, {"usage": {"prompt_tokens": None, "completion_tokens": None}}])
@pytest.mark.parametrize("is_stream", [True, False])
async def test_an_answer_without_usage_is_not_free(tmp_path: Path, usage: dict[str, Any], is_stream: bool) -> None:
    """Answers and embeddings of servers that report no usage were not charged to any budget."""

    def script(seen: Seen) -> Play:
        reported: dict[str, Any] = {"model": "big", **usage}
        if seen.path.endswith("embeddings"):
            reported["data"] = [{"embedding": [1.0, 0.0]}]
        else:
            reported["choices"] = [{"delta" if is_stream else "message": {"content": "hello"}, "finish_reason": "stop"}]
        data = json.dumps(reported).encode()
        return stream(b"data: " + data + b"\n\n", EVENTS[-1]) if seen.body.get("stream") else Play([data])

    async with rigged(tmp_path, script) as rig:
        found = await rig.chat(stream=is_stream, messages=[{"role": "user", "content": "x" * 4000}])
        assert found.status_code == 200
        await rig.http.post("/v1/embeddings", json={"model": "there/embed", "input": "x" * 4000})
        for record in rig.gateway.records.all:
            assert 1000 < record.usage.prompt_tokens < 1050
        assert 0 < rig.gateway.records.all[0].usage.completion_tokens < 50


async def test_counting_tokens_is_not_charged(tmp_path: Path) -> None:
    async with rigged(tmp_path, lambda seen: Play([b'{"input_tokens": 5}']), "anthropic") as rig:
        body = {"model": "there/big", "messages": [{"role": "user", "content": "x" * 4000}]}
        assert (await rig.http.post("/v1/messages/count_tokens", json=body)).json() == {"input_tokens": 5}
        assert rig.gateway.records.all[0].usage == Usage()


async def test_a_request_that_never_arrived_costs_nothing(tmp_path: Path) -> None:
    async with rigged(tmp_path, lambda seen: Play(), base_url="http://127.0.0.1:9/v1") as rig:
        await rig.chat()
        assert rig.gateway.records.all[0].usage.prompt_tokens == 0


# --- disconnects, and the bound on connections -----------------------------------------------------------------------
def requested(is_stream: bool) -> bytes:
    return json.dumps({"model": "there/big", "stream": is_stream, "messages": []}).encode()


@pytest.mark.parametrize(
    ("is_stream", "play"), [(False, Play([HANG])), (True, stream(*WORDS, HANG))], ids=["before", "in mid-stream"]
)
async def test_a_client_that_leaves_cancels_the_provider(tmp_path: Path, is_stream: bool, play: Play) -> None:
    async with rigged(tmp_path, lambda seen: play) as rig:
        headers = {"content-type": "application/json"}
        wire = Wire(rig.app, "/v1/chat/completions", [requested(is_stream)], headers)
        task = asyncio.create_task(wire.run())
        await (wire.first if is_stream else rig.fake.arrived).wait()
        wire.leave.set()
        await task
        async with asyncio.timeout(PATIENCE):
            await rig.fake.left.wait()
        assert rig.gateway.records.all[0].end is End.CANCELLED
        assert rig.gateway.providers.upstreams["there"].running == 0


async def test_more_than_its_connections_is_a_429(tmp_path: Path) -> None:
    async with rigged(tmp_path, lambda seen: Play([HANG]), connections=1) as rig:
        first = asyncio.create_task(rig.chat())
        await rig.fake.arrived.wait()
        second = await rig.chat()
        assert (second.status_code, second.json()["error"]["code"]) == (429, "provider_busy")
        assert second.headers["retry-after"] == "1"
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_the_clients_deadline_is_not_the_providers_failure(tmp_path: Path) -> None:
    from runtime.gateway.context import RequestContext
    from runtime.http.routes import ENDPOINTS
    from tests.unit.http.answering import answer

    async with rigged(tmp_path, lambda seen: Play([HANG])) as rig:
        loop = asyncio.get_running_loop()
        context = RequestContext("x", deadline=loop.time() + 0.2)
        found = await answer(rig.gateway.gateway, context, ENDPOINTS["/v1/chat/completions"], requested(False))
        assert found.status == 504
        assert json.loads(found.body)["error"]["code"] == "deadline_exceeded"
