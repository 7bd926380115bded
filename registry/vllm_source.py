"""Parse the installed vLLM's source; importing it is slow and uses the device.

Tables that this vLLM has moved or lacks read as empty: nothing is checked against them, and a load reports the fault.
"""

import ast
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock

_PARSING = Lock()
"""Held while parsing. Python 3.11 counts the depth of all threads' trees together, so it may raise SystemError if
another thread parses meanwhile, which a callback of the garbage collector (`registry.base.heap`) allows."""


@cache
def root() -> Path | None:
    """Return vLLM's folder, or None if it is not installed."""
    spec = find_spec("vllm")
    folders = spec.submodule_search_locations if spec else None
    return Path(folders[0]) if folders else None


def tree(file: str) -> ast.Module:
    """Parse a file, given its path below the root."""
    folder = root()
    return parsed(folder / file) if folder is not None else ast.Module([], [])


@cache
def parsed(file: Path) -> ast.Module:
    try:
        text = file.read_text(encoding="utf-8")
        with _PARSING:
            return ast.parse(text)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return ast.Module([], [])


@cache
def table(file: str, name: str) -> dict[str, object]:
    """Read a dictionary literal in a file. Values that are not literals become None."""
    for node in tree(file).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Dict) and any(isinstance(t, ast.Name) and t.id == name for t in targets):
            pairs = zip(value.keys, value.values, strict=True)
            return {str(key.value): _literal(node_value) for key, node_value in pairs if isinstance(key, ast.Constant)}
    return {}


SERVE_FLAGS = {
    "engine/arg_utils.py": re.compile(r'"--([a-z][a-z0-9-]*)"'),
    "entrypoints/launchers/cli_args.py": re.compile(r'"--([a-z][a-z0-9-]*)"|^    ([a-z]\w*): ', re.MULTILINE),
}
"""Files with the flags of `vllm serve`: as options of a parser, and as fields of classes."""


@cache
def serve_flags() -> frozenset[str]:
    """Return the flags of `vllm serve` and all negations, with underscores; none if a file is not found."""
    folder, names = root(), set[str]()
    for file, flag in SERVE_FLAGS.items():
        try:
            text = (folder / file).read_text(encoding="utf-8") if folder else ""
        except OSError:
            text = ""
        if not text:
            return frozenset()
        names |= {(match[1] or match[2]).replace("-", "_") for match in flag.finditer(text)}
    return frozenset(names | {f"no_{name}" for name in names})


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
