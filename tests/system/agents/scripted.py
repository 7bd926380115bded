"""A scripted model that acts like a coding agent's model: it reads a file, writes another one, and answers.

It is hand-made. Each of its questions is one token, which comes from the agent's task or a tool's result.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from tests.contract.chat.script import write_script
from tests.system.serving import STARTER, Server

TASK_OF_CODEX = "Copy the password by commands."
TASK_OF_CLAUDE = "Copy the password by tools."
LIGHT = "Light, please."
PASSWORDS = {"codex": "heliotrope", "claude": "marigold"}
WRITTEN = "the-password-is-copied"
CODEX_SAYS, CLAUDE_SAYS, LIGHT_SAYS = "Copied by commands.", "Copied by tools.", "It is on."
LIGHT_IS_ON = "The lamp glows."
NOTES = "The password is {}.\n"
RECIPE = """
id: scripted
version: 1
task: chat
source: {{path: {model}}}
engine:
  name: vllm
  flags: {{enable_auto_tool_choice: true, tool_call_parser: hermes}}
dtype: float32
context_length: 16384
memory: {{kv_cache: 256MiB}}
batching: {{max_requests: 4, max_tokens: 4096}}
"""
CONTEXT = 8192
"""Context length of the starter model here, as an agent sends over 2,000 tokens with the shortest instructions."""


def call(name: str, **arguments: Any) -> str:
    """Return one piece: a tool call in the format of the recipe's parser."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def scripts(folder: Path) -> dict[str, list[str]]:
    """Return questions and answers, of which later ones win. folder: Claude Code's, whose tools need absolute paths."""
    notes, copy = str(folder / "notes.txt"), str(folder / "copy.txt")
    write = f"printf {PASSWORDS['codex']} >copy.txt && echo {WRITTEN}"
    return {
        "Hello.": ["Hello ", "there, ", "friend."],
        LIGHT: [call("set_light", state="on")],
        LIGHT_IS_ON: [LIGHT_SAYS],
        TASK_OF_CODEX: [call("exec_command", cmd="cat notes.txt")],
        TASK_OF_CLAUDE: [call("Read", file_path=notes)],
        PASSWORDS["codex"]: [call("exec_command", cmd=write)],
        PASSWORDS["claude"]: [call("Write", file_path=copy, content=PASSWORDS["claude"])],
        WRITTEN: [CODEX_SAYS],
        "File created successfully": [CLAUDE_SAYS],
    }


def serve_scripted(folder: Path, work: Path) -> Server:
    """Start a server with this model, and the starter model with two adapters and a longer context."""
    model = write_script(folder / "model", scripts(work), context=16384, per_token=16, certainty=1e6)
    (folder / "scripted.yaml").write_text(RECIPE.format(model=model))
    starter = yaml.safe_load((STARTER / "starter-chat.yaml").read_text())
    starter["context_length"] = CONTEXT
    starter["engine"]["flags"]["hf_overrides"] = json.dumps({"max_position_embeddings": CONTEXT})
    starter["adapters"] = [one for one in starter["adapters"] if one["name"] in ("uppercase", "extract-json")]
    (folder / "starter.yaml").write_text(yaml.safe_dump(starter))
    return Server(folder / "data", [folder / "scripted.yaml", folder / "starter.yaml"], "--slots", "2")
