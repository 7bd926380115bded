"""The error names the file of a model that cannot be read."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from models.broken_files import SETTINGS, refuse_broken_settings, refuse_broken_vocabulary
from registry.errors import EngineFailed
from tests.system.serving import PACK


@pytest.mark.parametrize(
    ("name", "refuse"),
    [
        ("config.json", refuse_broken_settings),
        ("generation_config.json", refuse_broken_settings),
        ("tokenizer.json", refuse_broken_vocabulary),
    ],
)
def test_a_file_that_was_cut_off_is_named(name: str, refuse: Callable[[Path], None], tmp_path: Path) -> None:
    shutil.copytree(PACK / "starter-chat", tmp_path, dirs_exist_ok=True)
    refuse(tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:50])
    with pytest.raises(EngineFailed, match=rf"{name} cannot be read: .*Copy it again"):
        refuse(tmp_path)


def test_a_tokenizer_of_another_form_is_named(tmp_path: Path) -> None:
    refuse_broken_vocabulary(tmp_path)
    refuse_broken_vocabulary(PACK / "starter-chat")
    content = json.loads((PACK / "starter-chat" / "tokenizer.json").read_text(encoding="utf-8"))
    (tmp_path / "tokenizer.json").write_text(json.dumps({**content, "model": {"type": "Unknown"}}))
    with pytest.raises(EngineFailed, match=r"tokenizer\.json cannot be read: data did not match"):
        refuse_broken_vocabulary(tmp_path)


def test_values_that_only_python_writes_are_no_fault(tmp_path: Path) -> None:
    for name in SETTINGS:
        (tmp_path / name).write_text('{"limit": Infinity, "share": NaN}')
    refuse_broken_settings(tmp_path)
