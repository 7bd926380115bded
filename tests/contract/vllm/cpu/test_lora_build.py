"""The LoRA kernel is compiled once, and products are used where it cannot be compiled."""

import shutil
from pathlib import Path

import pytest

from models.chat.vllm.cpu import kernel, products

pytestmark = pytest.mark.real


def test_the_kernel_is_compiled_once_per_source_and_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = kernel.build(tmp_path / "native")
    monkeypatch.setattr("models.native.subprocess.run", lambda *a, **k: pytest.fail("compiled a second time"))
    assert kernel.build(tmp_path / "native") == made
    assert [file.name for file in (tmp_path / "native").iterdir()] == [made.name]


@pytest.mark.parametrize(
    ("compiler", "cache"),
    [("no-such-compiler", ""), (shutil.which("false") or "false", ""), ("cc", "~/.cache")],
)
def test_without_a_compiler_or_a_home_products_are_used_and_there_is_a_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, cache: str
) -> None:
    """cache: a folder that does not exist, as for a user without a home folder."""
    stated: list[str] = []
    monkeypatch.setattr(kernel._log, "warning", lambda text, *values: stated.append(text % values))
    monkeypatch.setattr("platformdirs.user_cache_path", lambda _: Path(cache or tmp_path))
    monkeypatch.setenv("CC", compiler)
    assert kernel.load.__wrapped__() is products.add
    assert len(stated) == 1
    assert "mixed batches are slower" in stated[0]


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "native").mkdir()
    (tmp_path / "native").chmod(0o777)
    with pytest.raises(PermissionError):
        kernel.build(tmp_path / "native")
