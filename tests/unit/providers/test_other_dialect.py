"""The official SDKs against a provider of the other protocol: chat, streams, tools, images and usage."""

import json
from pathlib import Path
from typing import Any, cast

import anthropic
import pytest

from models import sse
from tests.fakes import traces
from tests.fakes.provider import Play, Seen
from tests.unit.providers.rig import Rig, rigged

PIXEL = "iVBORw0KGgo="
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "of a city", "parameters": {"type": "object", "properties": {}}},
}
CLAUDE_TOOL = {"name": "weather", "description": "of a city", "input_schema": {"type": "object", "properties": {}}}


def messages(seen: Seen) -> Play:
    tool = bool(seen.body.get("tools"))
    return traces.message_stream("big", tool) if seen.body.get("stream") else traces.message("big", tool=tool)


def chat(seen: Seen) -> Play:
    tool = bool(seen.body.get("tools"))
    return traces.chat_stream("big", tool) if seen.body.get("stream") else traces.chat("big", tool=tool)


def counted(rig: Rig) -> set[tuple[int, int, int]]:
    usages = [record.usage for record in rig.gateway.records.all]
    return {(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) for usage in usages}


async def test_a_stream_that_only_ends_is_an_error(tmp_path: Path) -> None:
    play = Play([b"data: [DONE]\n\n"], content_type=traces.EVENTS)
    requested = {"model": "there/big", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with rigged(tmp_path, lambda seen: play) as rig:
        found = await rig.http.post("/v1/messages", json=requested)
        assert (found.status_code, found.json()["error"]["type"]) == (502, "api_error")


# --- OpenAI's SDK, Anthropic's provider ------------------------------------------------------------------------------
async def test_openais_client_works_with_anthropics_provider(tmp_path: Path) -> None:
    requested: Any = {
        "model": "there/big",
        "max_completion_tokens": 9,
        "stop": "END",
        "user": "u",
        "messages": [
            {"role": "system", "content": "be short"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what is this?"},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
                    {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
                ],
            },
        ],
    }
    async with rigged(tmp_path, messages, "anthropic") as rig, rig.openai() as client:
        found = await client.chat.completions.create(**requested)
        assert found.choices[0].message.content == "hello there"
        assert (found.model, found.choices[0].finish_reason) == ("there/big", "stop")
        assert found.usage
        assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (12, 5, 17)
        assert found.usage.prompt_tokens_details
        assert found.usage.prompt_tokens_details.cached_tokens == 4
        stream = await client.chat.completions.create(**requested, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "hello there"
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
        assert chunks[-1].usage
        assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (12, 5)
        assert counted(rig) == {(12, 5, 4)}
        sent = rig.fake.seen[0]
        assert sent.path == "/v1/messages"
        assert sent.body == {
            "model": "big",
            "max_tokens": 9,
            "system": [{"type": "text", "text": "be short"}],
            "stop_sequences": ["END"],
            "metadata": {"user_id": "u"},
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "what is this?"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
                        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
                    ],
                }
            ],
        }


async def test_openais_tools_work_with_anthropics_provider(tmp_path: Path) -> None:
    call = {"id": "toolu_0", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    requested: Any = {
        "model": "there/big",
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "messages": [
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "toolu_0", "content": "rain"},
            {"role": "user", "content": "and in Rome?"},
        ],
    }
    async with rigged(tmp_path, messages, "anthropic") as rig, rig.openai() as client:
        found = await client.chat.completions.create(**requested)
        (made,) = found.choices[0].message.tool_calls or ()
        assert made.type == "function"
        assert (made.id, made.function.name) == ("toolu_1", "weather")
        assert json.loads(made.function.arguments) == {"city": "Rome"}
        assert found.choices[0].finish_reason == "tool_calls"
        async with client.chat.completions.stream(**requested) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_completion()
        (streamed,) = final.choices[0].message.tool_calls or ()
        assert (streamed.function.name, json.loads(streamed.function.arguments)) == ("weather", {"city": "Rome"})
        body = rig.fake.seen[0].body
        assert body["tools"] == [CLAUDE_TOOL]
        assert body["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
        assert body["messages"][1]["content"] == [
            {"type": "tool_use", "id": "toolu_0", "name": "weather", "input": {"city": "Oslo"}}
        ]
        result = {"type": "tool_result", "tool_use_id": "toolu_0", "content": [{"type": "text", "text": "rain"}]}
        assert body["messages"][2] == {"role": "user", "content": [result, {"type": "text", "text": "and in Rome?"}]}


async def test_a_call_without_arguments_has_an_empty_object(tmp_path: Path) -> None:
    def script(seen: Seen) -> Play:
        made = traces.message_stream if seen.body.get("stream") else traces.message
        return made("big", tool=True, arguments="")

    requested: Any = {"model": "there/big", "tools": [TOOL], "messages": [{"role": "user", "content": "weather?"}]}
    async with rigged(tmp_path, script, "anthropic") as rig, rig.openai() as client:
        found = await client.chat.completions.create(**requested)
        async with client.chat.completions.stream(**requested) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_completion()
    answers: list[Any] = [found, final]
    assert [answer.choices[0].message.tool_calls[0].function.arguments for answer in answers] == ["{}", "{}"]


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_written_into_a_cache_have_their_own_price(tmp_path: Path, stream: bool) -> None:
    usage = {"input_tokens": 8, "output_tokens": 5, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 4}
    events = traces.message_events("big")
    began = json.loads(sse.data_of(events[0]))
    began["message"]["usage"] = usage

    def script(seen: Seen) -> Play:
        if seen.body.get("stream"):
            return Play([sse.event(began), *events[1:]], content_type=traces.EVENTS)
        (data,) = cast(list[bytes], traces.message("big").parts)
        return Play([json.dumps({**json.loads(data), "usage": usage}).encode()])

    price = {"input": 4, "cached_input": 1, "written_input": 5, "output": 6}
    requested: Any = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    async with rigged(tmp_path, script, "anthropic", models=[{"name": "big", "price": price}]) as rig:
        found = await rig.chat(**requested)
        reported = json.loads(found.text.split("data: ")[-2]) if stream else found.json()
        (record,) = rig.gateway.records.all
    assert reported["usage"]["prompt_tokens"] == 112
    assert reported["usage"]["prompt_tokens_details"] == {"cached_tokens": 4, "cache_write_tokens": 100}
    assert record.cost == 8 * 4 + 4 * 1 + 100 * 5 + 5 * 6


# --- Anthropic's SDK, OpenAI's provider ------------------------------------------------------------------------------
async def test_anthropics_client_works_with_openais_provider(tmp_path: Path) -> None:
    requested: Any = {
        "model": "there/big",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "be short", "cache_control": {"type": "ephemeral"}}],
        "stop_sequences": ["END"],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
                    {"type": "text", "text": "what is this?"},
                ],
            },
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                                              {"type": "text", "text": "a pixel"}]},
            {"role": "user", "content": "sure?"},
        ],
    }  # fmt: skip
    async with rigged(tmp_path, chat) as rig, rig.anthropic() as client:
        found = await client.messages.create(**requested)
        assert (found.model, found.stop_reason, found.type) == ("there/big", "end_turn", "message")
        assert [block.text for block in found.content if block.type == "text"] == ["hello there"]
        usage = found.usage
        assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (8, 4, 5)
        async with client.messages.stream(**requested) as stream:
            stated = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
        assert stated == ["hello", " there"]
        assert (final.stop_reason, final.usage.input_tokens, final.usage.output_tokens) == ("end_turn", 8, 5)
        assert counted(rig) == {(12, 5, 4)}
        sent = rig.fake.seen[0]
        assert sent.path == "/v1/chat/completions"
        assert sent.body == {
            "model": "big",
            "max_completion_tokens": 9,
            "stop": ["END"],
            "messages": [
                {"role": "system", "content": "be short"},
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
                        {"type": "text", "text": "what is this?"},
                    ],
                },
                {"role": "assistant", "content": "a pixel"},
                {"role": "user", "content": "sure?"},
            ],
        }


async def test_anthropics_tools_work_with_openais_provider(tmp_path: Path) -> None:
    use = {"type": "tool_use", "id": "call_0", "name": "weather", "input": {"city": "Oslo"}}
    result = {"type": "tool_result", "tool_use_id": "call_0", "content": "no station", "is_error": True}
    requested: Any = {
        "model": "there/big",
        "max_tokens": 9,
        "tools": [CLAUDE_TOOL],
        "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        "messages": [
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result, {"type": "text", "text": "and in Rome?"}]},
        ],
    }
    async with rigged(tmp_path, chat) as rig, rig.anthropic() as client:
        found = await client.messages.create(**requested)
        (made,) = found.content
        assert made.type == "tool_use"
        assert (made.id, made.name, made.input, found.stop_reason) == (
            "call_1",
            "weather",
            {"city": "Rome"},
            "tool_use",
        )
        async with client.messages.stream(**requested) as stream:
            final = await stream.get_final_message()
        (streamed,) = final.content
        assert streamed.type == "tool_use"
        assert (streamed.name, streamed.input, final.stop_reason) == ("weather", {"city": "Rome"}, "tool_use")
        body = rig.fake.seen[0].body
        assert body["tools"] == [TOOL]
        assert body["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
        assert body["parallel_tool_calls"] is False
        assert body["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"city":"Oslo"}'
        assert body["messages"][2:] == [
            {"role": "tool", "tool_call_id": "call_0", "content": "Error: no station"},
            {"role": "user", "content": "and in Rome?"},
        ]


async def test_a_forced_call_with_finish_reason_stop_is_a_tool_use(tmp_path: Path) -> None:
    def script(seen: Seen) -> Play:
        made = traces.chat_stream if seen.body.get("stream") else traces.chat
        return made("big", tool=True, finish="stop")

    requested: Any = {
        "model": "there/big",
        "max_tokens": 9,
        "tools": [CLAUDE_TOOL],
        "tool_choice": {"type": "tool", "name": "weather"},
        "messages": [{"role": "user", "content": "weather?"}],
    }
    async with rigged(tmp_path, script) as rig, rig.anthropic() as client:
        found = await client.messages.create(**requested)
        async with client.messages.stream(**requested) as stream:
            final = await stream.get_final_message()
    assert [(answer.content[0].type, answer.stop_reason) for answer in (found, final)] == [("tool_use", "tool_use")] * 2


# --- fields without a counterpart ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"seed": 1}, "seed"),
        ({"temperature": 1.5}, "temperature"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
         "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}, "messages[1].role"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}]},
         "messages[0].tool_calls[0].function.arguments"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type"),
        ({"messages": "hello"}, "messages"),
    ],
)  # fmt: skip
async def test_fields_that_messages_lack_are_refused(tmp_path: Path, more: dict[str, Any], param: str) -> None:
    async with rigged(tmp_path, messages, "anthropic") as rig:
        found = await rig.chat(**more)
        assert (found.status_code, found.json()["error"]["param"]) == (400, param)
        assert not rig.fake.seen


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"container": "c"}, "container"),
        ({"messages": [{"role": "user", "content": [{"type": "search_result"}]}]}, "messages[0].content[0].type"),
    ],
)
async def test_fields_that_chat_completions_lack_are_refused(tmp_path: Path, more: dict[str, Any], field: str) -> None:
    async with rigged(tmp_path, chat) as rig:
        requested = {"model": "there/big", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **more}
        found = await rig.http.post("/v1/messages", json=requested)
        assert found.status_code == 400
        assert found.json()["error"]["message"].startswith(f"'{field}' cannot be carried")
        assert not rig.fake.seen


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/api/chat", {"options": {"repeat_penalty": 1.1}}, "options.repeat_penalty"),
    ("/api/chat", {"format": "json"}, "format"),
    ("/v2/chat", {"k": 3}, "k"),
]


@pytest.mark.parametrize(("path", "more", "name"), REFUSED)
async def test_refusals_name_the_clients_own_field(tmp_path: Path, path: str, more: dict[str, Any], name: str) -> None:
    """They named fields of chat completions, which the client had not sent."""
    async with rigged(tmp_path, messages, "anthropic") as rig:
        found = await rig.http.post(
            path, json={"model": "there/big", "messages": [{"role": "user", "content": "hi"}], **more}
        )
        assert found.status_code == 400
        assert f"'{name}' cannot be carried" in found.text


async def test_think_false_is_accepted_for_a_model_that_thinks_on_request_only(tmp_path: Path) -> None:
    """Clients of Ollama send `think: false` to every model."""
    async with rigged(tmp_path, messages, "anthropic") as rig:
        for path, more in (("/api/chat", {"think": False}), ("/v1/chat/completions", {"reasoning_effort": "none"})):
            body = {"model": "there/big", "messages": [{"role": "user", "content": "hi"}], "stream": False, **more}
            assert (await rig.http.post(path, json=body)).status_code == 200
        assert not [seen.body for seen in rig.fake.seen if {"output_config", "thinking"} & seen.body.keys()]


async def test_ollamas_errors_name_what_a_providers_document_lacks(tmp_path: Path) -> None:
    """They were told that its recipe has no tool_call_parser, which documents of providers never have."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    async with rigged(tmp_path, messages, "anthropic") as rig:
        found = await rig.http.post(
            "/api/chat", json={"model": "there/big", "messages": [{"role": "user", "content": "hi"}], "tools": [tool]}
        )
        assert found.status_code == 400
        assert "does not support tools: `abilities` in its provider's document lacks tools. Leave 'tools'" in found.text


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": "none"},
        {"choices": [7]},
        {"choices": [{"message": None, "finish_reason": "stop"}]},
        {"choices": [{"message": {"content": 7}}]},
        {"choices": [{"message": {"content": "a"}, "finish_reason": "network_error"}]},
    ],
)
async def test_an_answer_that_cannot_be_translated_is_the_providers_fault(
    tmp_path: Path, answer: dict[str, Any]
) -> None:
    """It was a 500 engine_failed, so that operators searched on the wrong server."""
    play = Play([json.dumps(answer).encode()])
    async with rigged(tmp_path, lambda seen: play) as rig:
        for path, member in (("/api/chat", "error"), ("/v2/chat", "message")):
            body = {"model": "there/big", "messages": [{"role": "user", "content": "hi"}], "stream": False}
            found = await rig.http.post(path, json=body)
            assert (found.status_code, [*found.json()]) == (502, [member])
            assert found.json()[member].startswith("Provider 'there' ")
            assert rig.gateway.records.all[-1].code == "provider_answer"


async def test_errors_keep_the_clients_dialect(tmp_path: Path) -> None:
    async with rigged(tmp_path, lambda seen: traces.error(503, "overloaded_error")) as rig, rig.anthropic() as client:
        with pytest.raises(anthropic.InternalServerError) as refused:
            await client.messages.create(model="there/big", max_tokens=5, messages=[{"role": "user", "content": "hi"}])
        assert (refused.value.status_code, refused.value.type) == (503, "overloaded_error")
