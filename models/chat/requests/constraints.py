"""Find the JSON schema that constrains an answer, in any request field."""

from typing import Any

from models.chat.requests.request import CHAT, MESSAGES, RESPONSES, ChatRequest

Path = tuple[str | int, ...]
CALLS = ("items", "anyOf")
"""The path to the functions in vLLM's schema when one must be called: a list of calls, of any of them."""
PARAMETERS = ("properties", "parameters")
FIELDS = {CHAT: "function.parameters", RESPONSES: "parameters", MESSAGES: "input_schema"}
"""A function's parameters in an entry of `tools`, by dialect."""
ANY = ("required", {"type": "any"})
"""Choices that demand a call of any function."""


def locate(request: ChatRequest, path: Path) -> tuple[str, Path]:
    """The field that a schema is from, and a path in it, by a path in the schema that vLLM made of the request."""
    choice = request.value("tool_choice")
    if "tools" in request.fields and (choice in ANY or _name(choice)):
        if path[:2] == CALLS and path[3:5] == PARAMETERS:
            return f"tools[{path[2]}].{FIELDS.get(request.path, '')}", path[5:]
        if (index := _index(request, _name(choice))) is not None:
            return f"tools[{index}].{FIELDS.get(request.path, '')}", path
        return "tools", path
    if request.path == RESPONSES and request.object("text").get("format"):
        return "text.format.schema", path
    if request.path == MESSAGES and "output_config" in request.fields:
        return "output_config.format.schema", path
    form = request.object("response_format").get("type")
    if form in ("json_schema", "structural_tag"):
        return "response_format" + (".json_schema.schema" if form == "json_schema" else ""), path
    if "structured_outputs" in request.fields:
        tag = request.object("structured_outputs").get("structural_tag") is not None
        return f"structured_outputs.{'structural_tag' if tag else 'json'}", path
    return "tools", path


def _name(choice: Any) -> str:
    """The function that `tool_choice` names; empty: none."""
    if not isinstance(choice, dict):
        return ""
    inner = choice.get("function")
    return str((inner if isinstance(inner, dict) else choice).get("name") or "")


def _index(request: ChatRequest, name: str) -> int | None:
    for index, tool in enumerate(request.value("tools") or ()):
        if isinstance(tool, dict) and _name(tool) == name:
            return index
    return None
