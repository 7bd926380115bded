"""Cohere's chat and embeddings: requests as sent to the engine, answers as Cohere writes them, and refusals."""

import base64
import json
from typing import Any

import httpx
import numpy as np
import pytest
from cohere.v2.types import V2ChatResponse, V2ChatStreamResponse

from models.messages import Chunk, EmbedRequest, EmbedResult, Event, HttpCall, ResponseEnd, ResponseStart, Usage
from registry.errors import EngineFailed, RoundhouseError
from runtime.http.cohere.answers import TYPES, CohereWriter
from tests.system.vendor.strict import faults
from tests.unit.http.fakes import FakeGateway, application

MESSAGES = [{"role": "user", "content": "hi"}]
REQUEST = {"model": "chat", "messages": MESSAGES}
SENT = {**REQUEST, "stream": False}
USAGE = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
CALL = {"id": "c1", "type": "function", "function": {"name": "set_fan", "arguments": '{"speed":2}'}}
TOOL = {"type": "function", "function": {"name": "set_fan", "parameters": {"type": "object"}}}
SCHEMA = {"type": "object"}
EMBED = {"model": "embed", "texts": ["a", "b"], "input_type": "search_document"}


async def post(gateway: FakeGateway, path: str, body: Any, **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.post(path, json=body, headers=headers)


def answers(gateway: FakeGateway, message: dict[str, Any], finish: str = "stop", **more: Any) -> None:
    choice = {"message": message, "finish_reason": finish, **more}
    data = json.dumps({"choices": [choice], "usage": USAGE}).encode()
    events: list[Event] = [ResponseStart(200, "application/json"), Chunk(data=data), ResponseEnd(usage=Usage())]
    gateway.links["chat"].script = lambda _: events


def streams(gateway: FakeGateway, *choices: dict[str, Any], end: RoundhouseError | None = None) -> None:
    lines = b"".join(b"data: %s\n\n" % json.dumps({"choices": [choice]}).encode() for choice in choices)
    lines += b"data: %s\n\ndata: [DONE]\n\n" % json.dumps({"choices": [], "usage": USAGE}).encode()
    events: list[Event | RoundhouseError] = [ResponseStart(200, "text/event-stream"), Chunk(data=lines)]
    gateway.links["chat"].script = lambda _: [*events, end or ResponseEnd(usage=Usage())]


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"delta": fields, "finish_reason": finish}


def sent(gateway: FakeGateway) -> dict[str, Any]:
    request = gateway.links["chat"].requests[-1]
    assert isinstance(request, HttpCall)
    assert request.path == "/v1/chat/completions"
    found: dict[str, Any] = json.loads(request.body)
    return found


def events_of(response: httpx.Response) -> list[Any]:
    assert response.headers["content-type"].startswith("text/event-stream")
    found = [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line.startswith("data")]
    assert [line.removeprefix("event: ") for line in response.text.splitlines() if line.startswith("event")] == [
        event["type"] for event in found
    ]
    for event in found:
        assert faults(V2ChatStreamResponse, event) == []
    return found


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, {}),
        ({"max_tokens": 5.0, "stop_sequences": ["a"]}, {"max_tokens": 5, "stop": ["a"]}),
        ({"k": 0, "p": 0.5}, {"top_k": 0, "top_p": 0.5}),
        ({"seed": 3, "temperature": 0}, {"seed": 3, "temperature": 0}),
        ({"presence_penalty": 0.5, "frequency_penalty": 1}, {"presence_penalty": 0.5, "frequency_penalty": 1}),
        ({"tools": [TOOL], "tool_choice": "REQUIRED"}, {"tools": [TOOL], "tool_choice": "required"}),
        (
            {"tools": [TOOL], "strict_tools": True, "tool_choice": "NONE"},
            {"tools": [{**TOOL, "function": {**TOOL["function"], "strict": True}}], "tool_choice": "none"},  # type: ignore[dict-item]
        ),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"response_format": {"type": "json_object"}}),
        (
            {"response_format": {"type": "json_object", "json_schema": SCHEMA}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}},
        ),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}},
        ),
        ({"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}),
        (
            {"thinking": {"type": "enabled", "token_budget": 9}},
            {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}, "thinking_token_budget": 9},
        ),
        ({"documents": [], "logprobs": False, "tools": None, "priority": 1}, {}),
    ],
    ids=str,
)  # fmt: skip
async def test_a_chat_is_translated_for_vllm(gateway: FakeGateway, more: Any, expected: Any) -> None:
    answers(gateway, {"content": "a"})
    response = await post(gateway, "/v2/chat", {**REQUEST, **more})
    assert response.status_code == 200, response.text
    assert "X-Roundhouse-Warning" not in response.headers
    assert sent(gateway) == {**SENT, **expected}


async def test_messages_are_translated_for_vllm(gateway: FakeGateway) -> None:
    answers(gateway, {"content": "a"})
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa", "detail": "low"}}
    thought = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}]
    document = {"type": "document", "document": {"data": {"degrees": 21}, "id": "1"}}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
        {"role": "user", "content": [{"type": "text", "text": "see"}, image]},
        {"role": "assistant", "content": thought, "citations": []},
        {"role": "assistant", "tool_plan": "I will turn it.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": [document, {"type": "text", "text": "done"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "cut"}, {"type": "text", "text": ""}]},
        {"role": "assistant", "content": ""},
    ]
    assert (await post(gateway, "/v2/chat", {**REQUEST, "messages": messages})).status_code == 200
    assert sent(gateway)["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "see"}, image]},
        {"role": "assistant", "content": "so", "reasoning": "hm"},
        {"role": "assistant", "content": "I will turn it.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": '{"degrees":21}done'},
        {"role": "assistant", "content": "", "reasoning": "cut"},
        {"role": "assistant", "content": ""},
    ]


@pytest.mark.parametrize("field", ["adapter_id", "lora_name", "lora_path"])
async def test_an_adapter_apart_from_its_model_is_not_ignored(gateway: FakeGateway, field: str) -> None:
    refused = await post(gateway, "/v2/chat", {**REQUEST, field: "legal"})
    assert refused.status_code == 400
    assert refused.json()["message"] == f"'{field}' has another name here: 'model', which takes an adapter's name."


async def test_a_warning_names_fields_without_effect(gateway: FakeGateway) -> None:
    answers(gateway, {"content": "a"})
    odd = {"safety_mode": "STRICT", "citation_options": {"mode": "FAST"}, "x\r\ny": 1, "raw_prompting": True}
    warning = (await post(gateway, "/v2/chat", {**REQUEST, **odd})).headers["X-Roundhouse-Warning"]
    for word in ("safety_mode", "citation_options", "raw_prompting", "a field of no plain name"):
        assert word in warning
    assert sent(gateway) == SENT


@pytest.mark.parametrize("by_recipe", [False, True])
async def test_fields_without_effect_are_refused_for_a_strict_client_or_recipe(
    gateway: FakeGateway, by_recipe: bool
) -> None:
    answers(gateway, {"content": "a"})
    gateway.links["embed"].script = lambda _: [
        EmbedResult(vectors=np.ones((2, 2), "f4").tobytes(), dimensions=2, tokens=[1, 1])
    ]
    headers = {} if by_recipe else {"Prefer": "handling=strict"}
    if by_recipe:
        for entry in gateway.entries.values():
            entry.recipe = entry.recipe.model_copy(update={"strict": True})
    for path, body in (("/v2/chat", REQUEST), ("/v2/embed", EMBED)):
        assert (await post(gateway, path, body, **headers)).status_code == 200
        refused = await post(gateway, path, {**body, "odd": 1}, **headers)
        assert (refused.status_code, refused.json()["message"]) == (400, "'odd' has no effect here: leave it out.")
    hint = await post(gateway, "/v2/chat", {**REQUEST, "safety_mode": "STRICT"}, **headers)
    assert "safety_mode" in hint.json()["message"]


@pytest.mark.parametrize(
    ("message", "finish", "more", "content", "reason"),
    [
        ({"content": "hi"}, "stop", {}, [{"type": "text", "text": "hi"}], "COMPLETE"),
        ({"content": "hi"}, "stop", {"stop_reason": "x"}, [{"type": "text", "text": "hi"}], "STOP_SEQUENCE"),
        ({"content": ""}, "length", {}, [{"type": "text", "text": ""}], "MAX_TOKENS"),
        (
            {"content": "so", "reasoning": "hm"}, "stop", {},
            [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}], "COMPLETE",
        ),
        ({"content": None, "tool_calls": [CALL]}, "tool_calls", {}, None, "TOOL_CALL"),
    ],
)  # fmt: skip
async def test_an_answer_has_cohere_content_and_finish_reason(
    gateway: FakeGateway, message: Any, finish: str, more: Any, content: Any, reason: str
) -> None:
    answers(gateway, message, finish, **more)
    found = (await post(gateway, "/v2/chat", REQUEST)).json()
    assert faults(V2ChatResponse, found) == []
    assert found["finish_reason"] == reason
    assert found["message"].get("content") == content
    assert found["message"].get("tool_calls") == ([CALL] if "tool_calls" in message else None)
    assert found["usage"]["tokens"] == {"input_tokens": 4, "output_tokens": 2}


@pytest.mark.parametrize("cached", [0, 3])
def test_cached_tokens_are_reported_if_there_are_any(cached: int) -> None:
    usage = {**USAGE, "prompt_tokens_details": {"cached_tokens": cached}}
    data = json.dumps({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": usage}).encode()
    assert CohereWriter().whole(data).usage.cached_tokens == (cached or None)


async def test_a_stream_has_events_of_thoughts_text_and_calls(gateway: FakeGateway) -> None:
    def piece(at: int, arguments: str, **head: Any) -> dict[str, Any]:
        name = head.pop("name", None)
        return delta(tool_calls=[{"index": at, "function": {"name": name, "arguments": arguments}, **head}])

    streams(
        gateway,
        delta(role="assistant", content=""), delta(reasoning="h"), delta(reasoning="m"), delta(content="s"),
        delta(content="o"), piece(0, "", id="c1", name="set_fan"), piece(0, '{"speed"'), piece(0, ":2}"),
        piece(1, "{}", id="c2", name="stop"), delta("tool_calls"),
    )  # fmt: skip
    found = events_of(await post(gateway, "/v2/chat", {**REQUEST, "stream": True}))
    assert sent(gateway)["stream_options"] == {"include_usage": True}
    assert [(event["type"], event.get("index")) for event in found] == [
        ("message-start", None), ("content-start", 0), ("content-delta", 0), ("content-delta", 0), ("content-end", 0),
        ("content-start", 1), ("content-delta", 1), ("content-delta", 1), ("content-end", 1), ("tool-call-start", 0),
        ("tool-call-delta", 0), ("tool-call-delta", 0), ("tool-call-end", 0), ("tool-call-start", 1),
        ("tool-call-delta", 1), ("tool-call-end", 1), ("message-end", None),
    ]  # fmt: skip
    pieces = [event["delta"]["message"] for event in found if event["type"] in ("tool-call-start", "tool-call-delta")]
    assert [piece["tool_calls"]["function"]["arguments"] for piece in pieces] == ["", '{"speed"', ":2}", "", "{}"]
    assert found[-1]["delta"]["finish_reason"] == "TOOL_CALL"
    assert found[-1]["delta"]["usage"]["billed_units"] == {"input_tokens": 4, "output_tokens": 2}


async def test_a_stream_that_breaks_ends_with_an_error(gateway: FakeGateway) -> None:
    streams(gateway, delta(content="a"), end=EngineFailed("it broke"))
    last = events_of(await post(gateway, "/v2/chat", {**REQUEST, "stream": True}))[-1]
    assert last["type"] == "message-end"
    assert last["delta"]["finish_reason"] == "ERROR"
    assert last["delta"]["error"]


@pytest.mark.parametrize("end", [None, EngineFailed("it broke")])
async def test_a_client_that_accepts_no_events_gets_lines(gateway: FakeGateway, end: RoundhouseError | None) -> None:
    """Cohere does the same for LiteLLM, which reads each line as JSON."""
    streams(gateway, delta(content="a"), delta("stop", content="b"), end=end)
    for accept in ("text/event-stream", "*/*", "application/json, text/event-stream", "application/json, */*;q=0.1"):
        events = events_of(await post(gateway, "/v2/chat", {**REQUEST, "stream": True}, accept=accept))
    lines = await post(gateway, "/v2/chat", {**REQUEST, "stream": True}, accept="application/json")
    assert lines.headers["content-type"] == "application/x-ndjson"
    found = [json.loads(line) for line in lines.text.splitlines()]
    assert [event["type"] for event in found] == [event["type"] for event in events]
    assert [event["delta"] for event in found[1:-1] if "delta" in event] == [
        event["delta"] for event in events[1:-1] if "delta" in event
    ]
    refused = await post(
        gateway, "/v2/chat", {**REQUEST, "stream": True, "documents": ["a"]}, accept="application/json"
    )
    assert (refused.status_code, list(refused.json())) == (400, ["message"])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"documents": ["a"]}, "put them into a message, and leave 'documents' out"),
        ({"logprobs": True}, "leave 'logprobs' out"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "'messages[0].content' is missing"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "'messages[0].tool_call_id' is missing"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "without its 'text'"),
        ({"model": None}, "Say which model"),
        ({"temperature": "hot"}, "temperature"),
    ],
)
async def test_unsupported_requests_are_refused_in_coheres_shape(gateway: FakeGateway, body: Any, words: str) -> None:
    for stream in (False, True):
        response = await post(gateway, "/v2/chat", {**REQUEST, **body, "stream": stream})
        assert response.status_code == 400
        assert response.json().keys() == {"message"}
        assert words in response.json()["message"]


def embeds(gateway: FakeGateway, rows: list[list[float]]) -> None:
    vectors = np.array(rows, dtype="<f4")
    result = EmbedResult(vectors=vectors.tobytes(), dimensions=vectors.shape[1], tokens=[3] * len(rows))
    gateway.links["embed"].script = lambda _: [result, ResponseEnd(usage=Usage())]


async def test_int8_vectors_use_the_whole_range(gateway: FakeGateway) -> None:
    embeds(gateway, [[0.125, -0.5], [4.0, 1.0]])
    found = (await post(gateway, "/v2/embed", {**EMBED, "embedding_types": ["int8"]})).json()
    assert found["embeddings"]["int8"] == [[32, -127], [127, 32]]


async def test_embeddings_have_every_requested_type(gateway: FakeGateway) -> None:
    rows = [[0.5, -1, 0, 0.25] * 2, [0.0] * 8]
    embeds(gateway, rows)
    found = (await post(gateway, "/v2/embed", {**EMBED, "embedding_types": [*TYPES, "float"]})).json()
    assert found["embeddings"] == {
        "float": rows,
        "base64": [base64.b64encode(np.array(row, dtype="<f4").tobytes()).decode() for row in rows],
        "int8": [[64, -127, 0, 32] * 2, [0] * 8],
        "uint8": [[192, 1, 128, 160] * 2, [128] * 8],
        "binary": [[0b10011001 - 128], [-128]],
        "ubinary": [[0b10011001], [0]],
    }
    assert (found["texts"], found["response_type"]) == (["a", "b"], "embeddings_by_type")
    assert found["meta"]["billed_units"] == {"input_tokens": 6}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, ("search_document", True, None)),
        ({"input_type": "search_query", "truncate": "NONE"}, ("query", False, None)),
        ({"input_type": "clustering", "truncate": "END", "output_dimension": 8.0}, ("clustering", True, 8)),
    ],
)
async def test_options_of_embeddings_reach_the_engine(gateway: FakeGateway, more: Any, expected: Any) -> None:
    embeds(gateway, [[1.0], [1.0]])
    inputs = [{"content": [{"type": "text", "text": text}]} for text in ("a", "b")]
    for texts in ({"texts": ["a", "b"]}, {"texts": None, "inputs": inputs}):
        found = await post(gateway, "/v2/embed", {**EMBED, **texts, **more})
        assert found.json()["embeddings"].keys() == {"float"}
        request = gateway.links["embed"].requests[-1]
        assert isinstance(request, EmbedRequest)
        assert request.inputs == ["a", "b"]
        names = [request.prompt_name, *request.prompt_fallbacks]
        assert expected[0] in names
        assert (request.truncate, request.dimensions) == expected[1:]


async def test_embeddings_of_cohere_v1_are_answered(gateway: FakeGateway) -> None:
    """`langchain_cohere.CohereEmbeddings` and LangChain's JavaScript class send them."""
    embeds(gateway, [[0.5], [1.0]])
    body = {"texts": ["a", "b"], "model": "embed", "truncate": None, "embedding_types": ["float"]}
    found = (await post(gateway, "/v1/embed", {**body, "input_type": "search_document"})).json()
    assert (found["response_type"], found["embeddings"]) == ("embeddings_by_type", {"float": [[0.5], [1.0]]})
    assert (found["meta"]["api_version"]["version"], found["texts"]) == ("1", ["a", "b"])
    request = gateway.links["embed"].requests[-1]
    assert "search_document" in request.prompt_fallbacks
    found = (await post(gateway, "/v1/embed", {"texts": ["a", "b"], "model": "embed"})).json()
    assert (found["response_type"], found["embeddings"]) == ("embeddings_floats", [[0.5], [1.0]])
    request = gateway.links["embed"].requests[-1]
    assert (request.prompt_name, request.prompt_fallbacks) == (None, [])
    refused = await post(gateway, "/v1/embed", {"texts": ["a"], "model": "embed", "truncate": "START"})
    assert (refused.status_code, refused.json().keys()) == (400, {"message"})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"images": ["data:"]}, "leave 'images' out"),
        ({"truncate": "START"}, '"END"'),
        ({"texts": []}, "'texts' is an empty list"),
        ({"texts": ["a", ""]}, "'texts[1]' is empty"),
        ({"input_type": None}, "input_type"),
        ({"input_type": "image"}, "input_type"),
        ({"embedding_types": ["float64"]}, "embedding_types"),
        ({"max_tokens": 5}, "max_tokens"),
    ],
)
async def test_unsupported_embeddings_are_refused(gateway: FakeGateway, more: Any, words: str) -> None:
    response = await post(gateway, "/v2/embed", {**EMBED, **more})
    assert response.status_code == 400
    assert words in response.json()["message"]


async def test_a_header_names_unknown_fields_of_embeddings(gateway: FakeGateway) -> None:
    embeds(gateway, [[1.0], [1.0]])
    response = await post(gateway, "/v2/embed", {**EMBED, "color": "red"})
    assert "color" in response.headers["X-Roundhouse-Warning"]
