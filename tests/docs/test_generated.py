"""The generated tables are those that the code gives now."""

import subprocess
import sys
from pathlib import Path

import pytest

from docs import generate
from docs.tables import api, recipe
from runtime.http.routes import routes
from tests.docs.blocks import ROOT
from tests.eventually import PATIENCE


def test_every_page_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "docs.generate", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_table_stands_on_one_page() -> None:
    found = [name for page in generate.pages() for name in generate.names(page.read_text(encoding="utf-8"))]
    assert sorted(found) == sorted(generate.TABLES)


def test_a_change_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "DOCS", tmp_path / "docs")
    monkeypatch.setitem(generate.TABLES, "paths", lambda: "| new |")
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("before\n<!-- generated: paths -->\n| old |\n<!-- end of paths -->\nafter\n")
    assert list(generate.outdated()) == [page]
    page.write_text(generate.outdated()[page])
    assert page.read_text() == "before\n<!-- generated: paths -->\n| new |\n<!-- end of paths -->\nafter\n"
    assert generate.outdated() == {}


def test_a_page_is_reported_only_for_paths_that_there_are() -> None:
    assert [start for start in api.PAGES if not any(path.startswith(start) for path, _, _ in routes())] == []


def test_a_field_that_no_one_described_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(recipe.RECIPE, "dtype")
    with pytest.raises(ValueError, match="dtype: describe it once"):
        recipe.fields()
    monkeypatch.setitem(recipe.RECIPE, "dtype", "x")
    monkeypatch.setitem(recipe.RECIPE, "old_key", "x")
    with pytest.raises(ValueError, match="old_key"):
        recipe.fields()
