"""Deviations of OpenAI-compatible servers, as clients of each dialect see them, with the SDKs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import PATIENCE
from tests.fakes import traces
from tests.fakes.provider import GATE, Play, Seen
from tests.unit.http.fakes import Wire
from tests.unit.providers.rig import Rig, rigged

Json = dict[str, Any]
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
HI: list[Any] = [{"role": "user", "content": "hi"}]
CHAT: Json = {"speaks": ["chat/completions"], "models": [{"name": "big"}]}
END = b"data: [DONE]\n\n"


def stated(chunk: Json) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "big"}
    return b"data: " + json.dumps(head | chunk).encode() + b"\n\n"


def piece(delta: Json, finish: str | None = None, **more: Any) -> bytes:
    return stated({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})


def whole(message: Json, finish: str = "stop", **more: Any) -> Json:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "big"}
    return {**head, "choices": [choice], "usage": USAGE, **more}


def plays(stream: list[bytes], answer: Json) -> Any:
    def script(seen: Seen) -> Play:
        if seen.body.get("stream"):
            return Play([*stream, END], content_type=traces.EVENTS)
        return Play([json.dumps(answer).encode()])

    return script


async def answers(rig: Rig) -> list[tuple[str, list[tuple[str, Json]]]]:
    """Return the text and calls that clients of Messages, Responses and Ollama get, without and with streaming."""
    found = []
    async with rig.anthropic() as claude, rig.openai() as gpt:
        message = await claude.messages.create(model="there/big", max_tokens=9, messages=HI)
        async with claude.messages.stream(model="there/big", max_tokens=9, messages=HI) as stream:
            for reported in (message, await stream.get_final_message()):
                calls = [block for block in reported.content if block.type == "tool_use"]
                assert len({block.id for block in calls}) == len(calls)
                words = "".join(block.text for block in reported.content if block.type == "text")
                found.append((words, [(block.name, dict(block.input)) for block in calls]))
        response = await gpt.responses.create(model="there/big", input="hi", store=False)
        async with gpt.responses.stream(model="there/big", input="hi", store=False) as responses:
            for whole_ in (response, await responses.get_final_response()):
                items = [item for item in whole_.output if item.type == "function_call"]
                assert whole_.id.startswith("resp_chatcmpl-")
                found.append((whole_.output_text, [(item.name, json.loads(item.arguments)) for item in items]))
    for is_stream in (False, True):
        lines = await rig.http.post("/api/chat", json={"model": "there/big", "messages": HI, "stream": is_stream})
        reported_ = [json.loads(line)["message"] for line in lines.text.splitlines()]
        functions = [call["function"] for one in reported_ for call in one.get("tool_calls", ())]
        calls_ = [(one["name"], one["arguments"]) for one in functions]
        found.append(("".join(one["content"] for one in reported_), calls_))
    return found


# --- calls -----------------------------------------------------------------------------------------------------------
def call(name: str, arguments: Any, **more: Any) -> Json:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


A, B = '{"a": 1}', '{"b": 2}'
CALLS: dict[str, list[list[Json]]] = {
    "no index": [[call("f", A, id="")], [call("g", B, id="")]],
    "no index, in one piece": [[call("f", A, id="x"), call("g", B, id="y")]],
    "no index, in pieces": [[call("f", A[:3], id="x")], [{"function": {"arguments": A[3:]}}], [call("g", B, id="y")]],
    "index as a string": [[call("f", A, id="x", index="0"), call("g", B, id="y", index="1")]],
    "all have index 0": [[call("f", A, id="x", index=0)], [call("g", B[:3], id="y", index=0)],
                          [{"index": 0, "function": {"arguments": B[3:]}}]],
    "repeated id": [[call("f", A[:3], id="x", index=0)], [call("f", A[3:], id="x", index=0)],
                     [call("g", B, id="y", index=1)]],
    "another id for each piece": [[call("f", A[:3], id="x", index=0)],
                                  [{"index": 0, "id": "z", "function": {"arguments": A[3:]}}],
                                  [call("g", B, id="y", index=1)]],
    "a number that is null": [[call("f", A, id="x", index=None), call("g", B, id="y", index=None)]],
    "interleaved": [[call("f", A[:3], id="x", index=0), call("g", B[:3], id="y", index=1)],
                 [{"index": 0, "function": {"arguments": A[3:]}}], [{"index": 1, "function": {"arguments": B[3:]}}]],
    "interleaved, and the second ends first": [
        [call("f", "", id="x", index=0)], [call("g", B, id="y", index=1)],
        [{"index": 0, "function": {"arguments": A[:3]}}], [{"index": 0, "function": {"arguments": A[3:]}}],
    ],
    "a name in the second piece": [
        [call("", "", id="x", index=0)], [{"index": 0, "function": {"name": "f", "arguments": A}}],
        [{"index": 1, "id": "y", "function": {}}], [{"index": 1, "function": {"arguments": B[:3]}}],
        [{"index": 1, "function": {"name": "g", "arguments": B[3:]}}],
    ],
    "blanks behind arguments": [[call("f", A, id="x", index=0)], [call("g", B, id="y", index=1)],
                                [{"index": 0, "function": {"arguments": " "}}]],
    "arguments that are no text": [[call("f", {"a": 1}, id="x", index=0)], [call("g", {"b": 2}, id="y", index=1)]],
}  # fmt: skip
"""Chunks of Gemini, older vLLMs and other servers."""


@pytest.mark.parametrize("name", CALLS)
async def test_calls_are_distinguished(tmp_path: Path, name: str) -> None:
    chunks = [piece({"tool_calls": pieces}) for pieces in CALLS[name]]
    arguments: list[Any] = [{"a": 1}, {"b": 2}] if name == "arguments that are no text" else [A, B]
    more = {"index": None} if name == "a number that is null" else {}  # as in complete calls of older SGLangs
    calls = [call("f", arguments[0], id="", **more), call("g", arguments[1], id="", **more)]
    answer = whole({"content": None, "tool_calls": calls})
    async with rigged(tmp_path, plays([*chunks, piece({}, "stop", usage=USAGE)], answer), **CHAT) as rig:
        assert await answers(rig) == [("", [("f", {"a": 1}), ("g", {"b": 2})])] * 6
        if name in ("arguments that are no text", "blanks behind arguments"):  # passed on unchanged
            return
        async with rig.openai() as client, client.chat.completions.stream(model="there/big", messages=HI) as stream:
            message = (await stream.get_final_completion()).choices[0].message
        called = [(one.function.name, one.function.arguments) for one in message.tool_calls or ()]
        assert called == [("f", A), ("g", B)] if name != "repeated id" else len(called) == 2


async def test_a_cut_call_is_no_failure_of_the_provider(tmp_path: Path) -> None:
    """It was a 502, and five of them opened the breaker for all clients."""
    answer = whole({"content": "Hm", "tool_calls": [call("f", A), call("g", B[:3])]}, "length")
    async with rigged(tmp_path, plays([], answer), **CHAT) as rig, rig.anthropic() as client:
        message = await client.messages.create(model="there/big", max_tokens=9, messages=HI)
        assert [block.type for block in message.content] == ["text", "tool_use"]
        assert message.stop_reason == "max_tokens"


# --- text ------------------------------------------------------------------------------------------------------------
THINKS: Json = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
FIRST = {"id": "", "model": "", "object": "", "choices": [], "prompt_filter_results": [], "usage": None}
NULLS = dict.fromkeys(USAGE)
WORDS: dict[str, tuple[list[bytes], Json]] = {
    "Azure": (
        [
            stated(FIRST),
            piece({"content": "Hello"}),
            piece({}, "stop", usage=None),
            stated({"choices": [], "usage": USAGE}),
        ],
        whole({"content": "Hello"}, prompt_filter_results=[]),
    ),
    "Mistral": (
        [piece({"content": [THINKS]}), piece({"content": "Hello"}), piece({}, "stop", usage=USAGE)],
        whole({"content": [THINKS, {"type": "text", "text": "Hello"}]}),
    ),
    "no id, no counts": (
        [piece({"content": "Hello"}, id=None), piece({}, "stop", id=None, usage=NULLS)],
        whole({"content": "Hello"}, id=None, usage=NULLS),
    ),
    "counts without choices": (
        [piece({"content": "Hello"}), piece({}, "stop"), stated({"choices": None, "usage": USAGE})],
        whole({"content": "Hello"}),
    ),
    "a refusal": ([piece({"refusal": "Hello"}), piece({}, "stop")], whole({"content": None, "refusal": "Hello"})),
}


@pytest.mark.parametrize("name", WORDS)
async def test_text_arrives_in_each_dialect(tmp_path: Path, name: str) -> None:
    async with rigged(tmp_path, plays(*WORDS[name]), **CHAT) as rig:
        words = "" if name == "a refusal" else "Hello"  # Responses have a refusal item instead
        assert [reported for reported, _ in await answers(rig)] == ["Hello", "Hello", words, words, "Hello", "Hello"]


async def test_a_first_chunk_without_choices_is_passed_on(tmp_path: Path) -> None:
    """It has the results of Azure's filters for the prompt. Because its usage is null, it was taken for the last."""
    async with rigged(tmp_path, plays(*WORDS["Azure"]), **CHAT) as rig, rig.openai() as client:
        chunks = [
            one async for one in await client.chat.completions.create(model="there/big", messages=HI, stream=True)
        ]
        assert [len(one.choices) for one in chunks] == [0, 1, 1]
        assert chunks[0].model_extra == {"prompt_filter_results": []}


async def test_thoughts_are_counted(tmp_path: Path) -> None:
    """xAI and Gemini count them only in the total, so they were not charged."""
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 30}
    script = plays([piece({"content": "x"}), piece({}, "stop", usage=usage)], whole({"content": "x"}, usage=usage))
    async with rigged(tmp_path, script, **CHAT) as rig, rig.anthropic() as client:
        message = await client.messages.create(model="there/big", max_tokens=9, messages=HI)
        async with client.messages.stream(model="there/big", max_tokens=9, messages=HI) as stream:
            final = await stream.get_final_message()
        assert (message.usage.output_tokens, final.usage.output_tokens) == (23, 23)
        assert (
            await rig.http.post("/api/chat", json={"model": "there/big", **REQUESTED["/api/chat"]})
        ).status_code == 200
        assert [record.usage.completion_tokens for record in rig.gateway.records.all] == [23, 23, 23]


async def test_calls_without_ids_get_unique_ids(tmp_path: Path) -> None:
    """All answers of a conversation had `toolu_0`, which Anthropic refuses and clients treat as one call."""
    calls = {"content": None, "tool_calls": [call("f", A)]}
    script = plays([piece({"tool_calls": [call("f", A)]}), piece({}, "stop")], whole(calls))
    async with rigged(tmp_path, script, **CHAT) as rig, rig.anthropic() as client:
        found = set()
        for _ in range(2):
            message = await client.messages.create(model="there/big", max_tokens=9, messages=HI)
            async with client.messages.stream(model="there/big", max_tokens=9, messages=HI) as stream:
                for reported in (message, await stream.get_final_message()):
                    found |= {block.id for block in reported.content if block.type == "tool_use"}
        assert len(found) == 4


CACHED: dict[str, Json] = {
    "Kimi": {**USAGE, "cached_tokens": 4},
    "DeepSeek": {**USAGE, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 3},
}


@pytest.mark.parametrize("name", CACHED)
@pytest.mark.parametrize("in_choice", [False, True])
async def test_cached_tokens_of_other_servers_are_counted(tmp_path: Path, name: str, in_choice: bool) -> None:
    """They were charged at the full price. With `in_choice` the usage is in the choice, as in Kimi's streams."""
    usage = CACHED[name]
    end = piece({}, "stop", usage=usage)
    if in_choice:
        end = stated({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": usage}]})
    script = plays([piece({"content": "x"}), end], whole({"content": "x"}, usage=usage))
    async with rigged(tmp_path, script, **CHAT) as rig:
        for path in ("/v1/messages", "/v1/chat/completions"):
            for stream in (False, True):
                requested = {"model": "there/big", "max_tokens": 9, "messages": HI, "stream": stream}
                found = await rig.http.post(path, json=requested)
                assert path != "/v1/messages" or '"cache_read_input_tokens":4' in found.text
        reported = [(one.usage.prompt_tokens, one.usage.cached_tokens) for one in rig.gateway.records.all]
        assert reported == [(7, 4)] * 4


async def test_audio_is_passed_on_from_its_first_piece(tmp_path: Path) -> None:
    """It was delayed until all of it had arrived."""
    play = Play([piece({"audio": {"data": "AA"}}), GATE, piece({}, "stop"), END], content_type=traces.EVENTS)
    body = json.dumps({"model": "there/big", "messages": HI, "stream": True}).encode()
    async with rigged(tmp_path, lambda seen: play, **CHAT) as rig:
        wire = Wire(rig.app, "/v1/chat/completions", [body], {"content-type": "application/json"})
        task = asyncio.create_task(wire.run())
        async with asyncio.timeout(PATIENCE):
            await wire.first.wait()
        rig.fake.gate.set()
        await task


async def test_half_a_character_does_not_end_a_stream(tmp_path: Path) -> None:
    """The rest of the answer after a split emoji was lost."""
    halves = [
        piece({"content": half}).replace(b"HALF", code)
        for half, code in (("a HALF", b"\\ud83d"), ("HALF b", b"\\ude00"))
    ]
    kept = piece({"content": "c HALF"}, "stop").replace(b"HALF", b"\\ud83d\\ude00")
    async with rigged(tmp_path, plays([*halves, kept], {}), **CHAT) as rig, rig.openai() as client:
        stream = await client.chat.completions.create(model="there/big", messages=HI, stream=True)
        words = [one.choices[0].delta.content async for one in stream]
        assert words == ["a \ufffd", "\ufffd b", "c \U0001f600"]


async def test_half_a_characters_bytes_do_not_end_an_answer(tmp_path: Path) -> None:
    """Streams ended with an error, and translated answers were lost."""
    halves = [piece({"content": half}) for half in ("a HALF", "HALF b")]
    raw = [half.replace(b"HALF", code) for half, code in zip(halves, (b"\xf0\x9f", b"\x98\x80"), strict=True)]
    answer = json.dumps(whole({"content": "a HALF b"})).encode().replace(b"HALF", b"\xf0\x9f")

    def script(seen: Seen) -> Play:
        events = [*raw, piece({"content": "c"}, "stop", usage=USAGE)]
        return Play(events, content_type=traces.EVENTS) if seen.body.get("stream") else Play([answer])

    async with rigged(tmp_path, script, **CHAT) as rig:
        found = [words.replace("\ufffd", "?") for words, _ in await answers(rig)]
        assert found == ["a ? b", "a ??? bc"] * 3
        assert "c" in (await rig.chat(stream=True)).text
        assert (await rig.chat()).json()["choices"][0]["message"]["content"] == "a \ufffd b"


COUNTED: dict[str, Json] = {
    "fractions": {name: float(value) for name, value in USAGE.items()},
    "texts": {name: str(value) for name, value in USAGE.items()},
}


@pytest.mark.parametrize("name", COUNTED)
async def test_numbers_of_tokens_in_another_form_are_read(tmp_path: Path, name: str) -> None:
    """Translated answers were lost, and others were charged by an estimate."""
    usage = COUNTED[name]
    answer = whole({"content": "Hello"}, usage=usage)
    script = plays([piece({"content": "Hello"}), piece({}, "stop", usage=usage)], answer)
    async with rigged(tmp_path, script, **CHAT) as rig:
        assert [words for words, _ in await answers(rig)] == ["Hello"] * 6
        await rig.chat(stream=True)
        reported = {(one.usage.prompt_tokens, one.usage.completion_tokens) for one in rig.gateway.records.all}
        assert reported == {(USAGE["prompt_tokens"], USAGE["completion_tokens"])}


async def test_an_event_without_data_is_left_out(tmp_path: Path) -> None:
    """OpenAI's SDK would parse it as JSON. Comments, which keep the connection alive, are passed on."""
    events = [b"retry: 9\n\n", b": wait\nevent: ping\n\n", piece({"content": "x"}), b"data: \n\n", piece({}, "stop")]
    async with rigged(tmp_path, plays(events, {}), **CHAT) as rig, rig.openai() as client:
        stream = await client.chat.completions.create(model="there/big", messages=HI, stream=True)
        assert [one.choices[0].delta.content async for one in stream] == ["x", None]
        assert (await rig.chat(stream=True)).text.startswith(": wait\n\ndata: {")


# --- ends ------------------------------------------------------------------------------------------------------------
REQUESTED: dict[str, Json] = {
    "/v1/messages": {"max_tokens": 9, "messages": HI},
    "/v1/responses": {"input": "hi", "store": False},
    "/api/chat": {"messages": HI},
}


@pytest.mark.parametrize("reason", ["error", "abort", "insufficient_system_resource", "network_error"])
@pytest.mark.parametrize("path", REQUESTED)
async def test_an_aborted_answer_is_an_error(tmp_path: Path, path: str, reason: str) -> None:
    script = plays([piece({"content": "Hel"}), piece({}, reason)], whole({"content": "Hel"}, reason))
    async with rigged(tmp_path, script, **CHAT) as rig:
        requested = {"model": "there/big", **REQUESTED[path], "stream": False}
        found = await rig.http.post(path, json=requested)
        assert found.status_code in (500, 502)
        assert reason in found.text
        found = await rig.http.post(path, json={**requested, "stream": True})
        last = found.text.strip().splitlines()[-1]
        assert "error" in last
        assert reason in last


@pytest.mark.parametrize(
    ("path", "reported"), [*zip(REQUESTED, ["max_tokens", "max_output_tokens", "length"], strict=True)]
)
async def test_mistrals_finish_reason_for_a_full_context_is_translated(
    tmp_path: Path, path: str, reported: str
) -> None:
    script = plays([piece({"content": "Hel"}), piece({}, "model_length")], whole({"content": "Hel"}, "model_length"))
    async with rigged(tmp_path, script, **CHAT) as rig:
        for stream in (False, True):
            found = await rig.http.post(path, json={"model": "there/big", **REQUESTED[path], "stream": stream})
            assert f'"{reported}"' in found.text


@pytest.mark.parametrize("reason", ["content_filter: RECITATION", "sensitive"])
@pytest.mark.parametrize(("path", "reported"), [("/v1/messages", "refusal"), ("/v1/responses", "content_filter")])
async def test_geminis_and_zhipus_finish_reasons_for_a_filter_are_translated(
    tmp_path: Path, path: str, reported: str, reason: str
) -> None:
    """A filtered answer was reported as one that had ended by itself."""
    script = plays([piece({"content": "Hel"}), piece({}, reason)], whole({"content": "Hel"}, reason))
    async with rigged(tmp_path, script, **CHAT) as rig:
        for stream in (False, True):
            found = await rig.http.post(path, json={"model": "there/big", **REQUESTED[path], "stream": stream})
            assert f'"{reported}"' in found.text


@pytest.mark.parametrize("end", [b"data: [DONE]\n", b"data: [DONE]", piece({}, "stop").strip()])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_an_end_without_an_empty_line_is_complete(tmp_path: Path, path: str, end: bytes) -> None:
    """An error followed the complete answer."""
    words = [piece({"content": "Hello"}), *([piece({}, "stop")] if b"DONE" in end else [])]
    play = Play([*words, end], content_type=traces.EVENTS)
    async with rigged(tmp_path, lambda seen: play, **CHAT) as rig:
        requested = {"model": "there/big", "max_tokens": 9, "messages": HI, "stream": True}
        found = await rig.http.post(path, json=requested)
        assert "Hello" in found.text
        assert "error" not in found.text


@pytest.mark.parametrize(("status", "kind"), [(201, "application/json"), (200, "Application/JSON; Charset=UTF-8")])
async def test_other_successful_statuses_and_content_types_are_accepted(tmp_path: Path, status: int, kind: str) -> None:
    answer, stream = json.dumps(whole({"content": "Hello"})).encode(), [piece({"content": "Hello"}, "stop"), END]
    events = kind.replace("Application/JSON", "Text/Event-Stream").replace("application/json", traces.EVENTS)

    def script(seen: Seen) -> Play:
        if seen.body.get("stream"):
            return Play(list(stream), status, events)
        return Play([answer], status, kind)

    async with rigged(tmp_path, script, **CHAT) as rig:
        for is_stream in (False, True):
            found = await rig.chat(stream=is_stream)
            assert found.status_code == 200, found.text
            assert "Hello" in found.text
