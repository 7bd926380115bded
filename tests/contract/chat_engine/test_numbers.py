"""Numbers that do not fit into 64 bits are refused with the field's name, and leave nothing in the slot."""

import asyncio
import contextlib
import json
from typing import Any

import pytest

from registry.errors import RoundhouseError
from tests.contract.chat.nasty import CHAT, HELLO
from tests.contract.chat_engine.bench import Bench
from tests.contract.chat_engine.numeric import BODIES, EXTREMES, Field, fields

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="package")]


async def outcome(bench: Bench, field: Field, number: str) -> tuple[int, str | None]:
    """Return status and param of the answer."""
    try:
        answer = await bench.ask(field.path, field.body(number, BODIES))
    except RoundhouseError as error:
        return error.status, error.param or error.code
    if answer.status == 200:
        return 200, None
    error = json.loads(answer.data)["error"]
    return answer.status, error.get("param")


async def test_each_number_of_each_body_is_accepted_or_refused_by_name(bench: Bench) -> None:
    numbers = fields(bench.engine._app.openapi(), BODIES)
    assert len(numbers) > 60
    wrong = []
    for field in numbers:
        for number in EXTREMES:
            status, param = await outcome(bench, field, number)
            if status not in (200, 400) or (status == 400 and not param) or bench.unfinished():
                wrong.append((field.path, field.name, field.value, number, status, param, bench.unfinished()))
    assert not wrong
    await bench.engine.ping()


async def test_a_large_number_in_a_schema_leaves_nothing(bench: Bench) -> None:
    """Schemas reach the core as text."""
    schema = {"type": "integer", "minimum": 0, "maximum": 2**70}
    requested = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    try:
        status = (await bench.ask(CHAT, {"messages": HELLO, "max_tokens": 2, **requested})).status
    except RoundhouseError as error:
        status = error.status
    assert status in (200, 400)
    assert bench.unfinished() == 0


@pytest.mark.parametrize("error", [OverflowError("can't serialize"), asyncio.CancelledError()], ids=["fails", "leaves"])
@pytest.mark.parametrize("answers", [1, 3])
async def test_a_request_that_fails_on_its_way_to_the_core_is_removed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: BaseException, answers: int
) -> None:
    """vLLM registers the request's state before it sends it; touches.py names the place."""
    engine = bench.engine._engine
    registered = []

    async def fail(request: Any) -> None:
        registered.append(bench.unfinished())
        raise error

    monkeypatch.setattr(engine.engine_core, "add_request_async", fail)
    with contextlib.suppress(RoundhouseError, asyncio.CancelledError):
        await bench.ask(CHAT, {"messages": HELLO, "max_tokens": 2, "n": answers})
    monkeypatch.undo()
    assert registered == [answers]
    assert bench.registered() == []
    assert (await bench.ask(CHAT, {"messages": HELLO, "max_tokens": 2})).status == 200
