"""`allowed_tools`: the model gets only what it may call, and Responses repeat what the client sent."""

import json
from typing import Any

import pytest

from models.chat.requests import allowed_tools, client_tools
from models.chat.requests.request import CHAT, RESPONSES, ChatRequest
from registry.errors import BadRequest

EDIT: dict[str, Any] = {"type": "custom", "name": "edit"}
HOSTED: dict[str, Any] = {"type": "web_search"}


def function(name: str, path: str) -> dict[str, Any]:
    named = {"name": name}
    return {"type": "function", "function": named} if path == CHAT else {"type": "function", **named}


def choice(path: str, mode: Any, tools: Any) -> dict[str, Any]:
    allowed = {"mode": mode, "tools": tools}
    return {"type": "allowed_tools", **({"allowed_tools": allowed} if path == CHAT else allowed)}


def restricted(path: str, tools: list[Any], tool_choice: Any) -> tuple[dict[str, Any], ChatRequest, Any]:
    body = json.dumps({"model": "m", "tools": tools, "tool_choice": tool_choice}).encode()
    request = ChatRequest(path, body)
    given = allowed_tools.restrict(request)
    return json.loads(request.body), request, given


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_the_allowed_tools_are_left(path: str, mode: str) -> None:
    tools = [function(name, path) for name in "abc"]
    body, _, given = restricted(path, tools, choice(path, mode, [tools[2], tools[0]]))
    assert body == {"model": "m", "tools": [tools[0], tools[2]], "tool_choice": mode}
    assert json.loads(bytes(given.tools)) == tools


def test_other_choices_and_paths_are_unchanged() -> None:
    for path, other in ((CHAT, "auto"), (CHAT, {"type": "function"}), ("/v1/messages", choice(RESPONSES, "auto", []))):
        body, _, given = restricted(path, [function("a", path)], other)
        assert (body["tool_choice"], given) == (other, None)


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_without_an_allowed_tool_there_are_no_tools(path: str) -> None:
    tools = [function("a", path)]
    body, _, _ = restricted(path, tools, choice(path, "auto", []))
    assert body == {"model": "m"}
    with pytest.raises(BadRequest, match="allow one"):
        restricted(path, tools, choice(path, "required", []))


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize(
    ("mode", "tools", "param"),
    [
        ("none", [], ""),
        (None, [], ""),
        ("auto", "a", ""),
        ("auto", [{"type": "function", "name": "b", "function": {"name": "b"}}], ".tools[0]"),
        ("auto", [HOSTED], ".tools[0]"),
        ("auto", ["a"], ".tools[0]"),
    ],
)
def test_faulty_choices_are_refused(path: str, mode: Any, tools: Any, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        restricted(path, [function("a", path), "odd"], choice(path, mode, tools))
    where = "tool_choice.allowed_tools" if path == CHAT else "tool_choice"
    assert caught.value.param == where + param


def test_a_response_repeats_the_clients_tools_and_choice() -> None:
    tools = [function("a", RESPONSES), function("b", RESPONSES), EDIT, HOSTED]
    requested = choice(RESPONSES, "required", [tools[0], EDIT])
    body, request, given = restricted(RESPONSES, tools, requested)
    assert body["tools"] == [tools[0], EDIT]
    client = client_tools.translate(request, given)
    assert client is not None
    assert [tool["name"] for tool in json.loads(request.body)["tools"]] == ["a", "edit"]
    call = {"type": "function_call", "id": "fc", "call_id": "c", "name": "edit", "arguments": '{"input": "x"}'}
    answer = {"output": [call], "tools": ["the engine's"], "tool_choice": "required"}
    restored = json.loads(client.restore(json.dumps(answer).encode()))
    assert restored["tool_choice"] == requested
    assert restored["tools"] == [*({"strict": None, "parameters": None, **tool} for tool in tools[:2]), EDIT, HOSTED]
    assert (restored["output"][0]["type"], restored["output"][0]["input"]) == ("custom_tool_call", "x")
    _, plain, given = restricted(RESPONSES, tools[:2], choice(RESPONSES, "auto", tools[:1]))
    client = client_tools.translate(plain, given)
    assert client is not None, "without tools of the client's own, too"
    assert len(json.loads(client.restore(json.dumps(answer).encode()))["tools"]) == 2
