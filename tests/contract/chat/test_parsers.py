"""Recipes may name the parsers that vLLM registers."""

import pytest

from registry.recipes.validation import PARSER_TABLES, parsers


@pytest.mark.real
def test_parser_names_are_those_that_vllm_registers() -> None:
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    registered = {"tool_call_parser": ToolParserManager, "reasoning_parser": ReasoningParserManager}
    for flag, (_, file, table) in PARSER_TABLES.items():
        assert parsers(file, table) == tuple(sorted(registered[flag].lazy_parsers)), flag
