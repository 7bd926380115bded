"""Responses at a provider that has only messages or chat completions, checked with the SDK and its types."""

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent

from tests.fakes import traces
from tests.fakes.provider import Play, Seen
from tests.system.vendor.strict import faults
from tests.unit.providers.rig import Rig, rigged
from tests.unit.providers.test_other_dialect import PIXEL, chat, counted, messages

PARAMETERS = {"type": "object", "properties": {}}
TOOL = {"type": "function", "name": "weather", "description": "of a city", "parameters": PARAMETERS, "strict": None}
THERE: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "messages": (messages, "anthropic", {}),
    "chat": (chat, "openai", {"speaks": ["chat/completions", "embeddings", "rerank", "audio/transcriptions"]}),
}
there = pytest.mark.parametrize("there", THERE)
REQUESTED: dict[str, Any] = {
    "model": "there/big",
    "instructions": "be short",
    "max_output_tokens": 9,
    "input": [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "what is this?"},
                {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"},
            ],
        }
    ],
}


async def events_of(rig: Rig, body: dict[str, Any]) -> list[dict[str, Any]]:
    found = await rig.http.post("/v1/responses", json={**body, "stream": True})
    assert found.status_code == 200, found.text
    return [json.loads(line[6:]) for line in found.text.splitlines() if line.startswith("data: ")]


@there
async def test_an_answer_and_a_stream_are_translated(tmp_path: Path, there: str) -> None:
    script, protocol, more = THERE[there]
    async with rigged(tmp_path, script, protocol, **more) as rig, rig.openai() as client:
        found = await client.responses.create(**REQUESTED)
        assert (found.output_text, found.model, found.status) == ("hello there", "there/big", "completed")
        assert found.usage
        reported = (found.usage.input_tokens, found.usage.output_tokens, found.usage.input_tokens_details.cached_tokens)
        assert reported == (12, 5, 4)
        async with client.responses.stream(**REQUESTED) as stream:
            stated = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
        assert stated == ["hello", " there"]
        assert (final.output_text, final.usage) == (found.output_text, found.usage)
        assert counted(rig) == {(12, 5, 4)}
        assert (found.instructions, found.max_output_tokens) == ("be short", 9)


@there
async def test_each_answer_and_event_is_of_openais_type(tmp_path: Path, there: str) -> None:
    script, protocol, more = THERE[there]
    async with rigged(tmp_path, script, protocol, **more) as rig:
        for requested in (REQUESTED, {**REQUESTED, "tools": [TOOL]}):
            whole = (await rig.http.post("/v1/responses", json=requested)).json()
            assert faults(Response, whole) == []
            events = await events_of(rig, requested)
            assert [faults(ResponseStreamEvent, event) for event in events] == [[]] * len(events)
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert [event["type"] for event in events][:2] == ["response.created", "response.in_progress"]
            assert events[-1]["type"] == "response.completed"


@there
async def test_tools_and_their_results_are_translated(tmp_path: Path, there: str) -> None:
    script, protocol, more = THERE[there]
    call = {"type": "function_call", "call_id": "toolu_0", "name": "weather", "arguments": '{"city": "Oslo"}'}
    requested: Any = {
        "model": "there/big",
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "weather"},
        "input": [
            {"role": "user", "content": "weather?"},
            {"type": "reasoning", "id": "r", "summary": []},
            {"role": "assistant", "content": [{"type": "output_text", "text": "let me see"}]},
            call,
            {"type": "function_call_output", "call_id": "toolu_0", "output": "rain"},
            {"role": "user", "content": "and in Rome?"},
        ],
    }
    async with rigged(tmp_path, script, protocol, **more) as rig, rig.openai() as client:
        found = await client.responses.create(**requested)
        async with client.responses.stream(**requested) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_response()
        answers: list[Any] = [found, final]
        for answer in answers:
            (made,) = answer.output
            assert made.type == "function_call"
            assert (made.name, json.loads(made.arguments), made.status) == ("weather", {"city": "Rome"}, "completed")
            assert made.call_id in ("toolu_1", "call_1")
        body = rig.fake.seen[0].body
        if there == "messages":
            assert body["tool_choice"] == {"type": "tool", "name": "weather"}
            assert body["messages"][1]["content"] == [
                {"type": "text", "text": "let me see"},
                {"type": "tool_use", "id": "toolu_0", "name": "weather", "input": {"city": "Oslo"}},
            ]
            assert body["messages"][2]["content"][0]["type"] == "tool_result"
        else:
            assert body["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
            assert body["tools"][0]["function"]["parameters"] == PARAMETERS
            assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool", "user"]
            assert body["messages"][1]["tool_calls"][0]["id"] == "toolu_0"


@there
async def test_a_call_without_arguments_has_an_empty_object(tmp_path: Path, there: str) -> None:
    _, protocol, more = THERE[there]

    def script(seen: Seen) -> Play:
        whole, stream = (
            (traces.message, traces.message_stream) if there == "messages" else (traces.chat, traces.chat_stream)
        )
        return (stream if seen.body.get("stream") else whole)("big", tool=True, arguments="")

    requested: Any = {"model": "there/big", "tools": [TOOL], "input": "weather?"}
    async with rigged(tmp_path, script, protocol, **more) as rig, rig.openai() as client:
        found = await client.responses.create(**requested)
        async with client.responses.stream(**requested) as stream:
            stated = [event.delta async for event in stream if event.type == "response.function_call_arguments.delta"]
            final = await stream.get_final_response()
    answers: list[Any] = [found, final]
    assert [answer.output[0].arguments for answer in answers] == ["{}", "{}"]
    assert "".join(stated) == "{}"


async def test_thoughts_and_a_cut_answer_are_translated(tmp_path: Path) -> None:
    def script(seen: Seen) -> Play:
        thinks = {"type": "thinking", "thinking": "hm", "signature": "s"}
        stated = {"type": "text", "text": "so"}
        body = {"id": "msg_1", "type": "message", "role": "assistant", "model": "big", "content": [thinks, stated],
                "stop_reason": "max_tokens", "stop_sequence": None, "usage": traces.MESSAGE_USAGE}  # fmt: skip
        return Play([json.dumps(body).encode()])

    async with rigged(tmp_path, script, "anthropic") as rig, rig.openai() as client:
        found = await client.responses.create(model="there/big", input="hi", reasoning={"effort": "low"})
    assert [item.type for item in found.output] == ["reasoning", "message"]
    assert found.status == "incomplete"
    assert found.incomplete_details
    assert found.incomplete_details.reason == "max_output_tokens"
    assert rig.fake.seen[0].body["output_config"] == {"effort": "low"}
    assert faults(Response, found.model_dump(mode="json", exclude_unset=True)) == []


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "store": ({"store": True}, "store"),
    "an earlier answer": ({"previous_response_id": "resp_1"}, "previous_response_id"),
    "a provider's tool": ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    "a reference to a stored item": ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    "a later system message": (
        {"input": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}, "input[1]",
    ),
    "a high temperature": ({"temperature": 1.5}, "temperature"),
    "any JSON": ({"text": {"format": {"type": "json_object"}}}, "text.format"),
    "minimal effort": ({"reasoning": {"effort": "minimal"}}, "reasoning.effort"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
async def test_refusals_name_the_field_that_cannot_be_translated(tmp_path: Path, name: str) -> None:
    more, param = REFUSED[name]
    async with rigged(tmp_path, messages, "anthropic") as rig:
        found = await rig.http.post("/v1/responses", json={"model": "there/big", "input": "hi", **more})
        error = found.json()["error"]
        assert (found.status_code, error["param"]) == (400, param)
        assert f"'{param}'" in error["message"]
        assert rig.fake.seen == []


async def test_an_endpoint_without_a_translation_is_refused(tmp_path: Path) -> None:
    async with rigged(tmp_path, messages, "anthropic") as rig:
        found = await rig.http.post("/v1/completions", json={"model": "there/big", "prompt": "once"})
        assert (found.status_code, found.json()["error"]["code"]) == (400, "unsupported_endpoint")
        assert "/v1/responses" in found.json()["error"]["message"]


async def test_tokens_are_counted_by_the_provider(tmp_path: Path) -> None:
    def script(seen: Seen) -> Play:
        return Play([b'{"input_tokens": 7}'])

    async with rigged(tmp_path, script, "anthropic") as rig, rig.anthropic() as client:
        requested: Any = [{"role": "user", "content": "hi"}]
        found = await client.messages.count_tokens(model="there/big", messages=requested)
        assert found.input_tokens == 7
        (seen,) = rig.fake.seen
        assert (seen.path, seen.body) == ("/v1/messages/count_tokens", {"model": "big", "messages": requested})
