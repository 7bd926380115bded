"""Files that pages name are there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, ROOT, pages

RECORD = DOCS / "notebook.md"
"""Names files as they were on the day of the entry."""
FOLDERS = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
_PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})(?:/[\w.*-]+)*/[\w*-]+\.[a-z]+\b")
FILES = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")}
_SOURCE = re.compile(r"`((?:[\w*-]+/)*[\w*-]+\.(?:py|c))`")


def missing(text: str) -> Iterator[str]:
    """Paths of files that do not exist, and bare names in backticks of source files that are nowhere. '*' stands for
    one folder's or file's name."""
    for name in {*_PATH.findall(text), *_SOURCE.findall(text)}:
        if name not in FILES and next(ROOT.glob(name), None) is None:
            yield name


@pytest.mark.parametrize("page", [*pages(), ROOT / "ARCHITECTURE.md"], ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    if page == RECORD:
        pytest.skip("a record of what was")
    assert sorted(missing(page.read_text(encoding="utf-8"))) == []


def test_a_file_that_is_gone_is_noticed() -> None:
    text = "see `runtime/gone.py`, runtime/http/*/endpoints.py, models/gone/x.wav, `loop.py`, `gone.py` and https://a/docs/x.py"
    assert sorted(missing(text)) == ["gone.py", "models/gone/x.wav", "runtime/gone.py"]
