"""Parsers for tool calls and reasoning, by model family.

Sources: vLLM's pages docs.vllm.ai/en/stable/features/tool_calling and .../features/reasoning_outputs, whose tables name
models and parsers; the parsers' docstrings in vLLM 0.32 (vllm/tool_parsers, vllm/reasoning) for names that changed; and
the makers' cards (Phi-4-reasoning, Ministral 3). A parser is proposed only if the installed vLLM has it, and a tool
parser only if the model's chat template shows tools to the model.

Names are not reliable: for a fine-tuned or re-uploaded model only the template shows how it writes calls and whether it
thinks. A reasoning parser takes the answer of a model that does not think for a thought, and some parsers make the load
fail if the tokenizer lacks their marks.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from launch.files.listing import Listing
from registry.errors import Unfit
from registry.recipes.validation import PARSER_TABLES, parsers


@dataclass(frozen=True, slots=True)
class Family:
    """`name`, `architecture`, `template` are patterns that must all match. First row wins."""

    name: str
    architecture: str
    template: str = ""
    tools: str = ""
    reasoning: str = ""
    words: str = ""
    begins: str = ""
    """A further pattern for how the template begins an answer."""


TOOL_PAGE = "vLLM's page on tool calling"
REASONING_PAGE = "vLLM's page on reasoning outputs"
NEEDS: Mapping[str, str] = {"cohere_command3": "cohere_melody"}
"""Parser to a package that it needs and vLLM does not install."""

JSON_CALLS = r"""<tool_call>(?:\\n|\s|["']\s*-?\}\}|\{\{-?\s*["'])*\{\\?["']"""
"""Calls as JSON between these marks, as shown to the model by an example in the template."""
LLAMA_CALLS, MISTRAL_CALLS = r'"parameters": dictionary', r"\[TOOL_CALLS\]"
PROMPT = "add_generation_prompt"
"""The variable after whose last use a template begins an answer."""
MAY_THINK = "<think>"
"""The mark in templates that write thoughts, or empty ones if thinking is off."""
THINKS = r"\A(?!.*(?:thinking|</think>)).*<think>"
"""Templates that always write thoughts. If they can be turned off, a parser must know this mark as a token."""

FAMILIES: tuple[Family, ...] = (
    # name (of the source), architecture, chat template, tools, reasoning, what it is called
    Family("deepseek-r1|r1-distill", "", "</think>", "", "deepseek_r1", "DeepSeek-R1 and its distillations"),
    Family("hermes", "", "<tool_call>", "hermes", "", "Hermes"),
    Family("xlam", "", "", "xlam", "", "xLAM"),
    Family("qwq", "^Qwen2", "</think>", "hermes", "deepseek_r1", "QwQ"),
    Family("", "^Qwen3_5", "", "qwen3_coder", "qwen3", "Qwen3.5"),
    Family("", "^Qwen3", "<function=", "qwen3_coder", "", "Qwen3-Coder"),
    Family("instruct", "^Qwen3", "", "hermes", "", "Qwen3 Instruct, which does not think"),
    Family("", "^Qwen3", "", "hermes", "qwen3", "Qwen3", begins=MAY_THINK),
    Family("", "^Llama4", "", "llama4_pythonic", "", "Llama 4"),
    Family(
        "magistral|reasoning", "^M.*istral", rf"{MISTRAL_CALLS}|\[THINK", "mistral", "mistral", "Mistral that thinks"
    ),
    Family("", "^Mistral|^Mixtral|^Pixtral|^Ministral", MISTRAL_CALLS, "mistral", "", "Mistral"),
    Family("nemotron-?3", "^Nemotron", "", "qwen3_coder", "nemotron_v3", "Nemotron 3"),
    Family("granite-20b-functioncalling", "", "", "granite-20b-fc", "", "Granite 20B function calling"),
    Family("", "^Granite", JSON_CALLS, "granite4", "", "Granite 4"),
    Family("granite-3\\.2", "^Granite", "", "granite", "granite", "Granite 3.2"),
    Family("", "^Granite", "", "granite", "", "Granite 3"),
    Family("kimi-k2.*instruct", "^Deepseek|^Kimi", "", "kimi_k2", "", "Kimi K2 Instruct, which does not think"),
    Family("kimi-k2", "^Deepseek|^Kimi", "", "kimi_k2", "kimi_k2", "Kimi K2"),
    Family("", "^KimiK3", "", "kimi_k3", "kimi_k3", "Kimi K3"),
    Family("gigachat-?3", "^Deepseek", "", "gigachat3", "", "GigaChat 3"),
    Family("", "^DeepseekV41", "", "deepseek_v41", "deepseek_v41", "DeepSeek V4.1"),
    Family("", "^DeepseekV4", "", "deepseek_v4", "deepseek_v4", "DeepSeek V4"),
    Family("", "^DeepseekV32", "", "deepseek_v32", "deepseek_v3", "DeepSeek V3.2"),
    Family("v3\\.1", "^DeepseekV3", "", "deepseek_v31", "deepseek_v3", "DeepSeek V3.1"),
    Family("", "^DeepseekV3", "", "deepseek_v3", "", "DeepSeek V3"),
    Family("glm-?4\\.[67]|glm-?5", "^Glm", "", "glm47", "glm45", "GLM-4.6 and later"),
    Family("", "^Glm4v?Moe", "", "glm45", "glm45", "GLM-4.5"),
    Family("", "^GptOss", "", "openai", "openai_gptoss", "gpt-oss"),
    Family("", "^InternLM2", "", "internlm", "", "InternLM 2.5"),
    Family("", "^Jamba", "", "jamba", "", "Jamba"),
    Family("thinking", "^Ernie4_5", "", "ernie45", "ernie45", "ERNIE 4.5 Thinking"),
    Family("", "^HunYuanMoE", "", "hunyuan_a13b", "hunyuan_a13b", "Hunyuan A13B"),
    Family("", "^HYV3", "", "hy_v3", "hy_v3", "Hy3"),
    Family("", "^HYV4", "", "hy_v4", "hy_v4", "Hy4"),
    Family("", "^Laguna", "", "poolside_v1", "poolside_v1", "Laguna"),
    Family("", "^BailingMoeV3", "", "ling3", "ling3", "Ling 3"),
    Family("minicpm-?5", "", "<function name=", "minicpm5", "qwen3", "MiniCPM5", begins=MAY_THINK),
    Family("", "^MiniMaxM3", "", "minimax_m3", "minimax_m3", "MiniMax M3"),
    Family("", "^MiniMaxM2", "", "minimax_m2", "minimax_m2", "MiniMax M2"),
    Family("", "^SeedOss", "", "seed_oss", "seed_oss", "Seed-OSS"),
    Family("", "^Step3p", "", "step3p5", "step3p5", "Step-3.5 and later"),
    Family("", "^Step3", "", "step3", "step3", "Step-3"),
    Family("think", "^Olmo3", "", "olmo3", "olmo3", "Olmo 3 Think"),
    Family("", "^Olmo3", "", "olmo3", "", "Olmo 3"),
    Family("", "^Gemma4", "", "gemma4", "gemma4", "Gemma 4"),
    Family("functiongemma", "", "", "functiongemma", "", "FunctionGemma"),
    Family("", "^Phi3", "functools", "phi4_mini_json", "", "Phi-4-mini, with vLLM's template"),
    Family("phi-4-reasoning", "^Phi3", "</think>", "", "deepseek_r1", "Phi-4-reasoning"),
    Family("", "^Lfm2", "", "lfm2", "", "LFM2"),
    Family("", "^Apertus", "", "apertus", "", "Apertus"),
    Family("", "^Cohere2", "", "cohere_command3", "cohere_command3", "Command A"),
    Family("", "^MiMo", "", "mimo", "mimo", "MiMo"),
    Family("", "^Llama|^Mllama", LLAMA_CALLS, "llama3_json", "", "Llama 3.1 and later"),
    # unknown families with a known format
    Family("", "", JSON_CALLS, "hermes", "qwen3", "thinks and calls like Qwen3", begins=THINKS),
    Family("", "", "<parameter=", "qwen3_coder", "", "calls like Qwen3-Coder"),
    Family("", "", JSON_CALLS, "hermes", "", "calls like Qwen2.5 and Hermes"),
    Family("", "", "", "", "qwen3", "thinks like Qwen3", begins=THINKS),
)


def family_of(name: str, architecture: str, template: str) -> Family | None:
    """Return the first row that fits. name: of the source, as its makers wrote it."""
    _, has_prompt, begins = template.rpartition(PROMPT)
    for family in FAMILIES:
        by_name = re.search(family.name, name, re.IGNORECASE) and re.search(family.architecture, architecture)
        so_begins = not family.begins or (has_prompt and re.search(family.begins, begins, re.DOTALL))
        if by_name and so_begins and re.search(family.template, template):
            return family
    return None


def has_parser(flag: str, name: str) -> bool:
    """Return whether the installed vLLM has a parser and what it needs."""
    _, file, table = PARSER_TABLES[flag]
    known_parsers = parsers(file, table)
    return (not known_parsers or name in known_parsers) and (name not in NEEDS or find_spec(NEEDS[name]) is not None)


WRITTEN = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")
"""transformers' marks around a model's output, which Jinja does not know."""
MOST = 2**17
"""Longest template in characters, several times the longest known one. Parsing more takes seconds."""


def shows_tools(template: str, listing: Listing) -> bool:
    """Return whether the template renders a request's tools, not only those in answers.

    Raises Unfit unless it is valid Jinja, as vLLM would fail at the load without naming the template.
    """
    from jinja2 import Environment, TemplateSyntaxError, nodes

    try:
        if len(template) > MOST:
            raise ValueError(f"it has {len(template):,} characters")
        read = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(WRITTEN.sub("", template))
        return any(name.name == "tools" and name.ctx == "load" for name in read.find_all(nodes.Name))
    except (TemplateSyntaxError, RecursionError, ValueError) as error:
        raise Unfit(
            f"The chat template of {listing.where} is not a Jinja template ({error}): correct it, or copy it again.",
            code="bad_config",
            param="source",
        ) from None
