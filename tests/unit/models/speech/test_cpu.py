"""Settings of the speech libraries that depend on the processor."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from models.speech import libraries as transcribe_cpu
from models.speech.libraries import AVX512, widest_vectors
from registry.base.processor import features

ISA = "CT2_FORCE_CPU_ISA"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"fpu", "avx2", *AVX512, "avx512_vnni"}, "AVX512"),
        (AVX512 - {"avx512vl"}, None),
        ({"fp", "asimd"}, None),
        ((), None),
    ],
)
def test_avx_512_is_enabled_if_the_processor_has_all_of_it(
    flags: Iterable[str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcribe_cpu, "features", lambda: frozenset(flags))
    monkeypatch.setenv(ISA, "")  # so that monkeypatch restores it
    del os.environ[ISA]
    widest_vectors()
    assert os.environ.get(ISA) == expected


def test_the_operators_setting_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ISA, "GENERIC")
    widest_vectors()
    assert os.environ[ISA] == "GENERIC"


USED = """
import ctranslate2, logging, numpy, sys
from models.speech.engine import import_library
from models.speech.libraries import one_thread_for_numpy
from threadpoolctl import threadpool_info

import_library()
ctranslate2.set_log_level(logging.INFO)
one_thread_for_numpy()
print([pool["num_threads"] for pool in threadpool_info() if pool["internal_api"] == "openblas"])
ctranslate2.models.Whisper(sys.argv[1], device="cpu")
"""


@pytest.mark.real
def test_the_libraries_use_the_settings() -> None:
    """In a process of its own, since both libraries read their settings only once."""
    model = Path(__file__).parents[4] / "models" / "starter" / "pack" / "starter-speech"
    variables = {key: value for key, value in os.environ.items() if key != ISA}
    done = subprocess.run(
        [sys.executable, "-c", USED, str(model)], env=variables, capture_output=True, text=True, check=True, timeout=240
    )
    assert set(done.stdout.strip("[]\n").split(", ")) <= {"1", ""}
    assert f"Selected ISA: {'AVX512' if features() >= AVX512 else ''}" in done.stderr


@pytest.mark.parametrize("requested", ["", "0"])
def test_the_speech_libraries_write_no_id_of_this_machine(requested: str, tmp_path: Path) -> None:
    """The environment lacks the variables of CI, where ONNX Runtime sends no telemetry anyway."""
    variables = {
        "HOME": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parents[4]),
        "ORT_DISABLE_TELEMETRY": requested,
    }
    code = "from models.speech.engine import import_library; import_library()"
    subprocess.run([sys.executable, "-c", code], env=variables, check=True, timeout=240)
    assert list(tmp_path.rglob("*")) == []
