"""Rooms stay small enough to be seen at a look, and are named once."""

import ast
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

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


LISTED = re.compile(r"^ *(\w+(?:\.py|/))  *\S", re.MULTILINE)
"""A line of a docstring that lists the files of its folder."""


def wrong_lists(texts: dict[Path, str], files: list[Path]) -> dict[str, set[str]]:
    """By folder: the names in the list of its docstring that are gone, and those of its files that are not there."""
    inside = defaultdict[Path, set[str]](set)
    for path in files:
        inside[path.parent].add(path.name)
        for folder in path.parent.parents:
            inside[folder].add(f"{path.relative_to(folder).parts[0]}/")
    found = {}
    for file, text in texts.items():
        listed = set(LISTED.findall(text))
        names = inside[file.parent] - {"__init__.py", "__main__.py"}
        wrong = (listed - names - {"__main__.py"}) | {name for name in names if name not in text}
        if len(listed) > 1 and wrong:
            found[str(file.parent)] = wrong
    return found


def test_a_room_that_lists_its_files_lists_them_all() -> None:
    files = [file for file in sources() if file.suffix == ".py"]
    rooms = [file for file in files if file.name == "__init__.py"]
    texts = {file: ast.get_docstring(syntax((ROOT / file).read_text())) or "" for file in rooms}
    assert wrong_lists(texts, files) == {}


def test_a_missing_file_is_found() -> None:
    texts = {Path("room/__init__.py"): "A room.\n\nold.py  is gone\nnew.py  is here\n\nSee `named.py`."}
    files = [Path("room/new.py"), Path("room/named.py"), Path("room/inner/any.py"), Path("room/__init__.py")]
    assert wrong_lists(texts, files) == {"room": {"old.py", "inner/"}}


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
    ("runtime/gateway/sinks/operators.py", "asked"),
    ("runtime/gateway/sinks/tenants.py", "asked"),
    ("tenants/ledger/lookup.py", "asked"),
    ("tenants/ledger/rows.py", "asked"),
    ("tests/unit/providers/test_routed.py", "asked"),
    ("tests/unit/routing/test_replay.py", "asked"),
    ("tests/unit/tenants/test_limit_table.py", "asked"),
}
"""A column of the ledger and a JSON field have this name, and a schema of the OpenAPI document: clients know them."""


BANNED = {
    "told", "asked", "wanted", "shown", "heard", "said", "whoever", "nobody", "elsewhere", "coming", "handed",
}  # fmt: skip
"""Words that no identifier may contain, because they are no terms of this field."""
CLASS_NAMES = {
    "By", "Through", "When", "From", "With", "First", "Second", "Left", "Held", "Known", "Found", "Kept", "Lost",
    "Missing", "Judged", "Handed", "Coming", "Picked", "Given", "Look", "Looking", "Said", "Told", "Heard", "Wanted",
    "Asked", "Shown", "Spoken", "Staged", "Placed", "Fetched", "Come", "Now",
}  # fmt: skip
"""Class names that are a bare participle or preposition."""
SUSPECT = re.compile(rf"(?i:{'|'.join(BANNED)})|\bclass\s+_*(?:{'|'.join(CLASS_NAMES)})_*\b")
"""Matches somewhere in each source with a banned identifier. Other sources need not be parsed."""


def identifiers(source: str) -> Iterator[str]:
    """Each name that a file binds or uses."""
    for node in ast.walk(syntax(source)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.keyword(arg=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name
            case ast.alias(name=name, asname=alias):
                yield alias or name.rpartition(".")[2]
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name


def words_of(name: str) -> set[str]:
    """The words of a snake_case or CamelCase identifier, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def banned_in(source: str) -> set[str]:
    if not SUSPECT.search(source):
        return set()
    classes = {node.name for node in ast.walk(syntax(source)) if isinstance(node, ast.ClassDef)}
    return {name for name in identifiers(source) if BANNED & words_of(name)} | {
        name for name in classes if name.strip("_") in CLASS_NAMES
    }


def test_identifiers_are_words_of_the_field() -> None:
    python = [file for file in sources() if file.suffix == ".py"]
    found = {(str(file), name) for file in python for name in banned_in((ROOT / file).read_text())}
    assert found - WIRE == set()
    assert found == WIRE, "what is gone needs no exemption"


def test_a_banned_word_is_found() -> None:
    source = "class Held:\n    def is_told(self, nobody): ...\n\n\nretold = f'{asked}'\n"
    assert banned_in(source) == {"is_told", "nobody", "asked", "Held"}


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
