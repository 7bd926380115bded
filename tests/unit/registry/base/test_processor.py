"""Features and names of processors in Linux's /proc/cpuinfo."""

import platform
from pathlib import Path

import pytest

from registry.base import processor

X86 = "processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n"


@pytest.mark.parametrize(
    ("text", "features", "model"),
    [
        (X86, {"fpu", "avx2"}, "Some CPU @ 2.00GHz"),
        ("processor\t: 0\nFeatures\t: fp asimd bf16\n", {"fp", "asimd", "bf16"}, platform.machine()),
        ("vendor_id : something else\n", set(), platform.machine()),
        (None, set(), platform.machine()),
    ],
)
def test_features_and_name_are_read(
    text: str | None, features: set[str], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert processor.features.__wrapped__() == features
    assert processor.model() == model
