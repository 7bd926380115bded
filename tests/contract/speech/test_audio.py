"""Decoding in a process that can be killed: all formats, all caps, and files that are no recordings."""

import os
import signal
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from models.speech import decoder
from models.speech.audio import Decoders
from models.speech.decoder import RATE
from models.speech.length import seconds_of
from registry.bounds import USUAL, Bounds
from registry.errors import BadRequest, EngineFailed, TooLarge, Unavailable
from tests.contract.speech.fixtures import FORMATS, noise, tone, voice, write

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def decoders() -> Iterator[Decoders]:
    decoders = Decoders()
    decoders.warm()
    yield decoders
    decoders.close()
    with pytest.raises(EngineFailed):
        decoders.open("x", 1.0)


FIT = decoder.DecoderLimits(**USUAL.model_dump(include=set(decoder.DecoderLimits._fields)))


def decoded(decoders: Decoders, path: Path, seconds: float = 60.0) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    with decoders.open(str(path), seconds) as recording:
        blocks = list(recording)
        assert all(len(block) <= 8 * RATE for block in blocks)
        return np.concatenate(blocks)


def children() -> int:
    living = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return len([child for child in living if "speech/decoder.py" in " ".join(child.cmdline())])


@pytest.mark.parametrize("ending", sorted(FORMATS))
def test_a_recording_in_any_format_keeps_its_length_level_and_pitch(
    decoders: Decoders, tmp_path: Path, ending: str
) -> None:
    sound = tone(20.0)
    samples = decoded(decoders, write(tmp_path / f"a.{ending}", sound))
    assert samples.dtype == np.float32
    assert len(samples) / RATE == pytest.approx(20.0, abs=0.2)
    middle = samples[5 * RATE : 15 * RATE]
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.3 / np.sqrt(2), rel=0.1)
    spectrum = np.abs(np.fft.rfft(middle))
    assert np.argmax(spectrum) / 10.0 == pytest.approx(440, abs=1)


def test_a_wav_file_is_decoded_exactly_whatever_its_name(decoders: Decoders, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("forms", [[(44_100, 2), (44_100, 1)], [(16_000, 1), (44_100, 1), (16_000, 1)]])
def test_a_recording_may_change_its_format_midway(
    decoders: Decoders, tmp_path: Path, forms: list[tuple[int, int]]
) -> None:
    """As concatenated recordings and broadcasts do."""
    import av

    data = b""
    for rate, channels in forms:
        path, samples = tmp_path / "part.mp3", (tone(3.0 * rate / RATE) * 32767).astype("<i2")
        with av.open(str(path), "w") as file:
            stream = file.add_stream("libmp3lame", rate=rate, layout="stereo" if channels == 2 else "mono")
            frame = av.AudioFrame.from_ndarray(
                samples.repeat(channels)[None, :], format="s16", layout=stream.layout.name
            )  # fmt: skip
            frame.sample_rate = rate
            for packet in [*stream.encode(frame), *stream.encode(None)]:
                file.mux(packet)
        data += path.read_bytes()
    (tmp_path / "whole.mp3").write_bytes(data)
    samples = decoded(decoders, tmp_path / "whole.mp3")
    assert len(samples) / RATE == pytest.approx(3.0 * len(forms), abs=0.4)
    for part in np.array_split(samples, len(forms)):
        assert np.sqrt(np.mean(part**2)) == pytest.approx(0.3 / np.sqrt(2), rel=0.1), "no part is silent"


def test_caps_hold_while_decoding(decoders: Decoders, tmp_path: Path) -> None:
    path = write(tmp_path / "long.flac", np.zeros(120 * RATE, dtype=np.float32))
    assert path.stat().st_size < 200_000
    assert len(decoded(decoders, path, 120.0)) == 120 * RATE
    with pytest.raises(TooLarge, match="longer than 30 seconds") as refused:
        decoded(decoders, path, 30.0)
    assert (refused.value.status, refused.value.code) == (413, "audio_too_long")
    assert len(decoded(decoders, write(tmp_path / "next.wav", tone(1.0)))) == RATE


def wav(path: Path, rate: int, channels: int, size: int) -> Path:
    """Write silence with a header of these values."""
    align = channels * 2
    head = struct.pack("<IHHIIHH", 16, 1, channels, rate, rate * align & 0xFFFFFFFF, align & 0xFFFF, 16)
    data = b"data" + struct.pack("<I", size) + bytes(size)
    path.write_bytes(b"RIFF" + struct.pack("<I", 28 + len(data)) + b"WAVEfmt " + head + data)
    return path


@pytest.mark.parametrize(
    ("rate", "channels", "why"),
    [
        (1, 1, "1 samples a second: 4000 to 768000"),
        (3_999, 2, "3999 samples a second"),
        (768_001, 1, "768001 samples a second"),
        (16_000, 65_535, "no channels, or far too many: 1 to 32"),
        (16_000, 255, "255 channels"),
        (16_000, 0, "no channels"),
        (2**32 - 1, 1, "read as a recording"),
    ],
)
def test_an_impossible_header_is_refused_before_anything_is_decoded(
    decoders: Decoders, tmp_path: Path, rate: int, channels: int, why: str
) -> None:
    path = wav(tmp_path / "odd.wav", rate, channels, 4_000_000)
    with decoders.open(str(path), 3600.0) as recording:
        with pytest.raises(BadRequest, match=why) as refused:
            next(iter(recording))
        assert (recording.samples, recording.length) == (0, None), "refused by its header"
    assert (refused.value.code, refused.value.param) == ("invalid_audio", "file")


def test_sound_that_no_codec_decodes_is_the_clients_fault(decoders: Decoders, tmp_path: Path) -> None:
    path = wav(tmp_path / "odd.wav", 16_000, 1, 32_000)
    content = bytearray(path.read_bytes())
    struct.pack_into("<H", content, 34, 0)  # bits per sample
    path.write_bytes(content)
    with pytest.raises(BadRequest, match="how its sound is stored"), decoders.open(str(path), 60.0) as recording:
        list(recording)


def test_a_header_that_states_too_long_a_recording_is_refused_at_once(decoders: Decoders, tmp_path: Path) -> None:
    path = write(tmp_path / "long.flac", np.zeros(121 * RATE, dtype=np.float32))
    with decoders.open(str(path), 30.0) as recording:
        with pytest.raises(TooLarge, match="longer than 30 seconds"):
            next(iter(recording))
        assert recording.samples == 0


@pytest.mark.parametrize("claimed", [0, 2 * RATE, 2**32 - 1])
def test_no_more_of_a_wav_file_is_decoded_than_is_reserved(decoders: Decoders, tmp_path: Path, claimed: int) -> None:
    """The length in its header does not matter."""
    path = write(tmp_path / "a.wav", tone(3.0))
    data = bytearray(path.read_bytes())
    at = data.index(b"data") + 4
    data[at : at + 4] = struct.pack("<I", claimed)
    path.write_bytes(data)
    assert len(decoded(decoders, path)) / RATE <= seconds_of(path) <= 3.1


def test_no_more_of_a_wav_file_with_two_formats_is_decoded_than_is_reserved(decoders: Decoders, tmp_path: Path) -> None:
    """The second one states 768,000 samples a second in 32 channels."""
    path = write(tmp_path / "a.wav", tone(3.0))
    data = path.read_bytes()
    at = data.index(b"fmt ") + 8 + struct.unpack("<I", data[data.index(b"fmt ") + 4 :][:4])[0]
    second = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 32, 768_000, 768_000 * 128, 128, 32)
    path.write_bytes(data[:at] + second + data[at:])
    assert 2.9 <= len(decoded(decoders, path)) / RATE <= seconds_of(path) <= 3.1


@pytest.mark.parametrize(("bits", "valid"), [(16, 16), (24, 24), (24, 0), (24, 20), (24, 8), (32, 8), (16, 1)])
def test_no_more_of_an_extensible_wav_file_is_decoded_than_is_reserved(
    decoders: Decoders, tmp_path: Path, bits: int, valid: int
) -> None:
    """Decoders read the number of valid bits as the number of stored bits."""
    path = extensible(tmp_path / "a.wav", bits, valid, bytes(3 * RATE * bits // 8))
    seconds = len(decoded(decoders, path)) / RATE
    assert 2.9 <= seconds <= seconds_of(path) <= seconds + 0.1


@pytest.mark.parametrize(("kind", "bits"), [(3, 32), (3, 64), (6, 8), (7, 8), (7, 16)])
@pytest.mark.parametrize("extended", [False, True])
def test_no_more_of_floats_or_of_a_phone_call_is_decoded_than_is_reserved(
    decoders: Decoders, tmp_path: Path, kind: int, bits: int, extended: bool
) -> None:
    """A-law and mu-law have 8 bits, whatever the header says. The codec is the header's, whatever the bytes are."""
    stored = bits if kind == 3 else 8
    form = struct.pack("<HHIIHH", 0xFFFE if extended else kind, 1, RATE, RATE * stored // 8, stored // 8, bits)
    if extended:
        form += struct.pack("<HHIH", 22, bits, 4, kind) + bytes.fromhex("000000001000800000aa00389b71")
    path = riff(tmp_path / "a.wav", form, bytes(3 * RATE * stored // 8))
    assert len(decoded(decoders, path)) / RATE <= seconds_of(path)
    if bits == stored:
        assert seconds_of(path) < 3.1
    other = write(tmp_path / "a.mp3", tone(20.0)).read_bytes()
    assert len(decoded(decoders, riff(path, form, other))) / RATE <= seconds_of(path)


def extensible(path: Path, bits: int, valid: int, sound: bytes) -> Path:
    form = struct.pack("<HHIIHHHHI", 0xFFFE, 1, RATE, RATE * bits // 8, bits // 8, bits, 22, valid, 4)
    form += bytes.fromhex("0100000000001000800000aa00389b71")
    return riff(path, form, sound)


def riff(path: Path, form: bytes, sound: bytes) -> Path:
    data = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(sound)) + sound
    path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(data)) + b"WAVE" + data)
    return path


def test_a_wav_file_with_sound_in_another_codec_is_refused(decoders: Decoders, tmp_path: Path) -> None:
    """FFmpeg detects the codec from the bytes, and would decode hours where a moment was reserved."""
    sound = write(tmp_path / "a.mp3", tone(20.0)).read_bytes()
    path = wav(tmp_path / "a.wav", 768_000, 32, len(sound))
    path.write_bytes(path.read_bytes()[: -len(sound)] + sound)
    assert seconds_of(path) < 0.1
    with pytest.raises(BadRequest, match="is mp3"):
        decoded(decoders, path)
    with pytest.raises(BadRequest, match="is mp3"):
        decoded(decoders, extensible(path, 16, 16, sound))


def test_no_more_of_speech_at_the_lowest_rate_is_decoded_than_is_reserved(decoders: Decoders, tmp_path: Path) -> None:
    import av

    path, samples = tmp_path / "a.ogg", (voice(10.0) * 32767).astype("<i2")
    with av.open(str(path), "w", format="ogg") as file:
        stream = file.add_stream("libopus", rate=RATE, layout="mono", options={"application": "voip"})
        stream.bit_rate = 6000
        frame = av.AudioFrame.from_ndarray(samples[None, :], format="s16", layout="mono")
        frame.sample_rate = RATE
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            file.mux(packet)
    assert path.stat().st_size * 8 < 10_000 * 10, "fewer than 10,000 bits a second"
    assert len(decoded(decoders, path)) / RATE <= seconds_of(path)


@pytest.mark.parametrize("ending", ["flac", "mp3", "opus", "ogg"])
def test_a_bomb_is_decoded_only_up_to_the_allowed_length(decoders: Decoders, tmp_path: Path, ending: str) -> None:
    """Hours in a few kilobytes, in a container without a length, as of a stream that was not closed."""
    import av

    path = tmp_path / f"bomb.{ending}"
    encoder, kind = {"flac": ("flac", "flac"), "mp3": ("libmp3lame", "mp3")}.get(ending, ("libopus", "ogg"))
    silence = np.zeros((1, 48_000), dtype="<i2")
    with av.open(str(path), "w", format=kind) as file:
        stream = file.add_stream(encoder, rate=48_000, layout="mono")
        for _ in range(900):
            frame = av.AudioFrame.from_ndarray(silence, format="s16", layout="mono")
            frame.sample_rate = 48_000
            for packet in stream.encode(frame):
                file.mux(packet)
        for packet in stream.encode(None):
            file.mux(packet)
    data = bytearray(path.read_bytes())
    if ending == "flac":
        data[4 + 4 + 13] &= 0xF0  # an unknown number of samples
        data[4 + 4 + 14 : 4 + 4 + 18] = bytes(4)
    path.write_bytes(data if kind != "ogg" else data[: len(data) * 9 // 10])
    with decoders.open(str(path), 300.0) as recording:
        with pytest.raises(TooLarge, match="longer than 300 seconds"):
            for _ in recording:
                pass
        assert recording.samples <= 300 * RATE
    assert len(decoded(decoders, write(tmp_path / "next.wav", tone(1.0)))) == RATE


def test_decoders_follow_the_servers_bounds(tmp_path: Path) -> None:
    decoders = Decoders(Bounds(sample_rate_least=17_000))
    with pytest.raises(BadRequest, match="17000 to 768000"):
        decoded(decoders, write(tmp_path / "a.wav", tone(1.0)))
    decoders.close()


def test_each_frame_is_checked_for_what_the_header_does_not_state() -> None:
    with pytest.raises(decoder.UndecodableFile, match="33 channels"):
        decoder.check_shape(16_000, 33, FIT)
    with pytest.raises(decoder.UndecodableFile, match="stored as rawvideo"):
        decoder.check_codec("rawvideo")
    decoder.check_shape(768_000, 32, FIT)
    for name in ("pcm_s16le", "mp3float", "opus", "libopus", "flac", "vorbis", "aac", "wmav2", "amrnb"):
        decoder.check_codec(name)


def bad_files(folder: Path) -> dict[str, tuple[bytes, str]]:
    m4a = write(folder / "good.m4a", tone(5.0)).read_bytes()
    random = np.random.default_rng(1).bytes(200_000)
    secret = folder / "secret.wav"
    write(secret, tone(1.0))
    return {
        "empty.wav": (b"", "empty"),
        "text.mp3": (b"hello world " * 1000, "read as a recording"),
        "random.mp3": (random, "damaged|read as a recording|no sound"),
        "page.webm": (b"<html><body>404</body></html>", "read as a recording"),
        "head.wav": (b"RIFF\x24\x00\x00\x00WAVE", "read as a recording|no sound|damaged"),
        "half.m4a": (m4a[: len(m4a) // 2], "read as a recording|damaged"),
        "list.m3u8": (f"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{secret}\n".encode(), "read as a recording"),
        "list.txt": (f"ffconcat version 1.0\nfile {secret}\n".encode(), "read as a recording"),
    }  # fmt: skip


def test_a_file_that_is_no_recording_is_the_clients_fault(decoders: Decoders, tmp_path: Path) -> None:
    for name, (data, why) in bad_files(tmp_path).items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(BadRequest, match=why) as refused:
            decoded(decoders, path)
        assert refused.value.code == "invalid_audio", name
        assert str(tmp_path) not in refused.value.message
    assert len(decoded(decoders, write(tmp_path / "after.wav", tone(1.0)))) == RATE


def test_the_error_for_a_damaged_recording_says_where_it_breaks(decoders: Decoders, tmp_path: Path) -> None:
    import av

    path = write(tmp_path / "half.m4a", noise(6.0))
    with av.open(str(path)) as file:
        packets = [(packet.pos, packet.size) for packet in file.demux(audio=0) if packet.size]
    data = bytearray(path.read_bytes())
    for start, size in packets[len(packets) // 2 :]:
        data[start : start + size] = size * b"\xff"
    path.write_bytes(data)
    with pytest.raises(BadRequest, match=r"damaged after [23]\.\d seconds"):
        decoded(decoders, path)


@pytest.mark.parametrize("rest", [b"", np.random.default_rng(1).bytes(20_000)], ids=["cut", "garbage"])
def test_a_flac_with_much_less_sound_than_it_states_is_refused(decoders: Decoders, tmp_path: Path, rest: bytes) -> None:
    """FFmpeg decodes its beginning, and reports no failure."""
    path = write(tmp_path / "whole.flac", noise(6.0))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + rest)
    with pytest.raises(BadRequest, match=r"damaged: [23]\.\d of its 6\.0 seconds can be decoded") as refused:
        decoded(decoders, path)
    assert refused.value.code == "invalid_audio"
    path.write_bytes(data[: len(data) * 19 // 20] + rest)
    assert len(decoded(decoders, path)) > 5 * RATE


def test_a_film_without_sound_is_refused(decoders: Decoders, tmp_path: Path) -> None:
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


def test_tags_that_are_not_utf8_do_no_harm(decoders: Decoders, tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.wav", tone(1.0)).read_bytes()
    name = "Grüße".encode("latin-1") + b"\0"
    tags = b"INFO" + b"INAM" + struct.pack("<I", len(name)) + name
    listed = plain[12:] + b"LIST" + struct.pack("<I", len(tags)) + tags
    path = tmp_path / "tagged.wav"
    path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(listed)) + b"WAVE" + listed)
    assert len(decoded(decoders, path)) == RATE


def test_a_fault_of_ours_is_not_the_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a version of PyAV that has another interface."""
    (tmp_path / "av.py").write_text(
        "from types import SimpleNamespace\n__version__ = '99.0'\nFFmpegError = type('FFmpegError', (Exception,), {})\n"
        "logging = SimpleNamespace(set_level=lambda level: None)\n"
        "def open(*a, **k):\n    raise TypeError('no such argument')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path, fresh = write(tmp_path / "a.wav", tone(1.0)), Decoders()
    with pytest.raises(EngineFailed, match="TypeError: no such argument"):
        decoded(fresh, path)
    fresh.close()


def test_decoders_are_reused_and_abandoned_ones_are_killed(tmp_path: Path) -> None:
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
    decoders._idle[0]._child.kill()  # an idle one that dies is replaced
    decoders._idle[0]._child.wait()
    with decoders.open(path, 60.0) as recording:
        assert sum(map(len, recording)) == 60 * RATE
    before = children()
    decoders.close()
    assert children() < before


def test_a_decoder_that_hangs_is_given_up(tmp_path: Path) -> None:
    decoders = Decoders(Bounds(decoder_wait_seconds=0.3))
    fifo = tmp_path / "a.wav"
    fifo.write_bytes(write(tmp_path / "b.wav", tone(60.0)).read_bytes())
    with decoders.open(str(fifo), 60.0) as recording:
        os.kill(recording._process._child.pid, signal.SIGSTOP)
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
