"""Fields that vLLM would take and then leave out without a word: refused here, as the vendors do.

vLLM's request classes keep unknown fields and ignore them, so a client would get another answer than it asked for. What
no answer depends on is let through: clients send it by themselves.
"""

from collections.abc import Mapping
from typing import Any, get_type_hints

import msgspec

from registry.errors import BadRequest

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
VENDORS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", MESSAGES, COUNT_TOKENS)
"""Whose clients expect to be told of fields that are not known. vLLM's own paths ignore them."""

WITHOUT_EFFECT = frozenset(
    {
        "cache_control", "metadata", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "safety_identifier", "service_tier", "user",
    }
)  # fmt: skip
"""What the vendors keep books by, or make answers come sooner with; the answer is the same without."""
PLAIN: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "function_call": ("none",),
    "modalities": (["text"],),
    "store": (False,),
    "verbosity": ("medium",),
}
"""Values of fields that mean what the engine does anyway."""
EMPTY: tuple[object, ...] = (None, [])

Fields = Mapping[str, frozenset[str]]
"""Path to the fields that the engine knows."""


def known(app: Any) -> Fields:
    """What the request class of each path of vLLM's application has, aliases included."""
    found: dict[str, frozenset[str]] = {}
    for route in app.routes:
        path = getattr(route, "path", None)
        if path not in VENDORS:
            continue
        for kind in get_type_hints(route.endpoint).values():
            fields = getattr(kind, "model_fields", {})
            if "model" in fields:
                found[path] = frozenset(fields) | {field.alias for field in fields.values() if field.alias}
    if COUNT_TOKENS in found:  # the count is the same whatever else the message asks for
        found[COUNT_TOKENS] |= found.get(MESSAGES, frozenset())
    return found


def check(fields: Fields, path: str, body: bytes) -> None:
    """Raise BadRequest for a field of `body`, a JSON object, that the engine would ignore though it matters."""
    if path not in fields:
        return
    data: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    for name in sorted(data.keys() - fields[path] - WITHOUT_EFFECT):
        value = msgspec.json.decode(data[name])
        if value in EMPTY or value in PLAIN.get(name, ()):
            continue
        text = f"Unrecognized request argument supplied: {name}."
        if path in (MESSAGES, COUNT_TOKENS):
            text = f"{name}: Extra inputs are not permitted."
        raise BadRequest(f"{text} This engine would ignore it: leave it out.", param=name, code="unknown_parameter")
    if path == "/v1/responses":
        _responses(data)


class _Tool(msgspec.Struct):
    type: Any = None


def _responses(data: Mapping[str, msgspec.Raw]) -> None:
    """What vLLM has fields for, and does nothing with: stored responses and the vendor's own tools."""
    if msgspec.json.decode(data.get("store", b"false")) is True:
        raise BadRequest(
            "Responses are not stored here. Leave 'store' out, and send the conversation as 'input'.",
            param="store",
            code="unsupported_value",
        )
    try:
        tools = msgspec.json.decode(data.get("tools", b"[]"), type=list[_Tool])
    except msgspec.ValidationError:
        return  # vLLM says what is wrong with them
    for index, tool in enumerate(tools):
        if isinstance(tool.type, str) and tool.type != "function":
            raise BadRequest(
                f"Tools of type '{tool.type}' run on the vendor's servers; only functions can be had here.",
                param=f"tools[{index}].type",
                code="unsupported_value",
            )
