"""Rooms stay small enough to be seen at a look, and are named once."""

import ast
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST = 15
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
    assert {str(folder): count for folder, count in found.items() if count > MOST} == {}


def test_no_file_repeats_its_folders_name() -> None:
    assert [
        str(file) for file in sources() if file.stem.startswith((f"{file.parent.name}_", f"{file.parent.name[:-1]}_"))
    ] == []


def test_each_room_says_what_lives_there() -> None:
    product = ("runtime", "console", "tenants", "launch", "models", "adapters", "registry")
    rooms = [file for file in sources() if file.name == "__init__.py" and file.parts[0] in product]
    assert len(rooms) > 30
    assert [str(file) for file in rooms if not ast.get_docstring(ast.parse((ROOT / file).read_text()))] == []
