"""What a client tells a model's chat template (`chat_template_kwargs`), and the template does not read.

vLLM leaves such a name out without a word, a slip in `enable_thinking` too: the model thinks on.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from models.messages import THINK
from registry.base.json import NOT_JSON
from registry.errors import BadRequest
from registry.recipes.fields import Flag

FIELD = "chat_template_kwargs"
FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
"""Files of a model that its chat template may lie in."""
OTHERS = ("tekken.json",)
"""Files of tokenizers that make prompts by themselves."""
FLAG = '"chat_template"'
PARSERS = frozenset({"reasoning_parser", "tool_call_parser"})
OF_PARSERS = frozenset({*THINK, "reasoning_effort", "thinking_mode", "force_nonempty_content"})
"""Names that vLLM's parsers of thoughts and calls look for."""
OF_CALLS = frozenset(
    {
        "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents", "max_length",
        "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize", "tokenizer_kwargs",
        "tools", "truncation",
    }
)  # fmt: skip
"""Names of transformers' own: they are no template's variables, and vLLM says itself what it does not take."""
MOST_NAMED = 8
_PLAIN = re.compile(r"[A-Za-z0-9_]{1,40}\Z")


def texts(path: Path, flags: Mapping[str, Flag]) -> list[str]:
    """What the chat template of the model in folder `path` is in; none: there is no such file."""
    flag = str(flags.get("chat_template", flags.get("chat-template", "")))
    if flag:
        return [Path(flag).read_text(errors="replace") if len(flag) < 4096 and Path(flag).is_file() else flag]
    return [(path / name).read_text(errors="replace") for name in FILES if (path / name).is_file()]


class Variables:
    """Names that a model's chat template reads. A word of its text is taken for one."""

    def __init__(self, path: Path, flags: Mapping[str, Flag]) -> None:
        templates = texts(path, flags)
        given = {name.replace("-", "_") for name in flags}
        known = "chat_template" in given or (path / FILES[0]).is_file() or any(FLAG in text for text in templates)
        by_itself = "tokenizer_mode" in given or any((path / name).is_file() for name in OTHERS)
        words = frozenset(word for text in templates for word in re.findall(r"\w+", text)) | OF_CALLS
        if given & PARSERS:
            words |= OF_PARSERS
        if words & THINK.keys():  # clients that know no model send both
            words |= THINK.keys()
        self._words = words if known and not by_itself else None
        """None: it cannot be told."""

    def unread(self, body: bytes) -> list[str]:
        """Names of a body's `chat_template_kwargs` that nothing reads."""
        if self._words is None or FIELD.encode() not in body:
            return []
        try:
            raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw]).get(FIELD, b"null")
            variables = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        except NOT_JSON:
            return []
        return sorted(variables.keys() - self._words)


def describe_unread(variables: Variables | None, body: bytes, *, strict: bool) -> str:
    """What to tell of names that nothing reads; empty: nothing. Raises BadRequest where the recipe is strict."""
    unread = variables.unread(body) if variables is not None else []
    if not unread:
        return ""
    if strict:
        raise BadRequest(
            f"Unrecognized request argument supplied: {FIELD}.{unread[0]}. The chat template of this model does not "
            "read it: leave it out.",
            param=f"{FIELD}.{unread[0]}",
            code="unknown_parameter",
        )
    names = ", ".join(name if _PLAIN.match(name) else "a name of no variable" for name in unread[:MOST_NAMED])
    return f"{FIELD}: this model's chat template does not read {names}"
