"""Which parsers a model gets, by its name and architecture: those that vLLM's pages and its makers' cards tell."""

import pytest

from launch.proposal.families import FAMILIES, family_of, has_parser
from registry.recipes.parsers import KINDS, parsers


@pytest.mark.parametrize(
    ("name", "architecture", "tools", "reasoning"),
    [
        # a reasoning parser takes an answer without thoughts for one long thought: its content would be empty
        ("Qwen/Qwen3-VL-8B-Instruct", "Qwen3VLForConditionalGeneration", "hermes", ""),
        ("Qwen/Qwen3-VL-8B-Thinking", "Qwen3VLForConditionalGeneration", "hermes", "qwen3"),
        ("Qwen/Qwen3-Omni-30B-A3B-Instruct", "Qwen3OmniMoeForConditionalGeneration", "hermes", ""),
        ("Qwen/Qwen3-4B-Instruct-2507", "Qwen3ForCausalLM", "hermes", ""),
        # calls as JSON, not as XML
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen3NextForCausalLM", "hermes", ""),
        ("Qwen/Qwen3-Next-80B-A3B-Thinking", "Qwen3NextForCausalLM", "hermes", "qwen3"),
        ("Qwen/Qwen3-Coder-Next", "Qwen3NextForCausalLM", "qwen3_coder", ""),
        ("Qwen/Qwen3.5-35B-A3B", "Qwen3_5MoeForConditionalGeneration", "qwen3_coder", "qwen3"),
        # networks that others use as well
        ("Salesforce/xLAM-2-3b-fc-r", "Qwen2ForCausalLM", "xlam", ""),
        ("moonshotai/Kimi-K2-Instruct-0905", "DeepseekV3ForCausalLM", "kimi_k2", ""),
        ("moonshotai/Kimi-K2-Thinking", "DeepseekV3ForCausalLM", "kimi_k2", "kimi_k2"),
        ("moonshotai/Kimi-K2.5", "KimiK25ForConditionalGeneration", "kimi_k2", "kimi_k2"),
        ("ai-sage/GigaChat3-10B-A1.8B", "DeepseekV3ForCausalLM", "gigachat3", ""),
        ("deepseek-ai/DeepSeek-V3.1", "DeepseekV3ForCausalLM", "deepseek_v31", "deepseek_v3"),
        ("deepseek-ai/DeepSeek-V3-0324", "DeepseekV3ForCausalLM", "deepseek_v3", ""),
        # vLLM has a parser for this one, and another for the next
        ("stepfun-ai/Step-3.5-Flash", "Step3p5ForCausalLM", "step3p5", "step3p5"),
        ("stepfun-ai/step3", "Step3VLForConditionalGeneration", "step3", "step3"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "NemotronHForCausalLM", "qwen3_coder", "nemotron_v3"),
    ],
)
def test_the_parsers_of_public_models(name: str, architecture: str, tools: str, reasoning: str) -> None:
    family = family_of(name, architecture)
    assert family is not None
    assert (family.tools, family.reasoning) == (tools, reasoning)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "NemotronHForCausalLM"),  # its parser lies in its own repository
        ("nvidia/Nemotron-Mini-4B-Instruct", "NemotronForCausalLM"),
    ],
)
def test_what_vllm_has_no_parser_for_gets_none(name: str, architecture: str) -> None:
    assert family_of(name, architecture) is None


def test_each_parser_is_one_that_vllm_has() -> None:
    for family in FAMILIES:
        for flag, name in (("tool_call_parser", family.tools), ("reasoning_parser", family.reasoning)):
            _, file, table = KINDS[flag]
            assert not name or name in parsers(file, table), family.words


def test_a_parser_without_its_package_is_not_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM imports it at the load, which failed."""
    for there in (True, False):
        monkeypatch.setattr("launch.proposal.families.find_spec", lambda name, there=there: there or None)
        assert has_parser("tool_call_parser", "cohere_command3") is there
        assert has_parser("reasoning_parser", "cohere_command3") is there
        assert has_parser("tool_call_parser", "hermes")
