"""Classes of errors, and every code that the source gives to one, with the message that goes with it."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from docs.tables.markdown import code, table
from registry import errors
from registry.errors import RoundhouseError

ROOT = Path(__file__).parents[2]
SOURCES = ("registry", "adapters", "models", "tenants", "routing", "launch", "runtime")
LONGEST = 240

CLASSES: dict[str, type[RoundhouseError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, RoundhouseError)
}


def classes() -> str:
    """Status, type, code and meaning, as the tree in the module's docstring tells it."""
    meanings = dict(re.findall(r"── (\w+) \d{3}\s+(.+)", inspect.getdoc(errors) or ""))
    rows = []
    for name, kind in CLASSES.items():
        if kind is not RoundhouseError:
            rows.append((str(kind.status), code(kind.type), code(kind.code), meanings[name]))
    return table(("status", "type", "code", "meaning"), rows)


def codes() -> str:
    """Codes that tell more than their class does."""
    found: dict[tuple[int, str], str] = {}
    for folder in SOURCES:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if "starter" not in file.relative_to(ROOT).parts:
                for key, message in _raised(ast.parse(file.read_text(encoding="utf-8"))):
                    found.setdefault(key, message)
    own = {kind.code for kind in CLASSES.values()}
    rows = [(str(status), code(word), found[status, word]) for status, word in sorted(found) if word not in own]
    return table(("status", "code", "message"), rows)


def _raised(tree: ast.AST) -> Iterator[tuple[tuple[int, str], str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CLASSES and node.args:
            word = next(
                (k.value.value for k in node.keywords if k.arg == "code" and isinstance(k.value, ast.Constant)), ""
            )
            kind = CLASSES[node.func.id]
            if word and kind is not RoundhouseError:
                yield (kind.status, str(word)), _shown(node.args[0])


def _shown(node: ast.expr) -> str:
    """A message as a table shows it."""
    text = re.sub(r"\s+", " ", _text(node)).strip()
    text = text if len(text) <= LONGEST else text[:LONGEST].rpartition(" ")[0] + " …"
    return text.replace("<", "&lt;")


def _text(node: ast.expr) -> str:
    """A string expression with '…' for what is put in at run time."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
    return "…"
