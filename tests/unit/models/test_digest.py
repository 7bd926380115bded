"""What makes a folder another revision of a model."""

from pathlib import Path

import pytest

from models.sources.resolve import revision
from registry.recipes.fields import PathSource


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "modeling_own.py", "below/modeling_own.py"])
def test_other_weights_settings_or_code_are_another_revision(tmp_path: Path, name: str) -> None:
    source = PathSource(path=str(tmp_path))
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("one")
    before = revision(source, tmp_path)
    (tmp_path / "notes.pdf").write_text("nobody reads it")
    assert revision(source, tmp_path) == before
    (tmp_path / name).write_text("another")
    assert revision(source, tmp_path) != before
