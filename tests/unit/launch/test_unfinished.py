"""Conversions ended by a full disk or a kill: their errors, and the removal of leftovers."""

import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest

from launch.conversion.process import _convert
from launch.conversion.whisper import Conversions
from models.sources.fetching import FetchFailed
from registry.errors import Unavailable
from registry.recipes.definition import Recipe
from registry.storage.reserve import DiskReserve


def test_a_start_removes_half_conversions_of_a_killed_server(tmp_path: Path) -> None:
    """The model may have been removed, so that it is never converted again."""
    for name in ("abc-2.half", "def-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.bin").write_bytes(b"x")
    Conversions(tmp_path).tidy()
    assert [path.name for path in tmp_path.iterdir()] == ["def-2"]
    Conversions(tmp_path / "none yet").tidy()


async def test_a_conversion_does_not_use_the_disks_reserve(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text('{"model_type": "whisper"}')
    (checkpoint / "model.safetensors").write_bytes(b"x")
    recipe = Recipe.model_validate(
        {"id": "w", "version": 1, "task": "transcribe", "source": {"path": "x"}, "engine": {"name": "faster-whisper"}}
    )
    conversions = Conversions(tmp_path / "converted", reserve=DiskReserve(tmp_path, 1 << 60))
    with pytest.raises(Unavailable) as refused:
        await conversions.make(recipe, checkpoint)
    assert refused.value.code == "storage_full"
    assert not list((tmp_path / "converted").iterdir())


@pytest.mark.parametrize(("free", "reported"), [(0, (503, "disk_full")), (2**30, (422, "conversion_failed"))])
def test_a_full_disk_does_not_mark_the_checkpoint_as_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, reported: tuple[int, str]
) -> None:
    """The tokenizers library is written in Rust, whose errors have no errno, so the model counted as broken."""

    class Converter:
        def __init__(self, *_: object, **__: object) -> None: ...

        def convert(self, *_: object, **__: object) -> None:
            raise Exception("No space left on device (os error 28)")

    fake = ModuleType("ctranslate2.converters")
    fake.TransformersConverter = Converter  # type: ignore[attr-defined]
    monkeypatch.setattr(
        "launch.conversion.process.collect_missing_weights", lambda: nullcontext(())
    )  # it imports torch
    monkeypatch.setitem(sys.modules, "ctranslate2", ModuleType("ctranslate2"))
    monkeypatch.setitem(sys.modules, "ctranslate2.converters", fake)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, free))  # type: ignore[attr-defined]
    (tmp_path / "model.safetensors").write_bytes(b"x")
    answer = _convert(tmp_path, tmp_path / "out", lambda *_: None)
    assert isinstance(answer, FetchFailed)
    assert (answer.status, answer.code) == reported
