"""Make calls that a request requires fit the parameters of their tools.

For parsers without a grammar of their own vLLM puts the parameters of all tools into one schema. There their references
would lead elsewhere, and definitions of two tools could not have the same name. With a grammar it leaves the arguments
of tools without `strict` free.
"""

from importlib import import_module
from typing import Any

NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Keywords whose values are schemas by names that are no keywords."""
VALUES = frozenset({"enum", "const", "default", "examples"})
"""Keywords whose values are no schemas."""
DEEPEST = 200
"""Levels that are searched for references. Schemas of as many are refused."""


def patch() -> None:
    """Give each tool's parameters references of their own in vLLM's schema of required calls."""
    utils: Any = import_module("vllm.tool_parsers.utils")
    stock = utils._get_json_schema_from_tools
    if hasattr(stock, "roundhouse_stock"):
        return

    def schema_of_calls(*arguments: Any, **named: Any) -> Any:
        schema = stock(*arguments, **named)
        for index, call in enumerate(schema["items"]["anyOf"]):
            properties = call["properties"]
            properties["parameters"] = moved(properties["parameters"], index)
        return schema

    schema_of_calls.roundhouse_stock = stock  # type: ignore[attr-defined]
    utils._get_json_schema_from_tools = schema_of_calls
    utils._get_tool_schema_defs = lambda tools: {}  # they stay where the references lead


def moved(parameters: dict[str, Any], index: int) -> dict[str, Any]:
    """Return a tool's parameters with references that are right in the schema of all calls. index: among the tools."""
    root = {name: value for name, value in parameters.items() if name != "$id"}
    result: dict[str, Any] = _moved(root, index, 0)
    return result


def _moved(schema: Any, index: int, depth: int) -> Any:
    if depth > DEEPEST:
        return schema
    if isinstance(schema, list):
        return [_moved(one, index, depth + 1) for one in schema]
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Any] = {}
    for name, value in schema.items():
        if name in ("$ref", "$anchor") and isinstance(value, str):
            result[name] = _reference(value, index) if name == "$ref" else _anchor(value, index)
        elif name in NAMED and isinstance(value, dict):
            result[name] = {key: _moved(one, index, depth + 1) for key, one in value.items()}
        else:
            result[name] = value if name in VALUES else _moved(value, index, depth + 1)
    return result


def _reference(reference: str, index: int) -> str:
    if reference == "#" or reference.startswith("#/"):
        return f"#/items/anyOf/{index}/properties/parameters{reference[1:]}"
    return "#" + _anchor(reference[1:], index) if reference.startswith("#") else reference


def _anchor(name: str, index: int) -> str:
    return f"{name}.{index}"


def enforce(parser: Any, request: Any) -> None:
    """Let a parser constrain the arguments of calls that a request requires, whether or not their tools are strict."""
    if request.tool_choice not in (None, "none", "auto"):
        parser.tool_strict_level = import_module("vllm.tool_parsers.tool_strict_level").ToolStrictLevel.PARAMETER
