"""Find `chat_template_kwargs` that a model's chat template does not read.

vLLM silently ignores such names, including a misspelt `enable_thinking`, after which the model keeps thinking.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from models.chat.requests.request import ChatRequest
from models.messages import THINK
from registry.base.json import NOT_JSON
from registry.errors import BadRequest
from registry.recipes.fields import Flag

FIELD = "chat_template_kwargs"
FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
"""Files of a model that may contain its chat template."""
OTHERS = ("tekken.json",)
"""Files of tokenizers that write prompts without a template."""
FLAG = '"chat_template"'
PARSERS = frozenset({"reasoning_parser", "tool_call_parser"})
OF_PARSERS = frozenset({*THINK, "reasoning_effort", "thinking_mode", "force_nonempty_content"})
"""Variables that vLLM's parsers of reasoning and calls read."""
OF_CALLS = frozenset(
    {
        "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents", "max_length",
        "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize", "tokenizer_kwargs",
        "tools", "truncation",
    }
)  # fmt: skip
"""Parameters of transformers' own call, not variables of templates. vLLM refuses those that it does not support."""
MOST_NAMED = 8
_PLAIN = re.compile(r"[A-Za-z0-9_]{1,40}\Z")


def texts(path: Path, flags: Mapping[str, Flag]) -> list[str]:
    """Return the texts that may contain the chat template of the model in folder `path`; empty if there are none."""
    flag = str(flags.get("chat_template", flags.get("chat-template", "")))
    if flag:
        is_file = len(flag) < 4096 and os.path.isfile(flag)  # Path.is_file raises for a long name
        return [Path(flag).read_text(errors="replace") if is_file else flag]
    return [(path / name).read_text(errors="replace") for name in FILES if (path / name).is_file()]


class Variables:
    """The variables that a model's chat template may read, which are all words of its text."""

    def __init__(self, path: Path, flags: Mapping[str, Flag]) -> None:
        templates = texts(path, flags)
        given = {name.replace("-", "_") for name in flags}
        known = "chat_template" in given or (path / FILES[0]).is_file() or any(FLAG in text for text in templates)
        by_itself = "tokenizer_mode" in given or any((path / name).is_file() for name in OTHERS)
        self._parsers = OF_PARSERS if given & PARSERS else frozenset[str]()
        self._words = self._read_by(templates) if known and not by_itself else None  # None: unknown

    def _read_by(self, templates: list[str]) -> frozenset[str]:
        words = frozenset(word for text in templates for word in re.findall(r"\w+", text)) | OF_CALLS | self._parsers
        return words | THINK.keys() if words & THINK.keys() else words  # clients for any model send both

    def reads(self, word: str, own: str = "") -> bool:
        """Return whether the chat template contains a word. own: the template of the request's adapter."""
        return word in (self._read_by([own]) if own else self._words or ())

    def unread(self, request: ChatRequest, own: str = "") -> list[str]:
        """Return the unused names in the request's `chat_template_kwargs`. own: the template of its adapter."""
        if (self._words is None and not own) or FIELD not in request.fields:
            return []
        try:
            words = self._read_by([own]) if own else self._words or frozenset()
            return sorted(request.raw_object(FIELD).keys() - words)
        except NOT_JSON:
            return []


def describe_unread(variables: Variables | None, request: ChatRequest, own: str = "", *, strict: bool) -> str:
    """Return a warning about unused names; '' if there are none. Raises BadRequest if the recipe is strict.

    own: the chat template of the request's adapter; '' for the base's.
    """
    unread = variables.unread(request, own) if variables is not None else []
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
