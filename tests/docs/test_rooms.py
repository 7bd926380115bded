"""Rooms stay small enough to be seen at a look, and are named once."""

import ast
import subprocess
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PRODUCT = ("runtime", "console", "tenants", "routing", "launch", "models", "adapters", "registry")
MAX_FILES = 15
"""Source files of a folder, beside its `__init__.py`."""


def sources() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py", "*.c"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [Path(line) for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


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
    assert [str(file) for file in rooms if not ast.get_docstring(ast.parse((ROOT / file).read_text()))] == []


def test_no_two_files_import_each_other() -> None:
    """Nor in a larger circle; imports inside functions count, too."""
    graph = grimp.build_graph(*PRODUCT, cache_dir=None)
    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()
