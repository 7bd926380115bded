"""Names of parsers in recipes are checked against those of vLLM."""

import pytest

from registry.recipes.loading import load_recipes
from registry.recipes.validation import parser_faults, parsers
from tests.unit.registry.recipes.files import GOOD, Write, faults

PARSERS = "engine: {{name: vllm, flags: {}}}"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("{tool_call_parser: hermess}", "'engine.flags.tool_call_parser' cannot be 'hermess'; write 'hermes', or "),
        ("{tool-call-parser: nobody}", "'engine.flags.tool-call-parser' cannot be 'nobody'; write one of: apertus, "),
        ("{reasoning_parser: qwen33}", "'engine.flags.reasoning_parser' cannot be 'qwen33'; write 'qwen3', or "),
    ],
)
def test_a_parser_that_vllm_lacks_is_a_fault(write: Write, flags: str, words: str) -> None:
    recipe = GOOD.format("a").replace("engine: {name: vllm}", PARSERS.format(flags))
    [fault] = faults(write(recipe))
    assert fault.startswith(f"r.yaml:5: {words}")
    known = fault.rpartition(": ")[2].split(", ")
    assert {"deepseek_v3", "granite", "mistral"} <= set(known)
    reported = faults(write(recipe.replace("task: chat", "task: walk")))
    assert len(reported) == 2, "together with other faults"


@pytest.mark.parametrize(
    "flags",
    [
        "{tool_call_parser: hermes, reasoning_parser: qwen3}",
        "{tool_call_parser: mine, tool_parser_plugin: /srv/mine.py}",
        "{reasoning-parser: mine, reasoning-parser-plugin: /srv/mine.py}",
    ],
)
def test_vllms_parsers_and_plugins_are_accepted(write: Write, flags: str) -> None:
    [recipe] = load_recipes(write(GOOD.format("a").replace("engine: {name: vllm}", PARSERS.format(flags))))
    assert recipe.engine.flags


def test_names_of_parsers_are_unchecked_if_vllm_has_no_such_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsers("tool_parsers/__init__.py", "_ELSEWHERE") == ()
    assert parsers("no/such/file.py", "_ELSEWHERE") == ()
    monkeypatch.setattr("registry.recipes.validation.parsers", lambda file, table: ())
    flags = {"tool_call_parser": "nobody"}
    assert list(parser_faults({"engine": {"name": "vllm", "flags": flags}})) == []
