"""Parse the installed vLLM's source; importing it is slow and uses the device.

What this vLLM has in another place, or not at all, is empty here: then nothing is checked, and a load reports it.
"""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def root() -> Path | None:
    """vLLM's folder, if it is installed."""
    spec = find_spec("vllm")
    folders = spec.submodule_search_locations if spec else None
    return Path(folders[0]) if folders else None


def tree(file: str) -> ast.Module:
    """Syntax tree of a file, by its path below the root."""
    folder = root()
    return parsed(folder / file) if folder is not None else ast.Module([], [])


@cache
def parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return ast.Module([], [])


@cache
def table(file: str, name: str) -> dict[str, object]:
    """The literal part of a dictionary in a file; other values are None."""
    for node in tree(file).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Dict) and any(isinstance(t, ast.Name) and t.id == name for t in targets):
            pairs = zip(value.keys, value.values, strict=True)
            return {str(key.value): _literal(node_value) for key, node_value in pairs if isinstance(key, ast.Constant)}
    return {}


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
