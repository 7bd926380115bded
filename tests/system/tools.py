"""Tools, and how the starter model, which knows none, is made to call them."""

from typing import Any

MODEL = "starter-chat"
HELLO: Any = [{"role": "user", "content": "hello"}]
LIGHT: dict[str, Any] = {
    "type": "object", "properties": {"state": {"enum": ["on", "off"]}}, "required": ["state"],
    "additionalProperties": False,
}  # fmt: skip
FAN: dict[str, Any] = {"type": "object", "properties": {"speed": {"enum": [1, 2, 3]}}, "required": ["speed"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": "set_light", "parameters": LIGHT}},
    {"type": "function", "function": {"name": "set_fan", "parameters": FAN}},
]
CALLS = "[set_light(state='on'), set_fan(speed=2)]"

SAYS_CALLS = {"structured_outputs": {"choice": [CALLS]}}
"""Makes the model, which knows no tools, say what one that knows them would: two calls in its parser's format."""
