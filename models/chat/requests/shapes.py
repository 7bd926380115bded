"""Fields inside a field that vLLM would leave out without a word: of the answer's format, and of what a stream carries.

vLLM's classes for these objects keep what they do not know and ignore it. So a schema that lies where another server
looks for it (Text Generation Inference takes it as `value` of a `json_object`) would bind nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from registry.errors import BadRequest

CHAT_FORMATS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"type"}),
    "json_object": frozenset({"type"}),
    "json_schema": frozenset({"type", "json_schema"}),
}
"""Fields of `response_format` by its type; of other types vLLM says itself what is wrong."""
SCHEMA = frozenset({"name", "description", "schema", "strict"})
RESPONSES_FORMATS: Mapping[str, frozenset[str]] = {**CHAT_FORMATS, "json_schema": SCHEMA | {"type"}}
"""Fields of `text.format` by its type."""
STREAM = frozenset({"include_usage", "continuous_usage_stats", "include_obfuscation"})
TEXT = frozenset({"format", "verbosity"})
SCHEMA_GOES = " A schema goes into response_format.json_schema.schema, with the type json_schema."


def check_chat(data: Mapping[str, msgspec.Raw]) -> None:
    """What a body of Chat Completions or Completions has in `response_format` and `stream_options`.

    Raises BadRequest for a field of them that would be ignored.
    """
    response_format = _object(data, "response_format")
    hint = SCHEMA_GOES if response_format.get("type") == "json_object" else ""
    _only(response_format, CHAT_FORMATS.get(str(response_format.get("type")), response_format), "response_format", hint)
    schema = response_format.get("json_schema")
    if isinstance(schema, dict):
        _only(schema, SCHEMA, "response_format.json_schema")
    _only(_object(data, "stream_options"), STREAM, "stream_options")


def check_responses(data: Mapping[str, msgspec.Raw]) -> None:
    """What a body of Responses has in `text`. Raises BadRequest for a field of it that would be ignored."""
    text = _object(data, "text")
    _only(text, TEXT, "text")
    if text.get("verbosity") not in (None, "medium"):
        raise BadRequest(
            "No model here knows a verbosity: leave 'text.verbosity' out.",
            param="text.verbosity",
            code="unsupported_value",
        )
    text_format = text.get("format")
    if isinstance(text_format, dict):
        _only(text_format, RESPONSES_FORMATS.get(str(text_format.get("type")), text_format), "text.format")


def check_messages(data: Mapping[str, msgspec.Raw], *, effort: bool) -> None:
    """What a body of Messages has in `output_config`. Raises BadRequest for an effort that the model does not know."""
    if not effort and _object(data, "output_config").get("effort") is not None:
        raise BadRequest(
            "output_config.effort: this model knows no effort of reasoning: leave it out.",
            param="output_config.effort",
            code="unsupported_value",
        )


def _object(data: Mapping[str, msgspec.Raw], name: str) -> dict[str, Any]:
    """The object of this name; empty when there is none, or something else, which vLLM refuses."""
    value = msgspec.json.decode(data.get(name, b"null"))
    return value if isinstance(value, dict) else {}


def _only(fields: Mapping[str, Any], known: Iterable[str], at: str, hint: str = "") -> None:
    for name in sorted(fields.keys() - set(known)):
        if fields[name] is not None:
            raise BadRequest(
                f"Unrecognized request argument supplied: {at}.{name}. This engine would ignore it: leave it out."
                f"{hint}",
                param=f"{at}.{name}",
                code="unknown_parameter",
            )
