"""A task is one object, an engine and a dialect: here one that reverses text is added as `docs/extending.md` says.

Its request passes the real gateway, a real socket and the slot's real loop.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from models.messages import Chunk, Event, LoadResult, Message, Usage
from models.protocol import Report
from models.tasks import TASKS, Call
from models.tasks.kind import CallSummary, Demand, EmitEvent, TaskKind, run_whole
from registry.bounds import Bounds
from registry.errors import BadRequest
from registry.recipes.definition import Recipe, Task
from runtime.gateway.context import RequestContext
from runtime.gateway.names import ModelRef
from runtime.gateway.target import Target
from runtime.http.bodies import decode
from runtime.http.dialect import Endpoint, ParsedRequest, Parts, whole_answer
from runtime.http.errors import Dialect
from runtime.slots import frames
from runtime.slots.server import SlotServer
from runtime.slots.unix_link import UnixSlotLink
from tests.unit.http.answering import Answered, answer
from tests.unit.http.fakes import FakeGateway


# --- the steps of docs/extending.md ---------------------------------------------------------------------------------
class ReverseRequest(Message, frozen=True):
    text: str


class ReverseEngine:
    async def load(self, recipe: Recipe, path: Path, device: str, report: Report) -> LoadResult:
        return LoadResult(resident_bytes=1, weights_bytes=1)

    async def reverse(self, request: ReverseRequest) -> tuple[Chunk, Usage]:
        return Chunk(data=request.text[::-1].encode()), Usage(prompt_tokens=len(request.text))

    async def close(self) -> None:
        pass


class ReverseBody(msgspec.Struct):
    model: str
    text: str


async def _run(engine: ReverseEngine, request: ReverseRequest, emit: EmitEvent) -> None:
    await run_whole(engine.reverse(request), emit)


def _check(calls: Sequence[ReverseRequest], _bounds: Bounds) -> None:
    if any(len(call.text) > 100 for call in calls):
        raise BadRequest("The text is longer than 100 characters: shorten it.", param="text")


def _parse(data: bytes, _query: Mapping[str, str]) -> ParsedRequest:
    body = decode(data, ReverseBody)

    async def render(target: Target, events: AsyncIterator[Event]) -> Parts:
        chunks = [event.data async for event in events if isinstance(event, Chunk)]
        async for part in whole_answer(b"".join(chunks)):
            yield part

    call = cast(Call, ReverseRequest(text=body.text))
    return ParsedRequest(ModelRef(Task("reverse"), body.model), lambda _: [call], render, Dialect.OPENAI)


ENDPOINT = Endpoint("/v1/reverse", _parse, Dialect.OPENAI)


@pytest.fixture
def reverse(monkeypatch: pytest.MonkeyPatch) -> Iterator[Task]:
    """The line in `Task` and the row in `TASKS`."""
    task: Task = cast(Any, Task)._new_member_(Task, "reverse", "/v1/reverse", ("vllm",))
    task._name_ = "REVERSE"
    monkeypatch.setitem(Task._member_map_, "REVERSE", task)
    monkeypatch.setitem(Task._value2member_map_, "reverse", task)
    kind = TaskKind(
        task=task,
        call=ReverseRequest,
        message=ReverseRequest,
        run=_run,
        demand=lambda call, _context, _seconds: Demand(len(call.text)),
        summary=lambda call: CallSummary(last=call.text),
        check=_check,
    )
    monkeypatch.setitem(TASKS, task, kind)
    Recipe.model_rebuild(force=True)
    yield task
    monkeypatch.undo()
    Recipe.model_rebuild(force=True)


# --- through the server --------------------------------------------------------------------------------------------
@pytest.fixture
async def gateway(reverse: Task, tmp_path: Path) -> AsyncIterator[FakeGateway]:
    recipe = Recipe.model_validate(
        {"id": "mirror", "version": 1, "task": "reverse", "source": {"path": "x"}, "engine": {"name": "vllm"}}
    )
    server = SlotServer(str(tmp_path / "slot"), lambda *_: ReverseEngine(), exit_on_disconnect=False)
    serving = asyncio.create_task(server.serve())
    link = UnixSlotLink(0, server.address, lambda _: None)
    await link.connect()
    link.pid = 0  # the slot runs in this process: its group must not be killed
    async with link.call(lambda uid: frames.Load(uid, recipe.model_dump_json().encode(), "x", "cpu")) as call:
        await call.done()
    fake = FakeGateway(tmp_path, [recipe, *FakeGateway(tmp_path).recipes])
    fake.queues["mirror"].open(link)
    yield fake
    server._stop.set()
    await serving


async def ask(gateway: FakeGateway, model: str, text: str) -> Answered:
    body = msgspec.json.encode({"model": model, "text": text})
    return await answer(gateway.gateway, RequestContext("r-1"), ENDPOINT, body)


async def test_a_new_task_is_answered_and_counted(gateway: FakeGateway) -> None:
    answered = await ask(gateway, "mirror", "abc")
    assert (answered.status, answered.body) == (200, b"cba")
    assert answered.headers["X-Roundhouse-Model"] == "mirror@rev"
    record = gateway.records.all[-1]
    assert record.usage == Usage(prompt_tokens=3)


async def test_a_new_task_has_its_own_bounds(gateway: FakeGateway) -> None:
    answered = await ask(gateway, "mirror", "a" * 101)
    assert answered.status == 400
    assert b"longer than 100 characters" in answered.body


async def test_a_model_of_another_task_names_its_path(gateway: FakeGateway) -> None:
    answered = await ask(gateway, "chat", "abc")
    assert answered.status == 400
    assert b"Send the request to /v1/chat/completions" in answered.body
