"""Tools that a client runs itself, shown to the model as functions.

| the client sends                      | the model sees                           | the client gets back              |
|---------------------------------------|------------------------------------------|-----------------------------------|
| Chat Completions: `custom`            | a function with one string, `input`      | a call of type `custom`           |
| Responses: `custom`                   | the same                                 | `custom_tool_call`                |
| `local_shell`, `shell`, `apply_patch` | a function of that name                  | `local_shell_call` and so on      |
| `namespace`                           | its functions, as `namespace__function`  | `function_call` with `namespace`  |
| Messages: `bash_*`, `text_editor_*`,  | a function of the tool's name            | `tool_use`, as for any function   |
| `memory_*`                            |                                          |                                   |

Calls in earlier turns are translated the same way, so a client can send its history back unchanged.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from models.chat.answers.custom_calls import CustomCalls
from models.chat.requests.allowed_tools import GivenTools
from models.chat.requests.request import CHAT, MESSAGES, RESPONSES, ChatRequest
from models.chat.requests.tool_kinds import ANTHROPIC, BY_ITEM, KINDS, Json
from registry.base.json import NOT_JSON
from registry.errors import BadRequest

SEPARATOR = "__"
NULLABLE = ("id", "status", "encrypted_content")
"""Fields of items that clients send as null, but that vLLM's classes accept only if absent."""
_CUSTOM, _NULL = b'"custom"', b"null"
_EVENT, _DATA = b"event: ", b"\ndata: "


@dataclass(frozen=True, slots=True)
class _Called:
    """The client's own name of the tool behind a function."""

    kind: str
    name: str
    namespace: str | None = None


@dataclass(slots=True)
class ClientTools:
    """The client's tools of one request to Responses. Converts the answer's items to the client's form."""

    tools: msgspec.Raw
    choice: msgspec.Raw | None
    calls: dict[str, _Called]
    _open: dict[int, str] = field(default_factory=dict)
    """Output index to function, for the unfinished calls of a stream."""

    def restore(self, data: bytes) -> bytes:
        """Replace items by the client's form, in a complete answer or in complete events of a stream."""
        if data.startswith(b"{"):
            return msgspec.json.encode(self._response(msgspec.json.decode(data)))
        if not data.startswith(_EVENT):
            return data
        return b"".join(self._event(event) for event in data.split(b"\n\n") if event)

    def _response(self, response: Json) -> Json:
        output = response.get("output")
        if isinstance(output, list):
            response["output"] = [self._item(item) for item in output]
        if "tools" in response:
            response["tools"] = self.tools
        if self.choice is not None and "tool_choice" in response:
            response["tool_choice"] = self.choice
        return response

    def _event(self, text: bytes) -> bytes:
        try:
            event: Json = msgspec.json.decode(text.partition(_DATA)[2])
        except NOT_JSON:
            return text + b"\n\n"
        if "response" in event:
            return _written(event | {"response": self._response(event["response"])})
        index = int(event.get("output_index", -1))
        match event.get("type"):
            case "response.output_item.added" if self._stands_for_a_tool(event["item"]):
                self._open[index] = event["item"]["name"]
                return _written(event | {"item": self._item(event["item"])})
            case "response.output_item.done" if self._stands_for_a_tool(event["item"]):
                self._open.pop(index, None)
                return _written(event | {"item": self._item(event["item"])})
            case "response.function_call_arguments.delta" if self._is_translated(index):
                return b""  # the tool's input is unknown until its JSON is complete
            case "response.function_call_arguments.done" if self._is_translated(index):
                return self._input_events(event, self._open[index])
            case "response.function_call_arguments.done" if index in self._open:
                return _written(event | ({"name": self.calls[self._open[index]].name} if "name" in event else {}))
            case _:
                return text + b"\n\n"

    def _is_translated(self, index: int) -> bool:
        """Return whether the unfinished call at an index is something other than a plain function of a namespace."""
        return index in self._open and self.calls[self._open[index]].kind != "namespace"

    def _stands_for_a_tool(self, item: Any) -> bool:
        return isinstance(item, dict) and item.get("type") == "function_call" and item.get("name") in self.calls

    def _input_events(self, event: Json, function: str) -> bytes:
        """Return the events for a custom tool's input, in one piece. The other kinds have no such events."""
        if self.calls[function].kind != "custom":
            return b""
        text = KINDS["custom"].read(_arguments(event))["input"]
        same: Json = {name: event[name] for name in ("item_id", "output_index", "sequence_number") if name in event}
        delta: Json = {"type": "response.custom_tool_call_input.delta", **same, "delta": text}
        return _written(delta) + _written({"type": "response.custom_tool_call_input.done", **same, "input": text})

    def _item(self, item: Any) -> Any:
        """Convert an item of the output to the client's form."""
        if not self._stands_for_a_tool(item):
            return item
        called = self.calls[item["name"]]
        if called.kind == "namespace":
            return item | {"name": called.name, "namespace": called.namespace}
        kind = KINDS[called.kind]
        known = {name: item[name] for name in ("id", "call_id", "status") if name in item}
        named: Json = {"name": called.name} if called.kind == "custom" else {}
        if called.namespace is not None:
            named["namespace"] = called.namespace
        return {"type": kind.item, **known, **named, **kind.read(_arguments(item))}


def translate(request: ChatRequest, given: GivenTools | None = None) -> ClientTools | CustomCalls | None:
    """Turn the client's own tools into functions. Returns None if there are none or the answer needs no conversion.

    given: the tools and the choice that the answer repeats instead of the request's.

    Raises BadRequest for two tools of one name.
    """
    if request.path == MESSAGES:
        _translate_messages(request)
        return None
    if request.path == CHAT:
        return _translate_chat(request)
    if request.path != RESPONSES:
        return None
    _translate_history(request)
    tools = [msgspec.json.decode(item) for item in request.items("tools")]
    if not any(isinstance(tool, dict) and tool.get("type") in (*KINDS, "namespace") for tool in tools):
        return None if given is None else ClientTools(_listed(given.tools), given.choice, {})
    calls: dict[str, _Called] = {}
    functions: list[Any] = []
    for index, tool in enumerate(tools):
        functions += _functions(tool, f"tools[{index}]", calls)
    _refuse_same(calls, [function.get("name") for function in functions if isinstance(function, dict)])
    listed, choice = request.fields["tools"], request.fields.get("tool_choice")
    if given is not None:
        listed, choice = _listed(given.tools), given.choice
    translated = ClientTools(listed, choice, calls)
    request.replace("tools", msgspec.json.encode(functions))
    _translate_choice(request)
    return translated


def _refuse_same(calls: Iterable[str], names: list[Any]) -> None:
    for name in calls:
        if names.count(name) > 1:
            raise BadRequest(
                f"Two tools have the name '{name}': give each a name of its own.", param="tools", code="invalid_value"
            )


def _translate_chat(request: ChatRequest) -> CustomCalls | None:
    """Turn custom tools of Chat Completions into functions, also in earlier turns and in the choice."""
    if any(_CUSTOM in bytes(request.fields.get(name, _NULL)) for name in ("messages", "tool_choice")):
        messages = request.value("messages")
        if isinstance(messages, list):
            past = [_past_calls(message) for message in messages]
            if past != messages:
                request.replace("messages", msgspec.json.encode(past))
        match request.object("tool_choice"):
            case {"type": "custom", "custom": {"name": name}}:
                choice = {"type": "function", "function": {"name": name}}
                request.replace("tool_choice", msgspec.json.encode(choice))
    if _CUSTOM not in bytes(request.fields.get("tools", _NULL)):
        return None  # the usual case
    calls: dict[str, _Called] = {}
    functions = [_chat_function(tool, calls) for tool in request.value("tools") or ()]
    if not calls:
        return None
    named = [
        tool["function"] for tool in functions if isinstance(tool, dict) and isinstance(tool.get("function"), dict)
    ]
    _refuse_same(calls, [function.get("name") for function in named])
    request.replace("tools", msgspec.json.encode(functions))
    return CustomCalls(frozenset(calls))


def _chat_function(tool: Any, calls: dict[str, _Called]) -> Any:
    match tool:
        case {"type": "custom", "custom": {"name": str()} as custom}:
            form = custom.get("format")
            grammar = form.get("grammar") if isinstance(form, dict) else None
            [function] = _functions({"type": "custom", **custom, "format": grammar}, "tools", calls)
            return {"type": "function", "function": {key: one for key, one in function.items() if key != "type"}}
        case _:
            return tool


def _past_calls(message: Any) -> Any:
    match message:
        case {"tool_calls": list(calls)}:
            return {**message, "tool_calls": [_past_call(call) for call in calls]}
        case _:
            return message


def _past_call(call: Any) -> Any:
    match call:
        case {"type": "custom", "custom": {"name": name} as custom}:
            arguments = msgspec.json.encode({"input": custom.get("input", "")}).decode()
            rest = {key: value for key, value in call.items() if key != "custom"}
            return {**rest, "type": "function", "function": {"name": name, "arguments": arguments}}
        case _:
            return call


def _listed(tools: msgspec.Raw) -> msgspec.Raw:
    """Return tools in the form of answers, with defaults for the fields that a function leaves out."""
    found = [
        {"strict": None, "parameters": None, **tool}
        if isinstance(tool, dict) and tool.get("type") == "function"
        else tool
        for tool in msgspec.json.decode(tools)
    ]
    return msgspec.Raw(msgspec.json.encode(found))


def _functions(tool: Any, param: str, calls: dict[str, _Called], namespace: str | None = None) -> list[Any]:
    """Return the functions that represent a tool, and add them to `calls`."""
    kind = str(tool.get("type")) if isinstance(tool, dict) else ""
    if kind == "namespace" and namespace is None:
        inner = tool.get("tools")
        if not (isinstance(tool.get("name"), str) and isinstance(inner, list)):
            raise BadRequest("A namespace has a name and a list of tools.", param=param, code="invalid_value")
        return [function for t in inner for function in _functions(t, f"{param}.tools", calls, tool["name"])]
    if kind in KINDS:
        name = str(tool.get("name") or kind)
        function = f"{namespace}{SEPARATOR}{name}" if namespace else name
        calls[function] = _Called(kind, name, namespace)
        description = str(tool.get("description") or KINDS[kind].description)
        if isinstance(tool.get("format"), dict) and tool["format"].get("definition"):
            description += f"\nThe input follows this {tool['format'].get('syntax')} grammar:\n"
            description += str(tool["format"]["definition"])
        parameters = KINDS[kind].parameters
        return [{"type": "function", "name": function, "description": description, "parameters": parameters}]
    if namespace is None or not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        return [tool]
    function = f"{namespace}{SEPARATOR}{tool['name']}"
    calls[function] = _Called("namespace", tool["name"], namespace)
    return [tool | {"name": function}]


def _translate_choice(request: ChatRequest) -> None:
    """Turn a choice of one of these tools into a choice of its function."""
    choice = request.object("tool_choice")
    if choice.get("type") in KINDS:
        name = choice.get("name") or choice["type"]
        request.replace("tool_choice", msgspec.json.encode({"type": "function", "name": name}))


def _translate_history(request: ChatRequest) -> None:
    """Turn calls in earlier turns and their results into those of functions."""
    items = request.items("input")
    decoded = map(msgspec.json.decode, items)
    changed = {index: new for index, item in enumerate(decoded) if (new := _past(item)) is not None}
    if changed:
        request.replace("input", msgspec.json.encode([changed.get(index, item) for index, item in enumerate(items)]))


def _as_text(part: Any) -> Any:
    """Turn a refusal in an answer into a text, because vLLM supports only texts there."""
    if isinstance(part, dict) and part.get("type") == "refusal":
        return {"type": "output_text", "text": part.get("refusal"), "annotations": []}
    return part


def _past(item: Any) -> Json | None:
    """Convert an item of an earlier turn to vLLM's form; None if it already has it."""
    if isinstance(item, dict) and item.get("role") == "assistant" and isinstance(item.get("content"), list):
        parts = [_as_text(part) for part in item["content"]]
        if parts != item["content"]:
            item = item | {"content": parts}
            return _past(item) or item
    kind = item.get("type") if isinstance(item, dict) else None
    if not isinstance(kind, str):
        return None
    if any(item.get(name, "") is None for name in NULLABLE):
        without: Json = {name: value for name, value in item.items() if value is not None or name not in NULLABLE}
        if kind == "reasoning":  # vLLM's class requires an id
            without.setdefault("id", "rs_0")
        return _past(without) or without
    if kind == "function_call_output" and item.get("output") is None:
        return {**item, "output": ""}
    if kind == "function_call" and item.get("namespace"):
        name = f"{item['namespace']}{SEPARATOR}{item.get('name')}"
        return {key: value for key, value in item.items() if key != "namespace"} | {"name": name}
    if (tool := BY_ITEM.get(kind)) is not None:
        name = str(item.get("name") or tool)
        if item.get("namespace"):
            name = f"{item['namespace']}{SEPARATOR}{name}"
        arguments = msgspec.json.encode(KINDS[tool].write(item)).decode()
        call_id = item.get("call_id") or item.get("id")
        return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
    if kind.removesuffix("_output") in BY_ITEM and kind.endswith("_output"):
        output = item.get("output")
        if not isinstance(output, str):
            output = str(item.get("status", "")) if output is None else msgspec.json.encode(output).decode()
        return {"type": "function_call_output", "call_id": item.get("call_id") or item.get("id"), "output": output}
    return None


def _translate_messages(request: ChatRequest) -> None:
    """Give Anthropic's client tools the description and schema that their type implies."""
    tools = [msgspec.json.decode(item) for item in request.items("tools")]
    functions = [_anthropic(tool) for tool in tools]
    if functions != tools:
        request.replace("tools", msgspec.json.encode(functions))


def _anthropic(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if not isinstance(kind, str) or "input_schema" in tool:
        return tool
    for beginning, (description, schema) in ANTHROPIC.items():
        if kind.startswith(beginning):
            return {"name": tool.get("name"), "description": description, "input_schema": schema}
    return tool


def _arguments(item: Json) -> Json:
    """Return a call's arguments. Text that is not a JSON object, such as that of a cut call, becomes `input`."""
    try:
        arguments = msgspec.json.decode(item.get("arguments") or "{}")
    except NOT_JSON:
        return {"input": item.get("arguments", "")}
    return arguments if isinstance(arguments, dict) else {"input": item.get("arguments", "")}


def _written(event: Json) -> bytes:
    return _EVENT + str(event["type"]).encode() + _DATA + msgspec.json.encode(event) + b"\n\n"
