"""Finds what the product uses of vLLM, from syntax trees: `python -m tests.contract.vllm.touch_scan`.

It finds imports of vLLM's modules, module names in strings, and attributes of vLLM's objects: parameters and variables
typed `Any`, results of vLLM's modules, and whatever is reached from these. It leaves out attributes that a plain
container, a class, a process or an array also has, which say nothing about vLLM, and our own, `roundhouse_...`.
"""

import ast
import asyncio
import logging
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import psutil

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "models" / "chat"
TABLE = FOLDER / "vllm" / "touches.py"
COMMON: tuple[Any, ...] = (
    dict, list, str, bytes, set, type, ModuleType, Future, asyncio.Future, threading.Timer, logging.LogRecord,
    BaseProcess, subprocess.Popen, psutil.Process, np.ndarray,
)  # fmt: skip
OPEN = ("Any", "Any | None", "dict[str, Any]", "list[Any]", "tuple[Any, Any]")
"""Types of objects that may be vLLM's."""
DYNAMIC = ("getattr", "setattr", "hasattr")
PASSING = (*DYNAMIC, "type", "list", "tuple", "next", "iter", "enumerate", "reversed", "sorted", "zip")
"""Functions whose result is vLLM's if an argument is."""


class Use(NamedTuple):
    """A use. `name` is a module, a module:name, or an attribute."""

    name: str
    file: str
    line: int


def uses() -> list[Use]:
    """Return all uses in the product, without the table itself."""
    files = [file for file in sorted(FOLDER.rglob("*.py")) if file != TABLE]
    return [use for file in files for use in scan(file.read_text(), str(file.relative_to(ROOT)))]


def scan(source: str, file: str) -> Iterator[Use]:
    """Yield the uses in a file's source."""
    tree = ast.parse(source)
    found = [*_imports(tree)]
    visitor = _Attributes(_fields(tree))
    visitor.visit(tree)
    seen: set[str] = set()
    for name, line in (*found, *visitor.found):
        common = name.isidentifier() and any(hasattr(kind, name) for kind in COMMON)
        if name not in seen and not common and not name.startswith("roundhouse_"):
            seen.add(name)
            yield Use(name, file, line)


def _is_vllm(module: str | None) -> bool:
    return module is not None and module.split(".")[0] == "vllm"


def _imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _is_vllm(node.module):
            yield from ((f"{node.module}:{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if _is_vllm(alias.name))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if text.startswith("vllm.") and not set(" \n") & set(text):
                yield text, node.lineno


def _is_open(annotation: ast.expr | None) -> bool:
    return annotation is not None and ast.unparse(annotation) in OPEN


def _fields(tree: ast.Module) -> set[str]:
    """Return the attributes of `self` that may hold one of vLLM's objects."""
    fields: set[str] = set()
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        given = {argument.arg for argument in function.args.args if _is_open(argument.annotation)}
        for node in ast.walk(function):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
                fields |= {node.target.attr} if _is_open(node.annotation) else set()
            for target, value in _pairs(node) if isinstance(node, ast.Assign) else ():
                while isinstance(value, ast.Attribute | ast.Call):
                    value = value.value if isinstance(value, ast.Attribute) else value.func
                if isinstance(target, ast.Attribute) and isinstance(value, ast.Name) and value.id in given:
                    fields.add(target.attr)
    return fields


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        elif isinstance(target, ast.Tuple):
            yield from ((one, node.value) for one in target.elts)
        else:
            yield target, node.value


class _Attributes(ast.NodeVisitor):
    """Collects attributes of vLLM's objects. `fields`: attributes of `self` that hold such objects."""

    def __init__(self, fields: set[str]) -> None:
        self.found: list[tuple[str, int]] = []
        self._fields = fields
        self._scopes: list[set[str]] = [set()]

    def _is_theirs(self, node: ast.expr) -> bool:
        match node:
            case ast.Name(id=name):
                return any(name in scope for scope in self._scopes)
            case ast.Attribute(attr=name) if name.startswith("roundhouse_"):
                return False
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if name in self._fields:
                return True
            case ast.Call(func=ast.Name(id="import_module")):
                return True
            case ast.Call(func=ast.Name(id=name), args=arguments) if name in PASSING:
                return any(map(self._is_theirs, arguments))
            case (
                ast.Call(func=inner) | ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Await(value=inner)
            ):
                return self._is_theirs(inner)
            case _:
                return False

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name) and self._is_theirs(value):
            self._scopes[-1].add(target.id)
        for one in target.elts if isinstance(target, ast.Tuple) else ():
            self._bind(one, value)

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        self._scopes.append({argument.arg for argument in arguments if _is_open(argument.annotation)})
        self.generic_visit(node)
        self._scopes.pop()

    def _visit_import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if _is_vllm(node.module if isinstance(node, ast.ImportFrom) else alias.name):
                self._scopes[-1].add(alias.asname or alias.name.split(".")[0])

    def _visit_comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        for generator in node.generators:
            self._bind(generator.target, generator.iter)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target, value in _pairs(node):
            self._bind(target, value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if isinstance(node.target, ast.Name) and _is_open(node.annotation):
            self._scopes[-1].add(node.target.id)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._bind(node.target, node.iter)
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._bind(node.target, node.value)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self._is_theirs(node.value):
            self.found.append((node.attr, node.lineno))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        match node:
            case ast.Call(func=ast.Name(id=name), args=[one, ast.Constant(value=attribute), *_]) if name in DYNAMIC:
                self.found += [(str(attribute), node.lineno)] if self._is_theirs(one) else []
        self.generic_visit(node)

    visit_FunctionDef = visit_AsyncFunctionDef = _visit_function
    visit_Import = visit_ImportFrom = _visit_import
    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension


if __name__ == "__main__":
    for use in uses():
        print(f"{use.file}:{use.line}: {use.name}")
