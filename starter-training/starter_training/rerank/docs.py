"""Training text from Python source files (docstrings) and from the Python manual (reST sections).

Licences: the standard library, the Python manual and matplotlib are under PSF-style licences; numpy, scipy,
scikit-learn, sympy, networkx and torch under the 3-clause BSD licence.
"""

from __future__ import annotations

import ast
import importlib.util
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from .text import Passage, clean, cut, first_sentence, fraction

PACKAGES = ("numpy", "scipy", "sklearn", "torch", "sympy", "networkx", "matplotlib")
"""Installed packages whose docstrings are read. They are parsed, not imported; a missing one is skipped."""

IMPERATIVES = frozenset(
    [
        "return", "compute", "create", "get", "set", "check", "convert", "make", "find", "add", "remove", "apply",
        "run", "build", "read", "write", "open", "close", "load", "save", "parse", "generate", "evaluate", "calculate",
        "determine", "draw", "plot", "fit", "transform", "predict", "sort", "split", "join", "merge", "copy", "delete",
        "insert", "update", "register", "initialize", "perform", "test", "construct", "estimate", "solve", "simplify",
        "expand", "replace", "count", "print", "format", "send", "receive", "wait", "start", "stop", "show", "display",
        "select", "sample", "fill", "extract", "define", "encode", "decode",
    ]
)  # fmt: skip
"""Summaries that begin with one of these can become the question 'how do I ...?'."""

_SKIP = re.compile(r"(^|/)(tests?|testing|site-packages|idlelib|lib2to3|_vendor|externals|__pycache__)/|/test_")
_UNDERLINE = re.compile(r"^([=\-~^\"'*+#.])\1{2,}\s*$")


def source_files() -> Iterator[tuple[str, Path]]:
    """Yield (document name, path) of every Python file to read, in a stable order."""
    roots = [("python", Path(sysconfig.get_paths()["stdlib"]))]
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec and spec.origin:
            roots.append((name, Path(spec.origin).parent))
    for package, root in roots:
        for path in sorted(root.rglob("*.py")):
            relative = path.relative_to(root).as_posix()
            if not _SKIP.search("/" + relative):
                yield f"{package}/{relative}", path


def _words(name: str) -> str:
    """Split an identifier into lower-case words."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_+", " ", name).strip().lower()


def _questions(name: str, owner: str, summary: str, rest: str, rng: random.Random) -> Iterator[str]:
    """Queries of several kinds for one documented function or class."""
    words, lead = _words(name), summary.rstrip(".").strip()
    plain = lead[:1].lower() + lead[1:]
    verb = re.match(r"[A-Z][a-z]+\b", lead)
    if len(lead.split()) > 3 and len(lead) < 160:
        if verb and verb.group().lower().removesuffix("s") in IMPERATIVES:
            how = re.sub(r"^(\w+?)(?<!s)s\b", r"\1", plain)
            yield rng.choice((f"how to {how}", f"how do I {how}?", f"How can I {how} in Python?", plain))
        else:
            yield rng.choice((lead, plain, f"what is {plain}?"))
    if len(words.split()) > 1:
        yield rng.choice(
            (
                words,
                f"what does {name} do?",
                f"{owner} {words}",
                f"{name} arguments",
                f"how to use {name}",
                name,
            )
        )
    rare = [w for w in dict.fromkeys(re.findall(r"\b[a-z]+_[a-z_]+\b|\b[A-Z][a-z]+[A-Z]\w+\b", rest)) if w != name]
    if len(rare) >= 2:
        yield " ".join(rng.sample(rare, min(len(rare), rng.choice((2, 3)))) + words.split()[:1])


def docstring_passages() -> Iterator[Passage]:
    """Yield a passage for each documented public function and class with enough text.

    Half of the passages begin with the name and the arguments, the other half are only prose, so that neither exact
    identifiers nor meaning is enough by itself. Most passages leave out a summary that was turned into a query.
    """
    for document, path in source_files():
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        owner = document.split("/")[0] if not document.startswith("python/") else path.stem.strip("_")
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            raw = ast.get_docstring(node)
            if not raw or len(raw) < 90:
                continue
            key = f"{document}:{node.name}:{node.lineno}"
            rng = random.Random(key)
            text = clean(re.sub(r"\n\s*(-{3,}|={3,})\s*\n|\.\. \w+::[^\n]*", "\n", raw))
            summary, rest = first_sentence(text)
            queries = tuple(_questions(node.name, owner, summary, rest, rng))
            if len(rest) < 60 or not queries:
                continue
            body = text if fraction(key) < 0.3 else rest
            if rng.random() < 0.5:
                names = [a.arg for a in node.args.args if a.arg != "self"] if isinstance(node, ast.FunctionDef) else []
                body = f"{node.name}({', '.join(names)}) {body}"
            yield Passage(document, key, cut(body), queries)


def _sections(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Split reST source into (title, body) pairs, and definitions into (signature, body)."""
    title, body = "", list[str]()
    for at, line in enumerate(lines):
        following = lines[at + 1] if at + 1 < len(lines) else ""
        directive = re.match(r"^\s*\.\. (?:function|class|method|data|option|exception|attribute):: (.+)$", line)
        if directive or (_UNDERLINE.match(following) and line.strip() and not _UNDERLINE.match(line)):
            if title:
                yield title, "\n".join(body)
            title, body = (directive.group(1) if directive else line).strip(), []
        elif not _UNDERLINE.match(line) and not line.lstrip().startswith((".. ", ":")):
            body.append(line)
    if title:
        yield title, "\n".join(body)


def manual_passages(root: Path) -> Iterator[Passage]:
    """Yield the sections of the Python manual below `root` (`*.rst.txt`), with their titles as queries."""
    for path in sorted(root.rglob("*.rst.txt")):
        document = "manual/" + path.name.removesuffix(".rst.txt")
        for number, (title, body) in enumerate(_sections(path.read_text(encoding="utf-8").splitlines())):
            heading, text = clean(title), clean(body)
            if len(text) < 90 or len(heading) < 4 or "whatsnew" in document:
                continue
            rng = random.Random(f"{document}:{number}")
            name = heading.split("(")[0].split(".")[-1]
            first, rest = first_sentence(text)
            subject = path.name.split(".")[0]
            queries = [rng.choice((heading.lower(), f"{subject} {name}", f"what is {name}?", f"{name} in python"))]
            if len(rest) > 80 and 4 < len(first.split()) < 28:
                queries.append(first)
                text = rest
            if rng.random() < 0.4:
                text = f"{heading}: {text}"
            yield Passage(document, f"{document}:{number}", cut(text), tuple(queries))
