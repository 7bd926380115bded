"""The error names the file of a model that cannot be read."""

import json
import shutil
from pathlib import Path

import pytest

from models.broken_files import JSON_FILES, refuse_broken_files, refuse_broken_tokenizer
from registry.errors import EngineFailed
from tests.system.serving import PACK


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json"])
def test_a_file_that_was_cut_off_is_named(name: str, tmp_path: Path) -> None:
    shutil.copytree(PACK / "starter-chat", tmp_path, dirs_exist_ok=True)
    refuse_broken_files(tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:50])
    with pytest.raises(EngineFailed, match=rf"{name} cannot be read: .*Copy it again"):
        refuse_broken_files(tmp_path)


def test_a_tokenizer_of_another_form_is_named(tmp_path: Path) -> None:
    refuse_broken_tokenizer(tmp_path)
    refuse_broken_tokenizer(PACK / "starter-chat")
    content = json.loads((PACK / "starter-chat" / "tokenizer.json").read_text(encoding="utf-8"))
    (tmp_path / "tokenizer.json").write_text(json.dumps({**content, "model": {"type": "Unknown"}}))
    with pytest.raises(EngineFailed, match=r"tokenizer\.json cannot be read: data did not match"):
        refuse_broken_tokenizer(tmp_path)


def test_values_that_only_python_writes_are_no_fault(tmp_path: Path) -> None:
    for name in JSON_FILES:
        (tmp_path / name).write_text('{"limit": Infinity, "share": NaN}')
    refuse_broken_files(tmp_path)
