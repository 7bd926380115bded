"""Classes of errors, and every error code with its message."""

import ast
import inspect
import re
from collections import deque
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from pathlib import Path

from docs.tables.markdown import code, table
from registry import errors
from registry.errors import RoundhouseError

ROOT = Path(__file__).parents[2]
SOURCES = ("registry", "adapters", "models", "tenants", "routing", "batches", "launch", "fleet", "runtime")
LONGEST = 240

CLASSES: dict[str, type[RoundhouseError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, RoundhouseError)
}
CARRIERS: dict[str, tuple[int, int]] = {"Cause": (500, 0), "Verdict": (400, 0), "CallFailed": (0, 2)}
"""Calls that make an error, with its status (0: the argument before the code) and the index of the code's argument. The
message is the next argument."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def classes() -> str:
    """Return status, type, code and meaning of each class, from the tree in the module's docstring."""
    meanings = dict(re.findall(r"── (\w+) \d{3}\s+(.+)", inspect.getdoc(errors) or ""))
    rows = []
    for name, kind in CLASSES.items():
        if kind is not RoundhouseError:
            rows.append((str(kind.status), code(kind.type), code(kind.code), meanings[name]))
    return table(("status", "type", "code", "meaning"), rows)


def codes() -> str:
    """Return all codes that are not a class's own. Raises ValueError for one that cannot be read from the source."""
    messages: dict[tuple[int, str], str] = {}
    for folder in SOURCES:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if "starter" not in file.relative_to(ROOT).parts:
                for key, message in raised(ast.parse(file.read_text(encoding="utf-8")), _dotted(file)):
                    if messages.get(key, "…") == "…":
                        messages[key] = message
    own = {kind.code for kind in CLASSES.values()}
    rows = [(str(status), code(word), messages[status, word]) for status, word in sorted(messages) if word not in own]
    return table(("status", "code", "message"), rows)


def _dotted(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


def raised(tree: ast.AST, module: str) -> Iterator[tuple[tuple[int, str], str]]:
    """Yield (status, code) and message of a module's errors. Raises ValueError for a code that cannot be read."""
    helpers: dict[str, tuple[int, str]] = {}
    for call, inside in _calls(tree):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in CLASSES and CLASSES[name] is not RoundhouseError and call.args:
            status, message = CLASSES[name].status, _displayed(call.args[0])
            given = next((k.value for k in call.keywords if k.arg == "code"), ast.Constant(None))
            if isinstance(given, ast.Name) and inside is not None and given.id in _parameters(inside):
                helpers[inside.name] = status, message
                continue
        elif name in CARRIERS and len(call.args) > CARRIERS[name][1] + 1:
            fixed, place = CARRIERS[name]
            status = fixed or int(ast.literal_eval(call.args[place - 1]))
            given, message = call.args[place], _displayed(call.args[place + 1])
        else:
            continue
        for word in _words(given, module):
            yield (status, word), message
    for call, _ in _calls(tree) if helpers else ():
        if isinstance(call.func, ast.Name) and call.func.id in helpers:
            status, message = helpers[call.func.id]
            for word in (w for k in call.keywords if k.arg == "code" for w in _words(k.value, module)):
                yield (status, word), message


def _calls(tree: ast.AST) -> Iterator[tuple[ast.Call, _Function | None]]:
    """Yield each call with the function that contains it, in the order of `ast.walk`."""
    left: deque[tuple[ast.AST, _Function | None]] = deque([(tree, None)])
    while left:
        node, inside = left.popleft()
        if isinstance(node, ast.Call):
            yield node, inside
        inside = node if isinstance(node, _Function) else inside
        left.extend((child, inside) for child in ast.iter_child_nodes(node))


def _parameters(function: _Function) -> set[str]:
    return {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}


def _words(given: ast.expr, module: str) -> Iterator[str]:
    """Yield the possible values of a code. A re-raised `error.code` is skipped, as it is listed at its origin."""
    match given:
        case ast.Constant(value=None) | ast.Attribute(attr="code"):
            return
        case ast.Constant(value=str(word)):
            yield word
        case ast.IfExp(body=one, orelse=other):
            yield from _words(one, module)
            yield from _words(other, module)
        case ast.Name() | ast.Attribute():
            try:
                yield str(attrgetter(ast.unparse(given))(import_module(module)))
            except AttributeError:
                raise ValueError(f"{module}:{given.lineno}: write the code, or a constant of the module") from None
        case _:
            raise ValueError(f"{module}:{given.lineno}: write the code, or a constant of the module")


def _displayed(node: ast.expr) -> str:
    """Return a message as a cell of a table."""
    text = re.sub(r"\s+", " ", _text(node)).strip()
    text = text if len(text) <= LONGEST else text[:LONGEST].rpartition(" ")[0] + " …"
    return text.replace("<", "&lt;")


def _text(node: ast.expr) -> str:
    """Return a string expression with '…' for values that are only known at run time."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
    return "…"
