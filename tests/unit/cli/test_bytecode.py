"""When the server keeps a cache of compiled modules: never against the user's word, never where others may write."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.cli import bytecode


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package that is not compiled, in a Python that does not compile."""
    (tmp_path / "heavy_one").mkdir()
    (tmp_path / "heavy_one" / "__init__.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(bytecode, "HEAVY", ("heavy_one", "not_installed_at_all"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", None)


@pytest.mark.usefixtures("bare")
def test_the_cache_is_used_by_processes_that_start_afterwards(tmp_path: Path) -> None:
    environment = {**os.environ, bytecode.DONT_WRITE: "1", "PYTHONPATH": str(tmp_path)}
    environment.pop(bytecode.PREFIX, None)
    cache = tmp_path / "cache"
    assert bytecode.keep(environment, cache) == cache
    subprocess.run([sys.executable, "-c", "import heavy_one"], env=environment, check=True, timeout=240)
    assert list(cache.glob("**/heavy_one/__init__.*.pyc"))
    assert not (tmp_path / "heavy_one" / "__pycache__").exists()


@pytest.mark.usefixtures("bare")
def test_the_users_own_folder_stands(tmp_path: Path) -> None:
    environment = {bytecode.PREFIX: "/somewhere", bytecode.DONT_WRITE: "1"}
    assert bytecode.keep(environment, tmp_path / "cache") is None
    assert environment == {bytecode.PREFIX: "/somewhere", bytecode.DONT_WRITE: "1"}


@pytest.mark.usefixtures("bare")
def test_a_folder_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    environment: dict[str, str] = {}
    assert bytecode.keep(environment, cache) is None
    assert environment == {}


@pytest.mark.usefixtures("bare")
def test_where_python_compiles_by_itself_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert bytecode.keep({}, tmp_path / "cache") is None
