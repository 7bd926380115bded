"""The parsers of a model by its name, architecture and template, as in vLLM's pages and the makers' cards."""

import pytest

from launch.proposal.families import FAMILIES, family_of, has_parser
from registry.recipes.validation import PARSER_TABLES, parsers
from tests.unit.launch.public.templates import (
    BEGINS,
    FUNCTIONS,
    HISTORY,
    JSON,
    KEYS,
    LLAMA,
    MAY_THINK,
    MISTRAL,
    OF_A_MESSAGE,
    ON_REQUEST,
    PIECES,
    THINKS,
    TOOLS,
    XML,
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "architecture", "template", "tools", "reasoning"),
    [
        # a reasoning parser takes an answer without thoughts for one long thought: its content would be empty
        ("Qwen/Qwen3-VL-8B-Instruct", "Qwen3VLForConditionalGeneration", JSON, "hermes", ""),
        ("Qwen/Qwen3-VL-8B-Thinking", "Qwen3VLForConditionalGeneration", JSON + THINKS, "hermes", "qwen3"),
        ("Qwen/Qwen3-Omni-30B-A3B-Instruct", "Qwen3OmniMoeForConditionalGeneration", JSON, "hermes", ""),
        ("Qwen/Qwen3-4B-Instruct-2507", "Qwen3ForCausalLM", JSON + HISTORY + BEGINS, "hermes", ""),
        ("Qwen/Qwen3-4B", "Qwen3ForCausalLM", JSON + HISTORY + MAY_THINK, "hermes", "qwen3"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2ForCausalLM", JSON + BEGINS, "hermes", ""),
        # calls as JSON, not as XML
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen3NextForCausalLM", JSON, "hermes", ""),
        ("Qwen/Qwen3-Next-80B-A3B-Thinking", "Qwen3NextForCausalLM", JSON + THINKS, "hermes", "qwen3"),
        ("Qwen/Qwen3-Coder-Next", "Qwen3NextForCausalLM", XML, "qwen3_coder", ""),
        ("Qwen/Qwen3.5-35B-A3B", "Qwen3_5MoeForConditionalGeneration", XML + MAY_THINK, "qwen3_coder", "qwen3"),
        # networks that others use as well
        ("Salesforce/xLAM-2-3b-fc-r", "Qwen2ForCausalLM", TOOLS, "xlam", ""),
        ("moonshotai/Kimi-K2-Instruct-0905", "DeepseekV3ForCausalLM", TOOLS, "kimi_k2", ""),
        ("moonshotai/Kimi-K2-Thinking", "DeepseekV3ForCausalLM", TOOLS, "kimi_k2", "kimi_k2"),
        ("moonshotai/Kimi-K2.5", "KimiK25ForConditionalGeneration", TOOLS, "kimi_k2", "kimi_k2"),
        ("ai-sage/GigaChat3-10B-A1.8B", "DeepseekV3ForCausalLM", TOOLS, "gigachat3", ""),
        ("deepseek-ai/DeepSeek-V3.1", "DeepseekV3ForCausalLM", TOOLS, "deepseek_v31", "deepseek_v3"),
        ("deepseek-ai/DeepSeek-V3-0324", "DeepseekV3ForCausalLM", TOOLS, "deepseek_v3", ""),
        ("zai-org/GLM-4.5V", "Glm4vMoeForConditionalGeneration", KEYS, "glm45", "glm45"),
        ("mistralai/Ministral-3-8B-Reasoning-2512", "Mistral3ForConditionalGeneration", MISTRAL, "mistral", "mistral"),
        ("mistralai/Ministral-3-8B-Instruct-2512", "Mistral3ForConditionalGeneration", MISTRAL, "mistral", ""),
        ("microsoft/Phi-4-reasoning-plus", "Phi3ForCausalLM", HISTORY, "", "deepseek_r1"),
        ("ibm-granite/granite-4.0-350m", "GraniteForCausalLM", JSON, "granite4", ""),
        ("ibm-granite/granite-3.3-2b-instruct", "GraniteForCausalLM", TOOLS, "granite", ""),
        # it may not think, by its system message: only with marks that are tokens a parser would know
        ("HuggingFaceTB/SmolLM3-3B", "SmolLM3ForCausalLM", JSON + MAY_THINK, "hermes", ""),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "LlamaForCausalLM", PIECES, "hermes", ""),
        ("NousResearch/Hermes-4-14B", "Qwen3ForCausalLM", JSON + MAY_THINK, "hermes", ""),
        # another's upload, under its own name
        ("NousResearch/Meta-Llama-3.1-8B-Instruct", "LlamaForCausalLM", LLAMA, "llama3_json", ""),
        # vLLM has a parser for this one, and another for the next
        ("stepfun-ai/Step-3.5-Flash", "Step3p5ForCausalLM", TOOLS, "step3p5", "step3p5"),
        ("stepfun-ai/step3", "Step3VLForConditionalGeneration", TOOLS, "step3", "step3"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "NemotronHForCausalLM", XML, "qwen3_coder", "nemotron_v3"),
        ("deepseek-ai/DeepSeek-V4.1", "DeepseekV41ForCausalLM", "", "deepseek_v41", "deepseek_v41"),
        ("deepseek-ai/DeepSeek-V4", "DeepseekV4ForCausalLM", "", "deepseek_v4", "deepseek_v4"),
        ("moonshotai/Kimi-K3", "KimiK3ForConditionalGeneration", "", "kimi_k3", "kimi_k3"),
        ("tencent/Hy3", "HYV3ForCausalLM", TOOLS, "hy_v3", "hy_v3"),
        ("poolside/Laguna-XS", "LagunaForCausalLM", TOOLS, "poolside_v1", "poolside_v1"),
        ("inclusionAI/Ling-3.0", "BailingMoeV3ForCausalLM", KEYS, "ling3", "ling3"),
        ("inclusionAI/Ling-2.0", "BailingMoeV2ForCausalLM", JSON, "hermes", ""),
        ("MiniMaxAI/MiniMax-M3", "MiniMaxM3SparseForConditionalGeneration", TOOLS, "minimax_m3", "minimax_m3"),
        ("openbmb/MiniCPM5-1B", "LlamaForCausalLM", FUNCTIONS + MAY_THINK, "minicpm5", "qwen3"),
    ],
)
def test_the_parsers_of_public_models(name: str, architecture: str, template: str, tools: str, reasoning: str) -> None:
    family = family_of(name, architecture, template)
    assert family is not None
    assert (family.tools, family.reasoning) == (tools, reasoning)


@pytest.mark.parametrize(
    ("architecture", "template", "tools", "reasoning"),
    [
        # the answers of Qwen3 Instruct, trained further, had no content: all of them was taken for thoughts
        ("Qwen3ForCausalLM", JSON + HISTORY + BEGINS, "hermes", ""),
        ("Qwen3ForCausalLM", JSON + HISTORY + MAY_THINK, "hermes", "qwen3"),
        ("Qwen3MoeForCausalLM", XML + BEGINS, "qwen3_coder", ""),
        ("LlamaForCausalLM", LLAMA + BEGINS, "llama3_json", ""),
        ("LlamaForCausalLM", JSON + BEGINS, "hermes", ""),
        # a load with Mistral's parser ends where the tokenizer has no [TOOL_CALLS]
        ("MistralForCausalLM", PIECES + BEGINS, "hermes", ""),
        ("MistralForCausalLM", MISTRAL + BEGINS, "mistral", ""),
        ("Qwen2ForCausalLM", HISTORY + THINKS, "", "qwen3"),
        ("Qwen2ForCausalLM", JSON + HISTORY + THINKS, "hermes", "qwen3"),
        ("NewForCausalLM", JSON + THINKS, "hermes", "qwen3"),
        ("NewForCausalLM", JSON + MAY_THINK, "hermes", ""),
        ("NewForCausalLM", XML + BEGINS, "qwen3_coder", ""),
    ],
)
def test_a_model_with_an_unknown_name_gets_parsers_by_its_template(
    architecture: str, template: str, tools: str, reasoning: str
) -> None:
    """Such as a fine-tuned model in a local folder."""
    family = family_of("/home/me/support-merged", architecture, template)
    assert family is not None
    assert (family.tools, family.reasoning) == (tools, reasoning)


@pytest.mark.parametrize(
    ("name", "architecture", "template"),
    [
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "NemotronHForCausalLM", TOOLS),  # its parser lies in its own repository
        ("nvidia/Nemotron-Mini-4B-Instruct", "NemotronForCausalLM", TOOLS),
        # no mark of thoughts: with a parser of some the load ended, as the tokenizer has none
        ("Qwen/QwQ-32B-Preview", "Qwen2ForCausalLM", TOOLS + BEGINS),
        ("open-thoughts/OpenThinker-7B", "Qwen2ForCausalLM", TOOLS + BEGINS),
        ("nvidia/Llama-3.1-Nemotron-Nano-8B-v1", "LlamaForCausalLM", TOOLS + BEGINS),
        ("zephyr-7b-beta", "MistralForCausalLM", BEGINS),
        ("microsoft/Phi-4-mini-instruct", "Phi3ForCausalLM", OF_A_MESSAGE),
        # arguments as JSON; Qwen's parser found none of them
        (
            "meetkai/functionary-small-v3.1",
            "LlamaForCausalLM",
            TOOLS + "{{ '<function=name>{ \"one\": 1 }</function>' }}",
        ),
        ("a/model", "NewForCausalLM", ON_REQUEST),  # who does not ask gets no thoughts
    ],
)
def test_a_model_without_a_parser_in_vllm_gets_none(name: str, architecture: str, template: str) -> None:
    assert family_of(name, architecture, template) is None


def test_each_parser_exists_in_vllm() -> None:
    for family in FAMILIES:
        for flag, name in (("tool_call_parser", family.tools), ("reasoning_parser", family.reasoning)):
            _, file, table = PARSER_TABLES[flag]
            assert not name or name in parsers(file, table), family.words


def test_a_parser_without_its_package_is_not_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM imports the package at the load, which would fail."""
    for there in (True, False):
        monkeypatch.setattr("launch.proposal.families.find_spec", lambda name, there=there: there or None)
        assert has_parser("tool_call_parser", "cohere_command3") is there
        assert has_parser("reasoning_parser", "cohere_command3") is there
        assert has_parser("tool_call_parser", "hermes")
