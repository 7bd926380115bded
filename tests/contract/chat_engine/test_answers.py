"""The chat engine on the real vLLM: progress, exact counts, names, aborts."""

import asyncio
import time
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from models.chat.answers.completions import NAMES
from models.chat.engine import ChatCall
from models.chat.vllm import core, handlers, launch
from models.chat.vllm.answers import pace
from models.messages import Chunk, Progress, ResponseStart, Usage
from registry.errors import BadRequest
from tests.contract.chat import fixtures as chat_fixtures
from tests.contract.chat import nasty as chat_nasty
from tests.contract.chat.nasty import CHAT, MESSAGES, RESPONSES, TEXT
from tests.contract.chat_engine.bench import Answer, Bench

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="package")]


async def test_progress_goes_up_to_ready(bench: Bench) -> None:
    fractions = [progress.fraction for progress in bench.progress]
    assert fractions == sorted(fractions)
    assert bench.progress[-1] == Progress(phase="ready", fraction=1.0)
    assert [p.phase for p in bench.progress] == ["importing", "starting", "weights", "warming", "ready"]


async def test_each_handler_of_answers_has_its_kind_of_parser(bench: Bench) -> None:
    """`handlers.patch_parsers` replaces these parsers."""
    for name, attribute in handlers.HANDLERS.items():
        assert hasattr(getattr(bench.engine._app.state, name), attribute)


async def test_engine_core_has_its_threads_and_watches_its_slot(bench: Bench) -> None:
    compute, python, _ = await launch.ask(bench.engine._engine, core.process_facts)
    assert compute == 1, "a tiny model computes in one thread"
    assert python >= 4, "vLLM's two socket threads, the watch and the main one"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": chat_nasty.HELLO, "max_tokens": 4}),
        (TEXT, {"prompt": "hi", "max_tokens": 4}),
        (RESPONSES, {"input": "hi", "max_output_tokens": 4}),
        (MESSAGES, {"messages": chat_nasty.HELLO, "max_tokens": 4}),
    ],
)
async def test_the_answer_has_the_clients_name(bench: Bench, path: str, body: dict[str, Any], stream: bool) -> None:
    ref = bench.adapters[0]
    await bench.hold(ref)
    answer = await bench.ask(path, {**body, "stream": stream}, ref)
    assert answer.status == 200
    assert b'"model":"my name"' in answer.data
    assert ref.digest.encode() not in answer.data
    assert answer.usage.completion_tokens == 4


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": chat_nasty.HELLO, "max_tokens": 2}),
        (RESPONSES, {"input": "hi", "max_output_tokens": 2}),
    ],
)
async def test_a_request_to_store_is_dropped_unless_the_recipe_is_strict(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    assert (await bench.ask(path, {**body, "store": True})).status == 200
    monkeypatch.setattr(bench.engine, "_strict", True)
    with pytest.raises(BadRequest, match="store"):
        await bench.ask(path, {**body, "store": True})


async def test_counts_and_tokens_of_a_text_agree(bench: Bench) -> None:
    count = await bench.ask(MESSAGES + "/count_tokens", {"messages": chat_nasty.HELLO})
    tokens = (await bench.ask("/tokenize", {"messages": chat_nasty.HELLO})).json["tokens"]
    assert count.json["input_tokens"] == len(tokens)
    assert "hi" in (await bench.ask("/detokenize", {"tokens": tokens})).json["prompt"]
    with pytest.raises(BadRequest, match="Token 999999 is not in this model's vocabulary") as refused:
        await bench.ask("/detokenize", {"tokens": [*tokens, 999_999]})
    assert refused.value.param == "tokens"


TOOL = {"type": "function", "name": "set_light", "parameters": {"type": "object", "properties": {"on": {}}}}
CALL = {"type": "function_call", "call_id": "c1", "name": "set_light", "arguments": "{}"}


@pytest.mark.parametrize(
    "body",
    [
        {"input": "hi"},
        {"input": [{"role": "user", "content": "hi"}], "instructions": "be brief", "reasoning": {"effort": "low"}},
        {"input": "hi", "tools": [TOOL], "tool_choice": "none"},
        {"input": [{"role": "user", "content": "hi"}, CALL, {**CALL, "type": "function_call_output", "output": "on"}]},
        {"input": "hi", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"enum": [17]}}}},
    ],
)
async def test_the_tokens_of_a_response_are_counted_without_one(bench: Bench, body: dict[str, Any]) -> None:
    answer = await bench.ask(RESPONSES, {**body, "max_output_tokens": 2})
    for more in ({}, {"stream": True, "max_output_tokens": 2}):
        count = await bench.ask(f"{RESPONSES}/input_tokens", {**body, **more})
        tokens = answer.json["usage"]["input_tokens"]
        assert (count.status, count.json) == (200, {"object": "response.input_tokens", "input_tokens": tokens})
        assert count.usage == Usage()


async def test_an_input_that_cannot_be_counted_is_refused_like_a_response(bench: Bench) -> None:
    for body in ({}, {"input": "x" * 5000}, {"input": [{"role": "wizard", "content": "x"}]}):
        count, answer = [await bench.ask(path, body) for path in (f"{RESPONSES}/input_tokens", RESPONSES)]
        assert (count.status, count.json) == (answer.status, answer.json)
        assert count.status == 400
    with pytest.raises(BadRequest, match="previous_response_id"):
        await bench.ask(f"{RESPONSES}/input_tokens", {"input": "hi", "previous_response_id": "resp_1"})


async def test_counts_equal_vllms_own(bench: Bench) -> None:
    for body in (
        {"prompt": "counts", "max_tokens": 7},
        {"prompt": ["one", "another one"], "max_tokens": 5, "n": 3, "temperature": 1.0},
        {"prompt": "x" * 300, "max_tokens": 3},
        {"prompt": "x" * 300, "max_tokens": 3},
        {"prompt": "with a stop", "max_tokens": 50, "stop": ["a", "e", "i"], "temperature": 1.0, "seed": 3},
    ):
        answer = await bench.ask(TEXT, {"ignore_eos": True, **body})
        reported = answer.json["usage"]
        assert answer.usage.prompt_tokens == reported["prompt_tokens"]
        assert answer.usage.completion_tokens == reported["completion_tokens"]
    assert (await bench.ask(TEXT, {"prompt": "x" * 300, "max_tokens": 1})).usage.cached_tokens >= 128


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": chat_nasty.HELLO}), (TEXT, {"prompt": "hi"})])
async def test_several_answers_at_temperature_0_are_equal(
    bench: Bench, path: str, body: dict[str, Any], stream: bool
) -> None:
    more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = await bench.ask(path, {**body, "n": 3, "temperature": 0, "max_tokens": 4, "ignore_eos": True, **more})
    texts: dict[int, str] = {}
    for event in answer.events if stream else [answer.json]:
        for choice in event["choices"]:
            message = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
            texts[choice["index"]] = texts.get(choice["index"], "") + (message.get("content") or "")
        reported = event.get("usage")
    assert sorted(texts) == [0, 1, 2]
    assert len(set(texts.values())) == 1
    assert reported["completion_tokens"] == answer.usage.completion_tokens == 3 * 4
    assert reported["prompt_tokens"] == answer.usage.prompt_tokens


async def test_the_item_in_which_a_response_was_cut_is_incomplete(bench: Bench) -> None:
    body = {"input": "hi", "max_output_tokens": 4, "temperature": 0}
    whole = (await bench.ask(RESPONSES, body)).json
    assert (whole["status"], [item["status"] for item in whole["output"]]) == ("incomplete", ["incomplete"])
    events = (await bench.ask(RESPONSES, {**body, "stream": True})).events
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    done, last = events[-2:]
    assert (done["type"], done["item"]["status"]) == ("response.output_item.done", "incomplete")
    assert (last["type"], last["response"]["output"]) == ("response.incomplete", [done["item"]])


async def test_usage_is_reported_only_on_request(bench: Bench) -> None:
    body = {"messages": chat_nasty.HELLO, "max_tokens": 3, "stream": True}
    plain = await bench.ask(CHAT, body)
    requested = await bench.ask(CHAT, {**body, "stream_options": {"include_usage": True}})
    assert all(not event.get("usage") for event in plain.events)
    assert requested.events[-1]["usage"]["completion_tokens"] == requested.usage.completion_tokens == 3


async def cut_short(bench: Bench, body: dict[str, Any]) -> ChatCall | None:
    """Cancel a call's task after some tokens and return the call, or None if it ended before the cancellation."""
    call = bench.begin(TEXT, body)
    begun = asyncio.Event()

    async def read() -> None:
        async for event in call:
            if isinstance(event, Chunk):
                begun.set()

    task = asyncio.create_task(read())
    if body["stream"]:
        await begun.wait()
    while call.usage.completion_tokens < 5:
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.wait([task])
    if task.cancelled():
        return call
    task.result()
    return None


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_cancelled_task_aborts_in_the_engine(bench: Bench, stream: bool, n: int) -> None:
    body = {"prompt": "on and on", "max_tokens": 500, "n": n, "stream": stream, "ignore_eos": True, "temperature": 1.0}
    while (call := await cut_short(bench, body)) is None:
        pass
    assert bench.registered() == []
    usage = call.usage
    assert usage.prompt_tokens == len("on and on")
    assert 5 <= usage.completion_tokens < 500 * n
    await bench.engine.ping()
    assert call.usage == usage, "nothing was computed after the abort"


async def test_a_stream_takes_the_logprobs_of_each_step_by_themselves(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a slot that is behind takes them in ever larger pieces, until its engine counts as hanging."""
    monkeypatch.setattr(pace, "TURN", 1)
    body = {"prompt": "x", "max_tokens": 200, "logprobs": 5, "stream": True, "ignore_eos": True}
    call, parts = bench.begin(TEXT, body), b""
    async for event in call:
        if isinstance(event, Chunk):
            if not parts:
                time.sleep(0.3)  # noqa: ASYNC251, like the serialisation of many logprobs
            parts += event.data
    sizes = [len(one["choices"][0]["logprobs"]["tokens"]) for one in Answer(200, parts, call.usage).events]
    assert (sum(sizes), max(sizes)) == (200, 1)


async def test_a_closed_call_is_aborted_in_the_engine(bench: Bench) -> None:
    call = bench.begin(TEXT, {"prompt": "x", "max_tokens": 500, "stream": True, "ignore_eos": True})
    await anext(call)
    await call.aclose()
    assert bench.unfinished() == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": chat_nasty.HELLO, "max_completion_tokens": 10**6}),
        (TEXT, {"prompt": "hi", "max_tokens": chat_fixtures.CONTEXT}),
        (RESPONSES, {"input": "hi", "max_output_tokens": 10**6}),
        (MESSAGES, {"messages": chat_nasty.HELLO, "max_tokens": 10**6}),
    ],
)
async def test_a_token_limit_beyond_the_context_is_cut(
    bench: Bench, path: str, body: dict[str, Any], stream: bool
) -> None:
    call = bench.begin(path, {**body, "temperature": 0, "stream": stream})
    started = await call.__anext__()
    assert isinstance(started, ResponseStart)
    assert started.status == 200
    assert "max_tokens was cut from" in started.warning
    await call.aclose()


async def test_a_token_limit_beyond_the_context_is_refused_for_a_strict_client(bench: Bench) -> None:
    call = bench.begin(CHAT, {"messages": chat_nasty.HELLO, "max_tokens": 10**6}, strict=True)
    started = await call.__anext__()
    assert isinstance(started, ResponseStart)
    assert started.status == 400
    await call.aclose()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": chat_nasty.HELLO}), (TEXT, {"prompt": "hi"})])
async def test_absent_fields_are_left_out(bench: Bench, path: str, body: dict[str, Any], stream: bool) -> None:
    answer = await bench.ask(path, {**body, "max_tokens": 4, "stream": stream})
    names: set[str] = set()
    for part in answer.events if stream else [answer.json]:
        kind = ChatCompletionChunk if stream and path == CHAT else ChatCompletion if path == CHAT else None
        if kind is not None:
            kind.model_validate(part)
        message = part["choices"][0].get("message") or part["choices"][0].get("delta") or {}
        for fields in (part, part.get("usage") or {}, message):
            names |= {name for name, value in fields.items() if value is None}
    assert not names & set(NAMES)
