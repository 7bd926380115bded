"""The grammar of a call that a request requires is that of its tool's parameters, by vLLM's own parsers."""

import copy
import json
from typing import Any

import jsonschema
import pytest

from models.chat.grammars import language
from models.chat.vllm.answers.required_calls import moved
from tests.contract.vllm.answers.test_whole import serving, tokenizer

pytestmark = pytest.mark.real
TREE = {
    "type": "object",
    "properties": {
        "one": {"$ref": "#/$defs/leaf"}, "same": {"$ref": "#/properties/one"},
        "tree": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
    },
    "required": ["one", "same", "tree"], "$defs": {"leaf": {"enum": ["oak"]}},
}  # fmt: skip
OTHER = {
    "type": "object", "properties": {"one": {"$ref": "#/$defs/leaf"}}, "required": ["one"],
    "$defs": {"leaf": {"enum": ["ash"]}},
}  # fmt: skip
NAMED = {"type": "function", "function": {"name": "grow"}}


def constraint(tool_parser: str, tool_choice: Any) -> Any:
    """Return the constraint that vLLM makes of a request with two tools."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    tools = [
        {"type": "function", "function": {"name": name, "parameters": copy.deepcopy(schema)}}
        for name, schema in (("grow", TREE), ("fell", OTHER))
    ]
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": tool_choice}
    sent: Any = ChatCompletionRequest.model_validate(body)
    return serving(tool_parser, None).parser_cls(tokenizer(), sent.tools).adjust_request(sent).structured_outputs


def schemas(tag: Any) -> list[Any]:
    """Return the JSON schemas in a structural tag."""
    if not isinstance(tag, dict | list):
        return []
    if isinstance(tag, dict) and tag.get("type") == "json_schema":
        return [tag["json_schema"]]
    return [schema for part in (tag.values() if isinstance(tag, dict) else tag) for schema in schemas(part)]


def test_references_lead_into_the_tool_in_the_schema_of_all_calls() -> None:
    accepts = jsonschema.Draft202012Validator(language.rewrite(constraint("pythonic", "required").json)).is_valid
    tree = {"one": "oak", "same": "oak", "tree": None}
    good = [("grow", tree), ("grow", {**tree, "tree": tree}), ("fell", {"one": "ash"})]
    bad = [
        ("grow", {**tree, "one": "ash"}),
        ("grow", {**tree, "tree": [{"name": "fell", "parameters": {"one": "ash"}}]}),
    ]
    for name, arguments in good:
        assert accepts([{"name": name, "parameters": arguments}]), arguments
    for name, arguments in bad:
        assert not accepts([{"name": name, "parameters": arguments}]), arguments


@pytest.mark.parametrize("tool_parser", ["hermes", "llama3_json", "qwen3_xml", "openai"])
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_arguments_are_constrained_in_the_models_own_format(tool_parser: str, choice: Any) -> None:
    expected = [TREE] if choice == NAMED else [TREE, OTHER]
    found = schemas(json.loads(constraint(tool_parser, choice).structural_tag))
    assert [schema for number, schema in enumerate(found) if schema not in found[:number]] == expected


def test_only_references_and_anchors_are_moved() -> None:
    values = {"enum": ["#", {"$ref": "#/x"}], "default": {"$ref": "#"}}
    schema = {"$id": "https://example.com", "properties": {"enum": {"$ref": "#leaf"}, "$ref": {"$anchor": "leaf"}}}
    assert moved({**schema, **values}, 3) == {
        "properties": {"enum": {"$ref": "#leaf.3"}, "$ref": {"$anchor": "leaf.3"}},
        **values,
    }
