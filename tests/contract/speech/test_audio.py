"""Decoding in a process that can be killed: every format, every cap, and files that are none."""

import os
import signal
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from models.speech.audio import RATE, Decoders
from registry.errors import BadRequest, EngineFailed, TooLarge, Unavailable
from tests.contract.speech.fixtures import FORMATS, noise, tone, write

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def decoders() -> Iterator[Decoders]:
    decoders = Decoders()
    decoders.warm()
    yield decoders
    decoders.close()
    with pytest.raises(EngineFailed):
        decoders.open("x", 1.0)


def decoded(decoders: Decoders, path: Path, seconds: float = 60.0) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    with decoders.open(str(path), seconds) as recording:
        blocks = list(recording)
        assert all(len(block) <= 8 * RATE for block in blocks)
        return np.concatenate(blocks)


def children() -> int:
    living = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return len([child for child in living if "decoder.py" in " ".join(child.cmdline())])


@pytest.mark.parametrize("ending", sorted(FORMATS))
def test_formats(decoders: Decoders, tmp_path: Path, ending: str) -> None:
    sound = tone(20.0)
    samples = decoded(decoders, write(tmp_path / f"a.{ending}", sound))
    assert samples.dtype == np.float32
    assert len(samples) / RATE == pytest.approx(20.0, abs=0.2)
    middle = samples[5 * RATE : 15 * RATE]
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.3 / np.sqrt(2), rel=0.1)
    spectrum = np.abs(np.fft.rfft(middle))
    assert np.argmax(spectrum) / 10.0 == pytest.approx(440, abs=1)


def test_a_wav_comes_sample_by_sample_whatever_its_name(decoders: Decoders, tmp_path: Path) -> None:
    sound = noise(9.0)
    path = write(tmp_path / "a.wav", sound).rename(tmp_path / "really.mp3")
    np.testing.assert_allclose(decoded(decoders, path), sound, atol=1e-4)


def test_stereo_of_another_rate_becomes_one_channel(decoders: Decoders, tmp_path: Path) -> None:
    left = (tone(2.0) * 32767).astype("<i2").repeat(3)[: 2 * 44100]
    data = np.stack([left, -left], axis=1).tobytes()
    head = (
        b"RIFF"
        + struct.pack("<I", 36 + len(data))
        + b"WAVEfmt "
        + struct.pack("<IHHIIHH", 16, 1, 2, 44100, 176400, 4, 16)
    )
    path = tmp_path / "stereo.wav"
    path.write_bytes(head + b"data" + struct.pack("<I", len(data)) + data)
    samples = decoded(decoders, path)
    assert len(samples) == pytest.approx(2 * RATE, abs=50)
    assert np.abs(samples).max() < 1e-3  # the channels cancel each other


def test_caps_hold_while_decoding(decoders: Decoders, tmp_path: Path) -> None:
    path = write(tmp_path / "long.flac", np.zeros(120 * RATE, dtype=np.float32))
    assert path.stat().st_size < 200_000
    assert len(decoded(decoders, path, 120.0)) == 120 * RATE
    with pytest.raises(TooLarge, match="longer than 30 seconds") as refused:
        decoded(decoders, path, 30.0)
    assert (refused.value.status, refused.value.code) == (413, "audio_too_long")
    assert len(decoded(decoders, write(tmp_path / "next.wav", tone(1.0)))) == RATE


def bad_files(folder: Path) -> dict[str, tuple[bytes, str]]:
    m4a = write(folder / "good.m4a", tone(5.0)).read_bytes()
    random = np.random.default_rng(1).bytes(200_000)
    secret = folder / "secret.wav"
    write(secret, tone(1.0))
    return {
        "empty.wav": (b"", "empty"),
        "text.mp3": (b"hello world " * 1000, "no recording"),
        "random.mp3": (random, "damaged|no recording|no sound"),
        "page.webm": (b"<html><body>404</body></html>", "no recording"),
        "head.wav": (b"RIFF\x24\x00\x00\x00WAVE", "no recording|no sound|damaged"),
        "half.m4a": (m4a[: len(m4a) // 2], "no recording|damaged"),
        "list.m3u8": (f"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{secret}\n".encode(), "no recording"),
        "list.txt": (f"ffconcat version 1.0\nfile {secret}\n".encode(), "no recording"),
    }  # fmt: skip


def test_what_is_no_recording_is_the_clients_fault(decoders: Decoders, tmp_path: Path) -> None:
    for name, (data, why) in bad_files(tmp_path).items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(BadRequest, match=why) as refused:
            decoded(decoders, path)
        assert refused.value.code == "invalid_audio", name
        assert str(tmp_path) not in refused.value.message
    assert len(decoded(decoders, write(tmp_path / "after.wav", tone(1.0)))) == RATE


def test_a_film_without_sound(decoders: Decoders, tmp_path: Path) -> None:
    import av

    path = tmp_path / "film.mp4"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for _ in range(5):
            frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), dtype=np.uint8), format="rgb24")
            for packet in stream.encode(frame):
                file.mux(packet)
        for packet in stream.encode(None):
            file.mux(packet)
    with pytest.raises(BadRequest, match="no sound"):
        decoded(decoders, path)


def test_decoders_are_used_again_and_left_ones_are_killed(tmp_path: Path) -> None:
    decoders = Decoders(spare=1)
    path = str(write(tmp_path / "a.wav", tone(60.0)))
    for _ in range(3):
        with decoders.open(path, 60.0) as recording:
            assert sum(map(len, recording)) == 60 * RATE
    (process,) = decoders._idle
    assert process.jobs == 3
    with decoders.open(path, 60.0) as recording:
        next(iter(recording))
    assert not decoders._idle
    with decoders.open(path, 60.0) as recording:
        os.kill(recording._process._child.pid, signal.SIGSEGV)
        with pytest.raises(BadRequest, match="crashed"):
            list(recording)
    with decoders.open(path, 60.0) as recording:
        os.kill(recording._process._child.pid, signal.SIGKILL)  # as the kernel does when memory runs out
        with pytest.raises(Unavailable, match="memory") as killed:
            list(recording)
        assert (killed.value.code, killed.value.retry_after) == ("out_of_memory", 5)
    with decoders.open(path, 60.0) as recording:
        assert sum(map(len, recording)) == 60 * RATE
    decoders._idle[0]._child.kill()  # an idle one dies: nobody notices
    decoders._idle[0]._child.wait()
    with decoders.open(path, 60.0) as recording:
        assert sum(map(len, recording)) == 60 * RATE
    before = children()
    decoders.close()
    assert children() < before


def test_a_decoder_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoders = Decoders()
    fifo = tmp_path / "a.wav"
    fifo.write_bytes(write(tmp_path / "b.wav", tone(60.0)).read_bytes())
    with decoders.open(str(fifo), 60.0) as recording:
        os.kill(recording._process._child.pid, signal.SIGSTOP)
        monkeypatch.setattr("models.speech.audio.WAIT_SECONDS", 0.3)
        with pytest.raises(BadRequest, match="too long to decode"):
            list(recording)
    decoders.close()


def test_closing_frees_a_thread_that_waits(tmp_path: Path) -> None:
    decoders = Decoders()
    recording = decoders.open(str(write(tmp_path / "a.wav", tone(60.0))), 60.0)
    os.kill(recording._process._child.pid, signal.SIGSTOP)
    errors: list[BaseException] = []

    def read() -> None:
        try:
            list(recording)
        except BadRequest as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    recording.close()
    thread.join(200)
    assert len(errors) == 1
    decoders.close()
