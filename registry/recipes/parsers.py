"""Names of tool and reasoning parsers in the installed vLLM, so that a typing error in a recipe is reported at once.

vLLM itself would report it only after loading the whole model.
"""

import difflib
from collections.abc import Iterator, Mapping
from functools import cache

from registry import vllm_source

KINDS = {
    "tool_call_parser": ("tool_parser_plugin", "tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER"),
    "reasoning_parser": ("reasoning_parser_plugin", "reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER"),
}
"""Flag to the flag of a file that may bring more of them, and where vLLM's own table lies."""


def parser_faults(recipe: object) -> Iterator[tuple[str, str]]:
    """Key and what is wrong, with what to write instead, for each flag that names a parser which vLLM does not have.

    recipe: as plain values, which may be no recipe at all.
    """
    match recipe:
        case {"engine": {"name": "vllm", "flags": Mapping() as flags}}:
            pass
        case _:
            return
    requested = {str(key).replace("-", "_"): (str(key), value) for key, value in flags.items()}
    for flag, (plugin, file, table) in KINDS.items():
        key, name = requested.get(flag, ("", None))
        known_parsers = parsers(file, table)
        if not isinstance(name, str) or not known_parsers or name in known_parsers or plugin in requested:
            continue
        close = difflib.get_close_matches(name, known_parsers, n=1)
        hint = f"write '{close[0]}', or another one of" if close else "write one of"
        yield key, f"'engine.flags.{key}' cannot be '{name}'; {hint}: {', '.join(known_parsers)}"


@cache
def parsers(file: str, table: str) -> tuple[str, ...]:
    """The names in one of vLLM's tables, sorted; none where it cannot be found."""
    return tuple(sorted(vllm_source.table(file, table)))
