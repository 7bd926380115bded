"""What a client that waits for a load gets: preferences, progress comments, errors in an opened stream."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from models.messages import Progress
from registry.errors import BadRequest, EngineFailed
from registry.recipes.definition import Recipe
from runtime.gateway.prefer import NotYet, Preference, parse
from runtime.http.chat.progress import progress_stream
from runtime.http.errors import Dialect
from runtime.http.working import Working
from runtime.residency.entry import ModelEntry

RECIPE = Recipe.model_validate(
    {"id": "m", "version": 1, "task": "chat", "source": {"path": "x"}, "engine": {"name": "vllm"}}
)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], Preference()),
        ([(b"prefer", b"respond-async")], Preference(respond_async=True)),
        ([(b"prefer", b"respond-async, wait=7")], Preference(respond_async=True, wait=7.0)),
        ([(b"prefer", b"wait=abc"), (b"prefer", b'Wait = "3"')], Preference(wait=3.0)),
        ([(b"x-roundhouse-progress", b"SSE")], Preference(progress=True)),
        ([(b"prefer", b"handling=lenient; x")], Preference()),
    ],
)
def test_headers_to_preference(headers: list[tuple[bytes, bytes]], expected: Preference) -> None:
    assert parse(headers) == expected


def entry(**more: Any) -> ModelEntry:
    return ModelEntry(
        recipe=RECIPE, path=Path("x"), revision="r", needed=1, needed_detail="", load_seconds=4.0,
        queue=None, **more,  # type: ignore[arg-type]
    )  # fmt: skip


class Wire:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    async def send(self, message: Any) -> None:
        self.messages.append(dict(message))

    def text(self) -> str:
        return b"".join(m.get("body", b"") for m in self.messages).decode()


async def test_comments_tell_the_progress_until_the_answer_comes() -> None:
    wire, model = Wire(), entry(progress=Progress(phase="weights", fraction=0.4))
    async with progress_stream(model, wire.send, Dialect.OPENAI) as answer:
        await asyncio.sleep(0)
        await answer({"type": "http.response.start", "status": 200, "headers": []})
        await answer({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await answer({"type": "http.response.body", "body": b"", "more_body": False})
    assert [m["type"] for m in wire.messages].count("http.response.start") == 1
    assert wire.text() == ": m weights 40%\n\ndata: 1\n\n"
    assert wire.messages[-1]["more_body"] is False


async def test_an_error_is_the_opened_streams_last_event() -> None:
    wire = Wire()
    async with progress_stream(entry(), wire.send, Dialect.OPENAI):
        raise EngineFailed("no weights")
    assert json.loads(wire.text().split("data: ")[1])["error"]["message"] == "no weights"
    assert wire.messages[-1]["more_body"] is False


async def test_an_engines_error_body_becomes_an_event() -> None:
    wire = Wire()
    async with progress_stream(entry(), wire.send, Dialect.OPENAI) as answer:
        await answer({"type": "http.response.start", "status": 400, "headers": []})
        await answer({"type": "http.response.body", "body": b'{"error":{}}', "more_body": False})
    assert wire.text().endswith('data: {"error":{}}\n\n')


async def run(response: Working) -> Wire:
    wire = Wire()

    async def receive() -> Any:
        await asyncio.Event().wait()

    await response({"type": "http", "method": "POST", "headers": []}, receive, wire.send)
    return wire


async def test_who_does_not_want_to_wait_gets_202_and_an_address() -> None:
    async def work(_send: Any) -> None:
        raise NotYet("m", 3.2)

    wire = await run(Working(work))
    headers = dict(wire.messages[0]["headers"])
    assert wire.messages[0]["status"] == 202
    assert (headers[b"location"], headers[b"retry-after"]) == (b"/v1/models/m", b"4")
    assert json.loads(wire.text())["status_url"] == "/v1/models/m"


async def test_an_error_before_the_answer_keeps_its_status_and_dialect() -> None:
    async def work(_send: Any) -> None:
        raise BadRequest("bad", param="x")

    wire = await run(Working(work, Dialect.ANTHROPIC))
    assert wire.messages[0]["status"] == 400
    assert json.loads(wire.text()) == {"type": "error", "error": {"type": "invalid_request_error", "message": "bad"}}


async def test_an_unmapped_error_is_a_500_without_its_words() -> None:
    async def work(_send: Any) -> None:
        raise KeyError("a secret prompt")

    wire = await run(Working(work))
    assert wire.messages[0]["status"] == 500
    assert "secret" not in wire.text()


async def test_a_disconnect_cancels_the_work() -> None:
    cancelled = asyncio.Event()

    async def work(_send: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    wire = Wire()
    await Working(work)({"type": "http", "method": "POST", "headers": []}, receive, wire.send)
    assert cancelled.is_set()
    assert wire.messages == []


def test_the_remaining_time_shrinks_with_the_progress() -> None:
    assert entry().remaining_load_seconds == 4.0
    from runtime.residency.states import ModelState

    model = entry(progress=Progress(phase="weights", fraction=0.5), state=ModelState.LOADING)
    assert model.remaining_load_seconds == 2.0
