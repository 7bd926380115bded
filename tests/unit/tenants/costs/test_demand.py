"""What a recording is taken for before anybody has heard it."""

import struct
from pathlib import Path

import pytest

from models.messages import TranscribeRequest
from runtime.gateway.charging.demand import demand_of, seconds_of

RATE, SECONDS = 8000, 3
SOUND = bytes(2 * RATE * SECONDS)


def wav(path: Path, told: int) -> Path:
    """told: its header's word for its length, in bytes."""
    form = struct.pack("<4sIHHIIHH4sI", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16, b"data", told)
    path.write_bytes(b"RIFF" + struct.pack("<I", 36 + len(SOUND)) + b"WAVE" + form + SOUND)
    return path


@pytest.mark.parametrize("told", [0, 2, len(SOUND), 2**32 - 1])
def test_a_wav_file_is_as_long_as_its_bytes_whatever_it_says(tmp_path: Path, told: int) -> None:
    assert seconds_of(wav(tmp_path / "a", told)) == pytest.approx(SECONDS, rel=0.01)


def test_other_recordings_may_be_of_the_lowest_rate_of_speech(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"OggS" + bytes(4750 // 8 * 60))
    assert seconds_of(tmp_path / "a") >= 60
    assert seconds_of(tmp_path / "none") == 0


def test_none_is_taken_to_be_longer_than_it_may_be(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(10**6))
    assert demand_of([TranscribeRequest(path=str(tmp_path / "a"))], None, 30.0).audio_ms == 30_000
