"""Rooms stay small enough to be seen at a look, and are named once."""

import ast
import subprocess
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import grimp

ROOT = Path(__file__).parents[2]
PRODUCT = ("runtime", "console", "fleet", "tenants", "routing", "batches", "launch", "models", "adapters", "registry")
MAX_FILES = 15
"""Source files of a folder, beside its `__init__.py`."""


@cache
def sources() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py", "*.c"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [Path(line) for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


@cache
def syntax(source: str) -> ast.Module:
    """A file's tree: each is looked at by several tests."""
    return ast.parse(source)


def test_no_folder_has_too_many_files() -> None:
    found = Counter(file.parent for file in sources() if file.name != "__init__.py")
    assert {str(folder): count for folder, count in found.items() if count > MAX_FILES} == {}


def test_no_file_repeats_its_folders_name() -> None:
    assert [
        str(file) for file in sources() if file.stem.startswith((f"{file.parent.name}_", f"{file.parent.name[:-1]}_"))
    ] == []


def test_each_room_says_what_lives_there() -> None:
    rooms = [file for file in sources() if file.name == "__init__.py" and file.parts[0] in PRODUCT]
    assert len(rooms) > 30
    assert [str(file) for file in rooms if not ast.get_docstring(syntax((ROOT / file).read_text()))] == []


def test_no_two_files_import_each_other() -> None:
    """Nor in a larger circle; imports inside functions count, too."""
    graph = grimp.build_graph(*PRODUCT, cache_dir=None)
    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()


def test_one_class_of_a_name() -> None:
    """Those of one file alone, which begin with an underscore, aside."""
    found: dict[str, list[str]] = {}
    for file in sources():
        if file.suffix == ".py" and file.parts[0] in PRODUCT:
            for node in ast.walk(syntax((ROOT / file).read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, []).append(str(file))
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


WIRE = {
    ("console/history.py", "asked"),
    ("console/live.py", "asked"),
    ("registry/recipes/router.py", "When"),
    ("runtime/gateway/sinks/console.py", "asked"),
    ("runtime/gateway/sinks/tenants.py", "asked"),
    ("tenants/ledger/lookup.py", "asked"),
    ("tenants/ledger/rows.py", "asked"),
    ("tests/unit/providers/test_routed.py", "asked"),
    ("tests/unit/routing/test_replay.py", "asked"),
}
"""A column of the ledger and a JSON field have this name, and a schema of the OpenAPI document: clients know them."""


def script(name: str) -> Any:
    """A script without an ending, as a module."""
    spec = spec_from_loader(name, SourceFileLoader(name, str(ROOT / "scripts" / name)))
    assert spec is not None
    module = module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


def test_identifiers_are_words_of_the_field() -> None:
    """As `scripts/house --banned` counts them."""
    house = script("house")
    faults = house.banned_in(house.working_tree())
    assert [fault for fault in faults if (fault[0], fault[2]) not in WIRE] == []
    assert {(path, name) for path, _, name in faults} == WIRE, "what is gone needs no exemption"


def test_a_banned_word_is_found() -> None:
    house = script("house")
    source = "class Held:\n    def is_told(self, nobody): ...\n\n\nretold = f'{asked}'\n"
    assert [name for _, _, name in house.banned_in({"a.py": source})] == ["is_told", "nobody", "asked", "Held"]


FRAGMENTS = {"Of", "As", "Those", "Whose"}
"""Words with which a docstring begins that leaves out its noun or verb."""
ATTRIBUTE_FRAGMENTS = FRAGMENTS | {
    "After", "Before", "But", "By", "For", "From", "How", "If", "In", "Its", "On", "Since", "That", "To", "What",
    "When", "Where", "Which", "Who", "With",
}  # fmt: skip
"""Words with which an attribute's text begins that does not name what the attribute is."""


def fragments(source: str) -> list[str]:
    """First lines of docstrings that are no phrase by themselves, those of attributes included."""
    bodies = [body for node in ast.walk(syntax(source)) if isinstance(body := getattr(node, "body", None), list)]
    found = []
    for body in bodies:
        for before, node in zip([None, *body], body, strict=False):
            text, is_attribute = _docstring(node), isinstance(before, ast.Assign | ast.AnnAssign)
            if text and text.split()[0] in (ATTRIBUTE_FRAGMENTS if is_attribute else FRAGMENTS):
                found.append(text.partition("\n")[0])
    return found


def _docstring(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value.strip()
    return ""


def test_docstrings_are_whole_phrases() -> None:
    product = [file for file in sources() if file.suffix == ".py" and file.parts[0] in PRODUCT]
    found = {str(file): texts for file in product if (texts := fragments((ROOT / file).read_text()))}
    assert found == {}


def test_a_fragment_is_found() -> None:
    assert fragments('"""A room."""\nSIZE = 1\n"""Of a file."""') == ["Of a file."]
    assert fragments('def read():\n    """As `write`."""\n') == ["As `write`."]
    assert fragments('class File:\n    size: int\n    """How long it is."""\n') == ["How long it is."]
    assert not fragments('def read():\n    """Read a file."""\n')
