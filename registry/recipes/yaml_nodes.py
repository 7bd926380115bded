"""Read YAML as plain values with line numbers. Hostile files are refused cheaply."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

MAX_BYTES = 2**20
MAX_DEPTH = 32
MAX_VALUES = 20_000
"""Values of one document after expanding aliases: a few hundred bytes of nested aliases make billions."""

MAX_NUMBER = 100
"""Characters of a number. Some longer ones take seconds to parse, and some cannot be printed."""

Loc = Sequence[int | str]
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in a document, and what to write instead."""

    file: Path
    line: int
    """Line number, from 1; 0 for the file as a whole."""
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML document: its values and the nodes they were read from."""

    file: Path
    node: yaml.Node
    data: object

    def line(self, loc: Loc) -> int:
        """Return the line of `loc`, or of its nearest existing parent."""
        node, line = self.node, _line(self.node)
        for part in loc:
            if isinstance(node, yaml.MappingNode):
                # The last one wins, as in the values: keys merged by '<<' come first.
                entry = next((kv for kv in reversed(node.value) if kv[0].value == part), None)
                if entry is None:
                    break
                line, node = _line(entry[0]), entry[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = _line(node)
            else:
                break
        return line

    def fault(self, loc: Loc, text: str) -> Fault:
        return Fault(self.file, self.line(loc), text)


class _Loader(yaml.SafeLoader):
    """Refuses deep nesting while reading, because PyYAML's composer is recursive."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, f"more than {MAX_DEPTH} levels, one inside the other", mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


class _Constructor(yaml.constructor.SafeConstructor):
    """A constructor with its own table, because lm-format-enforcer changes the shared one."""


_Constructor.add_constructor(  # type: ignore[type-var]  # the stub binds the type of `self` to the base class
    "tag:yaml.org,2002:timestamp", yaml.constructor.SafeConstructor.construct_yaml_timestamp
)


def read_documents(file: Path) -> tuple[list[Document], list[Fault]]:
    """Return all readable documents, and the faults of the others. Empty ones are skipped.

    If a key is given twice, the last one counts, so that the rest of the document can be checked too.
    """
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        return [], [Fault(file, 0, f"cannot be read: {error.strerror}")]
    return documents_of(file, raw)


def documents_of(file: Path, raw: bytes) -> tuple[list[Document], list[Fault]]:
    """Parse the content of a file, as `read_documents`."""
    if len(raw) > MAX_BYTES:
        return [], [Fault(file, 0, "is larger than 1 MiB; split it, one model a file")]
    try:
        text = raw.decode("utf-8-sig")
        loader = _Loader(text)
    except UnicodeDecodeError as error:
        return [], [Fault(file, raw[: error.start].count(b"\n") + 1, "is not UTF-8 text; save it as UTF-8")]
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        return [], [Fault(file, line, f"holds the control character U+{error.character:04X}; remove it")]
    documents: list[Document] = []
    faults: list[Fault] = []
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is None or node.tag == "tag:yaml.org,2002:null":
                continue
            if (unusable := _too_large(file, node) or _bad_scalar(file, node)) is not None:
                faults.append(unusable)
                continue
            faults += _bad_keys(file, node)
            try:
                data = _Constructor().construct_document(node)
            except (yaml.MarkedYAMLError, ValueError, TypeError, ArithmeticError) as error:
                faults.append(_syntax(file, error, node))
            else:
                documents.append(Document(file, node, data))
    except yaml.MarkedYAMLError as error:
        faults.append(_syntax(file, error, None))
    finally:
        loader.dispose()
    if not documents and not faults:
        faults.append(Fault(file, 0, "holds no recipe; write one document per model, or remove the file"))
    return documents, faults


def _too_large(file: Path, root: yaml.Node) -> Fault | None:
    """Return a fault if the document is too large with its aliases expanded; a cycle is endless."""
    values, waiting = 0, [(root, 0)]
    while waiting:
        node, depth = waiting.pop()
        values += 1
        if values > MAX_VALUES or depth > MAX_DEPTH:
            text = f"holds more than {MAX_VALUES} values or {MAX_DEPTH} levels once its aliases are written out"
            return Fault(file, _line(root), f"{text}; write fewer '*aliases'")
        waiting += ((child, depth + 1) for child in _children(node))
    return None


def _bad_scalar(file: Path, root: yaml.Node) -> Fault | None:
    """Return a fault for a lone surrogate or an endless number, which JSON cannot hold."""
    for node in _nodes(root, keys=True):
        if not isinstance(node, yaml.ScalarNode):
            continue
        if _SURROGATE.search(node.value):
            return Fault(file, _line(node), "holds half of a character; write the whole one")
        if node.tag in _NUMBER_TAGS and len(node.value) > MAX_NUMBER:
            text = f"holds a number of more than {MAX_NUMBER} characters; write it in quotes if it is text"
            return Fault(file, _line(node), text)
    return None


def _bad_keys(file: Path, root: yaml.Node) -> list[Fault]:
    """Return faults for keys that are given twice or are not text, in the order of the file."""
    faults: list[Fault] = []
    for node in _nodes(root):
        if not isinstance(node, yaml.MappingNode):
            continue
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = _line(key)
            if not isinstance(key, yaml.ScalarNode) or key.tag not in _KEY_TAGS:
                quoted_key = f"'{key.value}'" if isinstance(key, yaml.ScalarNode) else "a list or mapping"
                faults.append(Fault(file, line, f"{quoted_key} is not text, so it is not a key; write a key in quotes"))
            elif key.value in lines:
                text = f"key '{key.value}' is given twice, first in line {lines[key.value]}; keep one of them"
                faults.append(Fault(file, line, text))
            else:
                lines[key.value] = line
    return faults


def _nodes(root: yaml.Node, *, keys: bool = False) -> Iterator[yaml.Node]:
    """Yield each node once, however many aliases it has; with `keys`, also the keys of mappings."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        waiting += _children(node)
        if keys and isinstance(node, yaml.MappingNode):
            waiting += [key for key, _ in node.value]


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [value for _, value in node.value]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_KEY_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")


def _syntax(file: Path, error: Exception, node: yaml.Node | None) -> Fault:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        problem = " ".join(filter(None, (error.context, error.problem)))
        line = mark.line + 1 if mark else 0
    else:  # such as 2026-13-45, which looks like a date but is none
        problem, line = str(error), _line(node) if node else 0
    if "'\\t'" in problem:
        return Fault(file, line, "a tab cannot indent; use spaces")
    if isinstance(error, yaml.constructor.ConstructorError):
        return Fault(file, line, f"{problem}; write plain text, numbers, lists and mappings")
    return Fault(file, line, f"is not valid YAML here: {problem}")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
