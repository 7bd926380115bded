"""The names of tool and reasoning parsers that the installed vLLM has, so that a slip in a recipe is told at once.

vLLM itself would say so only after a load of the whole model. Its tables are read from its source, because importing it
takes seconds; a vLLM whose source has them elsewhere, or none, leaves the names unchecked.
"""

import ast
import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

KINDS = {
    "tool_call_parser": ("tool_parser_plugin", "tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER"),
    "reasoning_parser": ("reasoning_parser_plugin", "reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER"),
}
"""Flag to the flag of a file that may bring more of them, and where vLLM's own table lies."""


def parser_faults(flags: Mapping[object, object]) -> Iterator[tuple[str, str]]:
    """Key and what is wrong, with what to write instead, for each flag that names a parser which vLLM does not have."""
    given = {str(key).replace("-", "_"): (str(key), value) for key, value in flags.items()}
    for flag, (plugin, file, table) in KINDS.items():
        key, name = given.get(flag, ("", None))
        known = parsers(file, table)
        if not isinstance(name, str) or not known or name in known or plugin in given:
            continue
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"write '{close[0]}', or another one of" if close else "write one of"
        yield key, f"'engine.flags.{key}' cannot be '{name}'; {hint}: {', '.join(known)}"


@cache
def parsers(file: str, table: str) -> tuple[str, ...]:
    """The keys of the literal dictionary `table` in a source file of vLLM, sorted; none where it cannot be found."""
    found = find_spec("vllm")
    folders = found.submodule_search_locations if found else None
    try:
        tree = ast.parse((Path(folders[0]) / file).read_text(encoding="utf-8")) if folders else ast.Module([], [])
    except (OSError, SyntaxError, UnicodeDecodeError):
        return ()
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Dict) and any(isinstance(t, ast.Name) and t.id == table for t in targets):
            names = [key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
            return tuple(sorted(names))
    return ()
