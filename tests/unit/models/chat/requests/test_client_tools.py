"""Tools that a client runs itself are functions for the model, and the client's own items in the answer."""

import json
from typing import Any

import pytest

from models.chat.answers.custom_calls import CustomCalls
from models.chat.requests import client_tools
from models.chat.requests.client_tools import ClientTools
from models.chat.requests.request import ChatRequest
from models.chat.requests.tool_kinds import KINDS
from registry.errors import BadRequest

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
EDIT = {"type": "custom", "name": "edit", "description": "Edit a file."}
SHELL = {"type": "local_shell"}
CRM = {
    "type": "namespace",
    "name": "crm",
    "description": "d",
    "tools": [{"type": "function", "name": "find", "parameters": {"type": "object"}}, EDIT],
}


def translated(path: str = RESPONSES, **body: Any) -> tuple[dict[str, Any], ClientTools | None]:
    request = ChatRequest(path, json.dumps({"model": "m", **body}).encode())
    tools = client_tools.translate(request)
    assert not isinstance(tools, CustomCalls)
    return json.loads(request.body), tools


GRAMMAR = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a+/"}}
CHAT_TOOL = {"type": "custom", "custom": {"name": "edit", "description": "Edit a file.", "format": GRAMMAR}}
PLAIN = {"type": "function", "function": {"name": "f", "parameters": {}}}


def chatting(**body: Any) -> tuple[dict[str, Any], CustomCalls]:
    request = ChatRequest("/v1/chat/completions", json.dumps({"model": "m", **body}).encode())
    tools = client_tools.translate(request)
    assert isinstance(tools, CustomCalls)
    return json.loads(request.body), tools


def test_a_custom_tool_of_a_chat_is_a_function_with_one_text() -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "edit", "input": 'say "hi"'}}
    result = {"role": "tool", "tool_call_id": "c1", "content": "ok"}
    choice = {"type": "custom", "custom": {"name": "edit"}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}, result]
    body, _ = chatting(tools=[PLAIN, CHAT_TOOL], tool_choice=choice, messages=messages)
    plain, function = body["tools"]
    assert plain == PLAIN
    assert function["function"]["parameters"]["required"] == ["input"]
    assert function["function"]["description"].endswith("follows this lark grammar:\nstart: /a+/")
    assert body["tool_choice"] == {"type": "function", "function": {"name": "edit"}}
    [past] = body["messages"][1]["tool_calls"]
    assert past == {
        "id": "c1",
        "type": "function",
        "function": {"name": "edit", "arguments": '{"input":"say \\"hi\\""}'},
    }
    assert body["messages"][2] == result
    with pytest.raises(BadRequest, match="Two tools have the name 'edit'"):
        chatting(tools=[CHAT_TOOL, {"type": "function", "function": {"name": "edit"}}])


@pytest.mark.parametrize(
    "tools", [[], [{"type": "custom"}], [{"type": "custom", "custom": {}}], ["custom"], "custom", 7]
)
def test_what_is_no_custom_tool_is_left_to_vllm(tools: Any) -> None:
    request = ChatRequest("/v1/chat/completions", json.dumps({"model": "m", "tools": tools, "messages": 3}).encode())
    before = request.body
    assert client_tools.translate(request) is None
    assert request.body == before


def test_a_functions_result_that_is_null_is_empty() -> None:
    result = {"type": "function_call_output", "call_id": "c1", "output": None}
    body, _ = translated(input=[result, {**result, "output": "null"}])
    assert [item["output"] for item in body["input"]] == ["", "null"]


def test_calls_of_a_custom_tool_have_its_type_in_a_whole_answer() -> None:
    _, tools = chatting(tools=[PLAIN, CHAT_TOOL], messages=[])
    other = {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = {"id": "c1", "type": "function", "function": {"name": "edit", "arguments": '{"input": "a\\nb"}'}}
    cut = {"id": "c3", "type": "function", "function": {"name": "edit", "arguments": '{"input": "a'}}
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "tool_calls": [called, other, cut]}}]}
    [choice] = json.loads(tools.restore(json.dumps(answer).encode()))["choices"]
    assert choice["message"]["tool_calls"] == [
        {"id": "c1", "type": "custom", "custom": {"name": "edit", "input": "a\nb"}},
        other,
        {"id": "c3", "type": "custom", "custom": {"name": "edit", "input": '{"input": "a'}},
    ]


def test_calls_of_a_custom_tool_have_its_type_in_a_stream() -> None:
    _, tools = chatting(tools=[PLAIN, CHAT_TOOL], messages=[])

    def sent(*pieces: tuple[int, str | None, str], finish: str | None = None) -> list[dict[str, Any]]:
        """Return what the client gets for pieces of calls: index, name in the first one, and arguments."""
        calls = [
            {"index": i, **({"id": f"c{i}", "type": "function"} if name else {}),
             "function": {"arguments": text, **({"name": name} if name else {})}}
            for i, name, text in pieces
        ]  # fmt: skip
        choice = {"index": 0, "delta": {"tool_calls": calls} if calls else {}, "finish_reason": finish}
        event = tools.restore(b"data: %s\n\n" % json.dumps({"choices": [choice]}).encode())
        [got] = json.loads(event.removeprefix(b"data: "))["choices"]
        assert got["finish_reason"] == finish
        return got["delta"].get("tool_calls", [])

    first = {"index": 0, "id": "c0", "type": "custom", "custom": {"name": "edit", "input": ""}}
    assert sent((0, "edit", "")) == [first]
    assert sent((0, None, '{"input": "a')) == []
    assert sent((0, None, 'b"}')) == [{"index": 0, "custom": {"input": "ab"}}]
    assert sent((0, None, " "), (1, "f", "{")) == [
        {"index": 1, "id": "c1", "type": "function", "function": {"arguments": "{", "name": "f"}}
    ]
    assert sent((1, None, "}")) == [{"index": 1, "function": {"arguments": "}"}}]
    whole = {"index": 2, "id": "c2", "type": "custom", "custom": {"name": "edit", "input": "x"}}
    assert sent((2, "edit", '{"input": "x"}')) == [whole]
    assert sent((3, "edit", '{"inp')) == [{**first, "index": 3, "id": "c3"}]
    assert sent(finish="length") == [{"index": 3, "custom": {"input": '{"inp'}}]
    assert tools.restore(b"data: [DONE]\n\n") == b"data: [DONE]\n\n"


def call(name: str, arguments: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": name, "arguments": arguments,
        "status": "completed", **more,
    }  # fmt: skip


def events(*given: dict[str, Any]) -> bytes:
    return b"".join(b"event: %s\ndata: %s\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in given)


def read(data: bytes) -> list[dict[str, Any]]:
    assert not data or data.endswith(b"\n\n")
    parsed = []
    for one in data.split(b"\n\n")[:-1]:
        name, _, body = one.removeprefix(b"event: ").partition(b"\ndata: ")
        parsed.append(json.loads(body))
        assert parsed[-1]["type"] == name.decode()
    return parsed


def test_each_kind_becomes_a_function() -> None:
    function = {"type": "function", "name": "f", "parameters": {}}
    body, tools = translated(tools=[function, EDIT, SHELL, {"type": "shell"}, {"type": "apply_patch"}, CRM])
    assert [tool["name"] for tool in body["tools"]] == [
        "f", "edit", "local_shell", "shell", "apply_patch", "crm__find", "crm__edit",
    ]  # fmt: skip
    assert {tool["type"] for tool in body["tools"]} == {"function"}
    assert body["tools"][0] == function
    assert body["tools"][1]["description"] == "Edit a file."
    assert tools is not None


def test_a_request_of_plain_functions_is_unchanged() -> None:
    body = b'{"model":"m", "tools": [{"type":"function","name":"f"}],"input":[{"role":"user","content":"x"}]}'
    request = ChatRequest(RESPONSES, body)
    assert client_tools.translate(request) is None
    assert request.body == body


def test_a_grammar_becomes_part_of_the_description() -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": "start: line+"}
    body, _ = translated(tools=[EDIT | {"format": form}])
    assert "lark grammar:\nstart: line+" in body["tools"][0]["description"]


@pytest.mark.parametrize(
    ("tool", "arguments", "item"),
    [
        (EDIT, {"input": "*** Begin"}, {"type": "custom_tool_call", "name": "edit", "input": "*** Begin"}),
        (
            SHELL,
            {"command": ["ls", "-l"], "timeout_ms": 10},
            {"type": "local_shell_call", "action": {
                "type": "exec", "command": ["ls", "-l"], "env": {}, "working_directory": None, "timeout_ms": 10,
                "user": None}},
        ),
        (
            {"type": "shell"},
            {"commands": ["ls"]},
            {"type": "shell_call", "action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}},
        ),
        (
            {"type": "apply_patch"},
            {"type": "delete_file", "path": "a"},
            {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"}},
        ),
    ],
)  # fmt: skip
def test_a_call_is_returned_as_the_clients_item_and_accepted_again(
    tool: dict[str, Any], arguments: dict[str, Any], item: dict[str, Any]
) -> None:
    _, tools = translated(tools=[tool], tool_choice="auto")
    assert tools is not None
    name = tool.get("name", tool["type"])
    answer = {"output": [{"type": "message"}, call(name, json.dumps(arguments))], "tools": [], "tool_choice": "auto"}
    restored = json.loads(tools.restore(json.dumps(answer).encode()))
    assert restored["tools"] == [tool], "the client sees its own tools"
    expected = item | {"id": "fc_1", "call_id": "call_1", "status": "completed"}
    assert restored["output"] == [{"type": "message"}, expected]

    result = {"type": expected["type"] + "_output", "call_id": "call_1", "output": "done"}
    body, _ = translated(tools=[tool], input=[expected, result])
    assert json.loads(body["input"][0].pop("arguments")) == arguments
    assert body["input"] == [
        {"type": "function_call", "call_id": "call_1", "name": name},
        {"type": "function_call_output", "call_id": "call_1", "output": "done"},
    ]


def test_a_function_of_a_namespace_keeps_its_name_for_the_client() -> None:
    _, tools = translated(tools=[CRM])
    assert tools is not None
    restored = json.loads(tools.restore(json.dumps({"output": [call("crm__find", "{}")]}).encode()))
    assert restored["output"] == [call("find", "{}", namespace="crm")]
    body, _ = translated(tools=[CRM], input=restored["output"])
    assert body["input"] == [call("crm__find", "{}")]


def test_a_custom_tool_has_its_own_events_in_a_stream() -> None:
    _, tools = translated(tools=[EDIT])
    assert tools is not None
    arguments = '{"input": "a\\nb"}'
    data = tools.restore(
        events(
            {"type": "response.output_item.added", "output_index": 0, "item": call("edit", "")},
            {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"inp'},
        )
    ) + tools.restore(
        events(
            {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": 'ut": "a\\nb"}'},
            {"type": "response.function_call_arguments.done", "output_index": 0, "item_id": "fc_1",
             "sequence_number": 7, "arguments": arguments},
            {"type": "response.output_item.done", "output_index": 0, "item": call("edit", arguments)},
            {"type": "response.completed", "response": {"output": [call("edit", arguments)], "tools": []}},
        )
    )  # fmt: skip
    added, delta, done, item, completed = read(data)
    assert (added["item"]["type"], added["item"]["input"]) == ("custom_tool_call", "")
    assert (delta["type"], delta["delta"]) == ("response.custom_tool_call_input.delta", "a\nb")
    assert (done["input"], done["item_id"], done["sequence_number"]) == ("a\nb", "fc_1", 7)
    assert item["item"]["input"] == "a\nb"
    assert completed["response"] == {"output": [item["item"]], "tools": [EDIT]}


@pytest.mark.parametrize("arguments", ['{"input": 5}', '{"text": "a"}', "[1]", '{"input": "ha'])
def test_a_stream_has_the_input_of_its_item_whatever_the_model_wrote(arguments: str) -> None:
    _, tools = translated(tools=[EDIT])
    assert tools is not None
    data = tools.restore(
        events(
            {"type": "response.output_item.added", "output_index": 0, "item": call("edit", "")},
            {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": arguments},
            {"type": "response.output_item.done", "output_index": 0, "item": call("edit", arguments)},
        )
    )
    _, delta, done, item = read(data)
    assert isinstance(delta["delta"], str)
    assert delta["delta"] == done["input"] == item["item"]["input"]


def test_other_events_of_a_stream_are_unchanged() -> None:
    _, tools = translated(tools=[EDIT])
    assert tools is not None
    text = events({"type": "response.output_text.delta", "output_index": 0, "delta": "call edit"})
    plain = events(
        {"type": "response.output_item.added", "output_index": 1, "item": call("f", "")},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": "{"},
    )
    assert tools.restore(text + plain) == text + plain


def test_a_call_that_was_cut_is_kept() -> None:
    _, tools = translated(tools=[EDIT])
    assert tools is not None
    restored = json.loads(tools.restore(json.dumps({"output": [call("edit", '{"input": "ha')]}).encode()))
    assert restored["output"][0]["input"] == '{"input": "ha'


def test_two_tools_of_a_name_are_refused() -> None:
    with pytest.raises(BadRequest, match="Two tools have the name 'edit'"):
        translated(tools=[EDIT, {"type": "function", "name": "edit"}])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_choice_of_such_a_tool_is_one_of_its_function(kind: str) -> None:
    tool = {"type": kind, "name": "edit"} if kind == "custom" else {"type": kind}
    body, _ = translated(tools=[tool], tool_choice=tool)
    assert body["tool_choice"] == {"type": "function", "name": tool.get("name", kind)}


def test_nulls_of_returned_items_are_left_out() -> None:
    message = {"type": "message", "role": "assistant", "content": []}
    thoughts = {"type": "reasoning", "summary": []}
    body, _ = translated(input=[message | {"id": None, "status": None}, thoughts | {"id": None}])
    assert body["input"] == [message, thoughts | {"id": "rs_0"}]


@pytest.mark.parametrize("kind", ["bash_20250124", "text_editor_20250728", "memory_20250818"])
def test_anthropics_client_tools_get_their_schema(kind: str) -> None:
    plain = {"name": "f", "input_schema": {"type": "object"}}
    body, tools = translated(MESSAGES, tools=[plain, {"type": kind, "name": "it"}])
    assert tools is None
    assert body["tools"][0] == plain
    assert body["tools"][1]["name"] == "it"
    assert "command" in body["tools"][1]["input_schema"]["properties"]


@pytest.mark.parametrize("tools", ["word", [1], None, [{"type": 4}], [], [[]]])
def test_tools_that_are_no_list_are_left_to_the_engine(tools: Any) -> None:
    body, found = translated(tools=tools, input="text")
    assert (body["tools"], found) == (tools, None)
