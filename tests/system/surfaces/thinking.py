"""A model that thinks before it answers, and calls tools.

It is hand-made, and says exactly these pieces, each of which is one token.
"""

from pathlib import Path
from typing import Any

from tests.contract.chat.script import write_script
from tests.system.serving import Server

SUM, BOTH = "What is two and two?", "Light and fan, please."
SCRIPTS = {
    SUM: ["<think>", "Two, ", "and two ", "more: four.", "</think>", "It is ", "4."],
    BOTH: [
        "<think>", "Two ", "calls.", "</think>", "Doing ", "both.",
        '<tool_call>\n{"name": "set_light", ', '"arguments": {"state": ', '"on"}}\n</tool_call>\n',
        '<tool_call>\n{"name": "set_fan", "arguments"', ': {"speed": ', "2}}\n</tool_call>",
    ],
}  # fmt: skip
FUNCTIONS: list[dict[str, Any]] = [
    {"name": "set_light", "parameters": {"type": "object", "properties": {"state": {"enum": ["on", "off"]}}}},
    {"name": "set_fan", "parameters": {"type": "object", "properties": {"speed": {"type": "integer"}}}},
]
TOOLS: Any = [{"type": "function", "function": function} for function in FUNCTIONS]
RECIPE = """
id: thinker
version: 1
task: chat
source: {{path: {model}}}
engine:
  name: vllm
  flags: {{reasoning_parser: qwen3, enable_auto_tool_choice: true, tool_call_parser: hermes}}
dtype: float32
context_length: 2048
memory: {{kv_cache: 64MiB}}
batching: {{max_requests: 8, max_tokens: 2048}}
"""
PLAIN = RECIPE.replace("thinker", "plain").replace(
    "  flags: {{reasoning_parser: qwen3, enable_auto", "  # {{enable_auto"
)
"""The same model without parsers."""
DEEPSEEKS = RECIPE.replace("id: thinker", "id: deepseeks") + "reasoning_field: reasoning_content\n"
"""The same model for clients that read DeepSeek's field."""


def serve_thinker(folder: Path) -> Server:
    """Start a server with this model under each of its recipes. All fit, so that none is loaded twice."""
    model = write_script(folder / "model", SCRIPTS, context=2048)
    (folder / "thinker.yaml").write_text(f"{RECIPE}---\n{PLAIN}---\n{DEEPSEEKS}".format(model=model))
    return Server(folder / "data", [folder / "thinker.yaml"], "--slots", "3")
