"""Parsers for tool calls and reasoning, by family.

Sources: vLLM's pages docs.vllm.ai/en/stable/features/tool_calling and .../features/reasoning_outputs, whose tables name
models and parsers, with the parsers' own docstrings in vLLM 0.32 (vllm/tool_parsers, vllm/reasoning) where a name was
changed since. A parser is proposed only if the installed vLLM has it, and one for tools only where the model's chat
template mentions tools: without that the model never sees them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from registry.recipes.parsers import KINDS, parsers


@dataclass(frozen=True, slots=True)
class Family:
    """`architecture` and `name` are patterns that must both be found; the first row that fits counts."""

    name: str
    architecture: str
    tools: str = ""
    reasoning: str = ""
    words: str = ""


TOOL_PAGE = "vLLM's page on tool calling"
REASONING_PAGE = "vLLM's page on reasoning outputs"
NEEDS: Mapping[str, str] = {"cohere_command3": "cohere_melody"}
"""Parser to a package that vLLM does not bring along, and without which a load with this parser fails."""

FAMILIES: tuple[Family, ...] = (
    # name (of the source), architecture, tools, reasoning, what it is called
    Family("deepseek-r1|openthinker|r1-distill", "", "", "deepseek_r1", "DeepSeek-R1 and what was distilled from it"),
    Family("xlam", "", "xlam", "", "xLAM"),
    Family("qwq", "^Qwen2", "hermes", "deepseek_r1", "QwQ"),
    Family("qwen3-coder", "^Qwen3", "qwen3_coder", "", "Qwen3-Coder"),
    Family("", "^Qwen3_5", "qwen3_coder", "qwen3", "Qwen3.5"),
    Family("instruct", "^Qwen3", "hermes", "", "Qwen3 Instruct, which does not think"),
    Family("", "^Qwen3", "hermes", "qwen3", "Qwen3"),
    Family("", "^Qwen2", "hermes", "", "Qwen2.5"),
    Family("hermes|nous", "", "hermes", "", "Hermes"),
    Family("", "^Llama4", "llama4_pythonic", "", "Llama 4"),
    Family("magistral", "^Mistral", "mistral", "mistral", "Magistral"),
    Family("", "^Mistral|^Mixtral|^Pixtral|^Ministral", "mistral", "", "Mistral"),
    Family("nemotron-?3", "^Nemotron", "qwen3_coder", "nemotron_v3", "Nemotron 3"),
    Family("granite-20b-functioncalling", "", "granite-20b-fc", "", "Granite 20B function calling"),
    Family("", "^GraniteMoeHybrid", "granite4", "", "Granite 4"),
    Family("granite-3\\.2", "^Granite", "granite", "granite", "Granite 3.2"),
    Family("", "^Granite", "granite", "", "Granite 3"),
    Family("kimi-k2.*instruct", "^Deepseek|^Kimi", "kimi_k2", "", "Kimi K2 Instruct, which does not think"),
    Family("kimi-k2", "^Deepseek|^Kimi", "kimi_k2", "kimi_k2", "Kimi K2"),
    Family("gigachat-?3", "^Deepseek", "gigachat3", "", "GigaChat 3"),
    Family("", "^DeepseekV4", "deepseek_v4", "deepseek_v4", "DeepSeek V4"),
    Family("", "^DeepseekV32", "deepseek_v32", "deepseek_v3", "DeepSeek V3.2"),
    Family("v3\\.1", "^DeepseekV3", "deepseek_v31", "deepseek_v3", "DeepSeek V3.1"),
    Family("", "^DeepseekV3", "deepseek_v3", "", "DeepSeek V3"),
    Family("glm-?4\\.[67]|glm-?5", "^Glm", "glm47", "glm45", "GLM-4.6 and later"),
    Family("", "^Glm4Moe", "glm45", "glm45", "GLM-4.5"),
    Family("", "^GptOss", "openai", "openai_gptoss", "gpt-oss"),
    Family("", "^InternLM2", "internlm", "", "InternLM 2.5"),
    Family("", "^Jamba", "jamba", "", "Jamba"),
    Family("thinking", "^Ernie4_5", "ernie45", "ernie45", "ERNIE 4.5 Thinking"),
    Family("", "^HunYuanMoE", "hunyuan_a13b", "hunyuan_a13b", "Hunyuan A13B"),
    Family("", "^MiniMaxM2", "minimax_m2", "minimax_m2", "MiniMax M2"),
    Family("", "^SeedOss", "seed_oss", "seed_oss", "Seed-OSS"),
    Family("", "^Step3p", "step3p5", "step3p5", "Step-3.5 and later"),
    Family("", "^Step3", "step3", "step3", "Step-3"),
    Family("think", "^Olmo3", "olmo3", "olmo3", "Olmo 3 Think"),
    Family("", "^Olmo3", "olmo3", "", "Olmo 3"),
    Family("", "^Gemma4", "gemma4", "gemma4", "Gemma 4"),
    Family("functiongemma", "", "functiongemma", "", "FunctionGemma"),
    Family("phi-4-mini", "^Phi3", "phi4_mini_json", "", "Phi-4-mini"),
    Family("", "^Lfm2", "lfm2", "", "LFM2"),
    Family("", "^Apertus", "apertus", "", "Apertus"),
    Family("", "^Cohere2", "cohere_command3", "cohere_command3", "Command A"),
    Family("", "^MiMo", "mimo", "mimo", "MiMo"),
    Family("llama-?3|smaug|storm", "^Llama", "llama3_json", "", "Llama 3.1 and later"),
)


def family_of(name: str, architecture: str) -> Family | None:
    """The first row that fits. `name`: of the source, as its makers wrote it."""
    for family in FAMILIES:
        if re.search(family.name, name, re.IGNORECASE) and re.search(family.architecture, architecture):
            return family
    return None


def has_parser(flag: str, name: str) -> bool:
    """Whether the installed vLLM has it, with what it needs. `flag`: one of `registry.recipes.parsers.KINDS`."""
    _, file, table = KINDS[flag]
    known = parsers(file, table)
    return (not known or name in known) and (name not in NEEDS or find_spec(NEEDS[name]) is not None)
