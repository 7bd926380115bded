"""`allowed_tools` of `tool_choice`: show the model only the tools it may call.

| dialect          | form                                                                 |
|------------------|----------------------------------------------------------------------|
| Chat Completions | `{"type": "allowed_tools", "allowed_tools": {"mode": …, "tools": […]}}` |
| Responses        | `{"type": "allowed_tools", "mode": …, "tools": […]}`                  |

`mode` is `auto` or `required`, and replaces the choice. vLLM supports neither form.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from models.chat.requests.request import CHAT, RESPONSES, ChatRequest
from registry.base.wording import quoted
from registry.errors import BadRequest

TYPE = "allowed_tools"
MODES = ("auto", "required")


@dataclass(frozen=True, slots=True)
class GivenTools:
    """The client's original tools and choice, for answers that repeat them."""

    tools: msgspec.Raw
    choice: msgspec.Raw


def restrict(request: ChatRequest) -> GivenTools | None:
    """Remove all but the allowed tools. Returns None if the request has no such choice.

    Raises BadRequest for another mode, for an entry that is not among the tools, or if a call is required but no tool
    is allowed.
    """
    choice = request.object("tool_choice")
    if request.path not in (CHAT, RESPONSES) or choice.get("type") != TYPE:
        return None
    where = f"tool_choice.{TYPE}" if isinstance(choice.get(TYPE), dict) else "tool_choice"
    allowed = choice.get(TYPE, choice)
    if not isinstance(allowed, dict) or allowed.get("mode") not in MODES or not isinstance(allowed.get("tools"), list):
        raise BadRequest(f"'{where}' has a 'mode', which is {' or '.join(MODES)}, and a list of 'tools'.", param=where)
    tools = request.items("tools")
    kinds = [_kind(msgspec.json.decode(tool)) for tool in tools]
    permitted = [_kind(entry) for entry in allowed["tools"]]
    for index, (kind, name) in enumerate(permitted):
        if not kind or (kind, name) not in kinds:
            raise BadRequest(
                f"'tools' has no {quoted(kind)} {quoted(name)}: allow only tools that the request offers.",
                param=f"{where}.tools[{index}]",
            )
    left = [tool for tool, kind in zip(tools, kinds, strict=True) if kind in permitted]
    given = GivenTools(request.fields.get("tools", msgspec.Raw(b"[]")), request.fields["tool_choice"])
    if left:
        request.replace("tools", msgspec.json.encode(left))
        request.replace("tool_choice", msgspec.json.encode(allowed["mode"]))
    elif allowed["mode"] == "required":
        raise BadRequest("A call is required, and no tool is allowed: allow one.", param=f"{where}.tools")
    else:
        for name in ("tools", "tool_choice"):
            if name in request.fields:
                request.drop(name)
    return given


def _kind(tool: Any) -> tuple[str, str]:
    """Return type and name of a tool, or of an entry that refers to one."""
    if not isinstance(tool, dict):
        return "", ""
    kind = str(tool.get("type", ""))
    inner = tool.get(kind)
    name = inner.get("name") if isinstance(inner, dict) else tool.get("name", tool.get("server_label"))
    return kind, str(name or "")
