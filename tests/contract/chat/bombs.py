"""Grammars made to break an engine, as fields of a chat request."""

from typing import Any

AMBIGUOUS = 'root ::= root root root | root root | "a" | "b"'


def of_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}}


def properties(count: int, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i:04}": {"type": "string", **more} for i in range(count)}}


def guided(**constraint: Any) -> dict[str, Any]:
    return {"structured_outputs": constraint}


PATTERNED = properties(5_000, pattern="^[a-z]{3}[0-9]+$")
CIRCLE = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
ENUM = {"enum": [f"value {i}" for i in range(50_000)]}
REPEATED = {"type": "string", "pattern": "^(a|b){1,1000000000}$"}
ATTACKS: dict[str, dict[str, Any]] = {
    "100,000 choices": guided(choice=[str(i) for i in range(100_000)]),
    "2,000 choices": guided(choice=[f"choice number {i * 7919}" for i in range(2_000)]),
    "5,000 patterned properties": of_schema(PATTERNED),
    "1,000 patterned properties": of_schema(properties(1_000, pattern="^[a-z]{3}[0-9]+$")),
    "300 optional properties": of_schema(properties(300)),
    "1,000 optional properties": of_schema(properties(1_000)),
    "an enum of 50,000": of_schema(ENUM),
    "a repetition of a billion": guided(regex="(a|b){1000000000}"),
    "the same in a pattern": of_schema(REPEATED),
    "repetitions of repetitions": guided(regex="(((a|bc){1,99}d?){1,99}e?){1,99}"),
    "a grammar that recurs to the left": guided(grammar='root ::= root "a" | "a"'),
    "an ambiguous grammar": guided(grammar=AMBIGUOUS),
    "rules that all name one another": guided(
        grammar="root ::= "
        + " | ".join(f"r{i} r{(i + 1) % 40} r{i * 7 % 40}" for i in range(40))
        + "\n"
        + "\n".join(f'r{i} ::= root r{i * 3 % 40} | [a-c] | r{(i + 5) % 40} root | ""' for i in range(40))
    ),
    "a circle of references": of_schema(CIRCLE),
    "a reference to itself": of_schema({"$ref": "#"}),
    "a structural tag": {
        "response_format": {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": PATTERNED}}
    },
}


def _tools(choice: Any, *parameters: dict[str, Any]) -> dict[str, Any]:
    made = [{"type": "function", "function": {"name": f"f{i}", "parameters": p}} for i, p in enumerate(parameters)]
    return {"tools": made, "tool_choice": choice}


NAMED_TOOL = {"type": "function", "function": {"name": "f0"}}
TOOLS: dict[str, dict[str, Any]] = {
    f"{what}, {how}": _tools(choice, *parameters)
    for how, choice in (("named", NAMED_TOOL), ("required", "required"))
    for what, parameters in (
        ("a tool of 5,000 patterned properties", [PATTERNED]),
        ("a tool of 300 optional properties", [properties(300)]),
        ("a tool that refers to itself", [{"$ref": "#"}]),
        ("a tool with a circle of references", [CIRCLE]),
        ("a tool with an enum of 50,000", [{"type": "object", "properties": {"a": ENUM}}]),
        ("a tool with a repetition of a billion", [{"type": "object", "properties": {"a": REPEATED}}]),
        ("100 tools of 200 properties", [properties(200)] * 100),
        ("2,000 tools", [properties(1)] * 2_000),
    )
}
"""Schemas of tools, from which vLLM makes a grammar if a call is required."""
