"""Grammars made to break an engine: each is served, or refused with the bound's name, while other requests go on."""

import asyncio
from typing import Any

import psutil
import pytest

from models.messages import Chunk
from registry.bounds import USUAL
from registry.errors import RoundhouseError
from tests.contract.chat.bombs import AMBIGUOUS, ATTACKS, PATTERNED, TOOLS, guided, of_schema, properties
from tests.contract.chat.nasty import CHAT, HELLO, RESPONSES, TEXT
from tests.contract.chat_engine.bench import Answer, Bench

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="package")]

GROWTH = 256 << 20
"""Most bytes by which slot and EngineCore may grow under all attacks: four times EngineCore's cache of grammars."""
NAMED = {
    "grammar_too_large",
    "grammar_too_slow",
    "invalid_grammar",
    "too_many_entries",
    "unsatisfiable_constraint",
}


async def _outcome(bench: Bench, path: str, body: dict[str, Any]) -> tuple[int, str, str]:
    try:
        answer = await bench.ask(path, body)
    except RoundhouseError as error:
        return error.status, error.code, error.message
    return answer.status, "", answer.data.decode()[:500] if answer.status >= 400 else ""


async def test_each_is_refused_or_served_and_a_stream_goes_on(bench: Bench) -> None:
    """The stream gets the tokens that it gets without attacks."""
    body = {"prompt": "on and on", "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True}
    alone = _text(await bench.ask(TEXT, body))
    before = bench.engine._host_bytes()
    for name, attack in (ATTACKS | TOOLS).items():
        stream = asyncio.create_task(bench.ask(TEXT, body))
        status, code, message = await _outcome(bench, CHAT, {"messages": HELLO, "max_tokens": 8, **attack})
        assert status == 200 or (status == 400 and code in NAMED), f"{name}: {status} {code} {message}"
        assert len(message) < 4096
        assert _text(await stream) == alone, name
    assert bench.engine._host_bytes() - before < GROWTH
    await bench.engine.ping()
    assert bench.unfinished() == 0


def _text(answer: Answer) -> str:
    """Return the text of a stream, because the sizes of its chunks depend on how busy the machine is."""
    return "".join(part["choices"][0]["text"] for part in answer.events if part["choices"])


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        (CHAT, {"messages": HELLO, **ATTACKS["100,000 choices"]}, "grammar_too_large"),
        (CHAT, {"messages": HELLO, **ATTACKS["a repetition of a billion"]}, "grammar_too_large"),
        (CHAT, {"messages": HELLO, **ATTACKS["a structural tag"]}, "grammar_too_large"),
        (CHAT, {"messages": HELLO, **ATTACKS["a circle of references"]}, "invalid_grammar"),
        (CHAT, {"messages": HELLO, **ATTACKS["a reference to itself"]}, "invalid_grammar"),
        (CHAT, {"messages": HELLO, **ATTACKS["rules that all name one another"]}, "grammar_too_slow"),
        (TEXT, {"prompt": "x", **ATTACKS["5,000 patterned properties"]}, "grammar_too_large"),
        (
            RESPONSES,
            {"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": PATTERNED}}},
            "grammar_too_large",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_by_a_bound_comes_before_the_answer_begins(
    bench: Bench, path: str, body: dict[str, Any], code: str, stream: bool
) -> None:
    status, found, _ = await _outcome(bench, path, {**body, "stream": stream})
    assert (status, found) == (400, code)


@pytest.mark.parametrize("stream", [False, True])
async def test_grammars_bind_the_answers(bench: Bench, stream: bool) -> None:
    """The engine follows what was checked, also choices, which the check turns into a grammar."""
    body = {"prompt": "say", "max_tokens": 8, "temperature": 0, **guided(choice=["tea", "water"])}
    for _ in range(2):  # the second time from the cache
        answer = await bench.ask(TEXT, {**body, "stream": stream})
        parts = answer.events if stream else [answer.json]
        assert "".join(part["choices"][0]["text"] for part in parts if part["choices"]) in ("tea", "water")


@pytest.mark.parametrize(
    ("path", "request_fields"),
    [
        (CHAT, {"messages": HELLO, "max_tokens": 480}),
        (TEXT, {"prompt": "x", "max_tokens": 480}),
        (RESPONSES, {"input": "x", "max_output_tokens": 480}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_ambiguous_grammar_ends_its_own_request(
    bench: Bench, path: str, request_fields: dict[str, Any], stream: bool
) -> None:
    """The check walks fewer tokens than this grammar's 80, after which each one takes longer than the one before.

    In a stream of Chat Completions or Completions the last event says so.
    """
    grammar = f"root ::= {' '.join(['[a-b]'] * 80)} rest\n" + AMBIGUOUS.replace("root", "rest")
    body = {**request_fields, "temperature": 0, "logit_bias": {"64": 50}, "stream": stream, **guided(grammar=grammar)}
    if stream and path in (CHAT, TEXT):
        answer = await bench.ask(path, body)
        assert answer.status == 200
        assert answer.events[-1]["error"]["code"] == "unsatisfiable_constraint"
    else:
        status, code, message = await _outcome(bench, path, body)
        assert (status, code) == (400, "unsatisfiable_constraint"), message
    assert bench.unfinished() == 0


async def test_a_check_ends_when_its_client_leaves(bench: Bench) -> None:
    """The grammar's process is killed, and the next grammar is checked at once."""
    slow = {"messages": HELLO, "max_tokens": 8, **ATTACKS["rules that all name one another"]}
    judge = bench.engine._checker._judge
    assert judge is not None
    watched = psutil.Process(judge.process.pid)
    uncached = slow["structured_outputs"]["grammar"] + '\nunused ::= "z"'
    call = bench.begin(CHAT, {**slow, **guided(grammar=uncached)})
    first = asyncio.ensure_future(call.__anext__())
    while not watched.children():
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    await call.aclose()
    status, _, _ = await _outcome(bench, TEXT, {"prompt": "x", "max_tokens": 4, **guided(choice=["one", "two"])})
    assert status == 200
    assert not watched.children()
    assert bench.unfinished() == 0


async def test_a_request_without_a_grammar_does_not_wait_for_checks(bench: Bench) -> None:
    """Its first token comes while a grammar occupies the only turn of the check."""
    async with bench.engine._checker._turns.take(""):
        waiting = asyncio.create_task(
            _outcome(bench, TEXT, {"prompt": "x", "max_tokens": 2, **guided(regex="not yet seen")})
        )
        events = bench.begin(TEXT, {"prompt": "x", "max_tokens": 2, "stream": True})
        assert any([isinstance(event, Chunk) async for event in events])
        assert not waiting.done()
    assert (await waiting)[0] == 200


async def test_other_requests_complete_while_a_grammar_is_compiled(bench: Bench) -> None:
    """The compiling processes are suspended until the others are answered, as if compiling took very long."""
    free = {"prompt": "on and on", "max_tokens": 100, "temperature": 0, "ignore_eos": True, "stream": True}
    bound = {"prompt": "say", "max_tokens": 100, "temperature": 0, "stream": True, **guided(regex="([a-m]|[n-z ]){90}")}
    alone = [_text(await bench.ask(TEXT, body)) for body in (free, bound)]
    assert len(alone[1]) == 90
    assert bench.engine._checker._judge is not None
    judge = psutil.Process(bench.engine._checker._judge.process.pid)
    uncached = ATTACKS["rules that all name one another"]["structured_outputs"]["grammar"] + '\nunused ::= "y"'
    bomb = asyncio.create_task(_outcome(bench, TEXT, {"prompt": "x", "max_tokens": 4, **guided(grammar=uncached)}))
    while not (compiling := judge.children()):
        await asyncio.sleep(0)
    stopped = [judge, *compiling]
    for process in stopped:
        process.suspend()
    try:
        beside = await asyncio.gather(*(bench.ask(TEXT, body) for body in (free, bound)))
        assert not bomb.done()
    finally:
        for process in stopped:
            process.resume()
    assert [_text(answer) for answer in beside] == alone
    status, code, _ = await bomb
    assert status == 200 or code in NAMED | {"grammar_check_busy"}


async def test_a_check_takes_its_memory_outside_the_engines_processes(bench: Bench) -> None:
    """The engine's processes do not grow by the memory that a check may use."""
    before = bench.engine._host_bytes()
    body = {"messages": HELLO, "max_tokens": 8, **of_schema(properties(999, pattern="^[a-z]{3}[0-9]{2,90}x?[^a]*$"))}
    status, code, _ = await _outcome(bench, CHAT, body)
    assert status == 200 or code in NAMED
    assert bench.engine._host_bytes() - before < USUAL.compile_memory


@pytest.mark.parametrize("value", [[], ["a"], [{"choice": ["a"]}], "a", 5, True], ids=str)
async def test_structured_outputs_that_are_no_object_are_400(bench: Bench, value: object) -> None:
    status, _, _ = await _outcome(bench, CHAT, {"messages": HELLO, "max_tokens": 8, "structured_outputs": value})
    assert status == 400
