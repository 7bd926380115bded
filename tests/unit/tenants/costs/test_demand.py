"""What a request may use at most: numbers of its body, and a recording before anybody has heard it."""

import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.messages import RerankRequest, TranscribeRequest
from models.speech.length import seconds_of
from models.tasks.chat import ChatPayload
from models.text.pairs import LEAST_ROOM, chunks, longest_first
from runtime.gateway.charging import demand_of

RATE, SECONDS = 8000, 3
SOUND = bytes(2 * RATE * SECONDS)
EXTENDED_PCM = bytes.fromhex("0100000000001000800000aa00389b71")


def fmt(rate: int = RATE, channels: int = 1) -> bytes:
    return struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, channels, rate, 2 * rate * channels, 2 * channels, 16)


def extensible(bits: int, valid: int, channels: int = 1, kind: bytes = EXTENDED_PCM) -> bytes:
    align = channels * ((bits + 7) // 8)
    return b"fmt " + struct.pack(
        "<IHHIIHHHHI16s", 40, 0xFFFE, channels, RATE, RATE * align, align, bits, 22, valid, 0, kind
    )


def wav(path: Path, reported: int = len(SOUND), before: bytes = b"", form: bytes | None = None) -> Path:
    """told: its header's word for its length, in bytes. before: chunks in front of its form."""
    chunks = before + (fmt() if form is None else form) + b"data" + struct.pack("<I", reported)
    path.write_bytes(b"RIFF" + struct.pack("<I", 36 + len(SOUND)) + b"WAVE" + chunks + SOUND)
    return path


@pytest.mark.parametrize("reported", [0, 2, len(SOUND), 2**32 - 1])
def test_a_wav_file_is_as_long_as_its_bytes_whatever_it_says(tmp_path: Path, reported: int) -> None:
    assert seconds_of(wav(tmp_path / "a", reported)) == pytest.approx(SECONDS, rel=0.01)


def test_the_first_of_several_forms_counts(tmp_path: Path) -> None:
    """It is the one that is decoded by."""
    assert seconds_of(wav(tmp_path / "a", form=fmt() + fmt(768_000, 32))) == pytest.approx(SECONDS, rel=0.01)


@pytest.mark.parametrize(
    ("form", "bytes_a_second"),
    [
        (extensible(16, 16), 2 * RATE),
        (extensible(24, 24), 3 * RATE),
        (extensible(24, 0, 6), 18 * RATE),
        (extensible(24, 8), RATE),
        (extensible(24, 24)[:4] + struct.pack("<I", 18) + extensible(24, 24)[8:26], 500),
        (extensible(24, 24, kind=b"\x03" + EXTENDED_PCM[1:]), 500),
        (extensible(24, 24, kind=EXTENDED_PCM[:-1] + b"\0"), 500),
    ],
    ids=["16 bits", "24 bits", "six channels", "fewer bits are valid", "short", "floats", "another's"],
)
def test_the_extensible_form_is_read_where_it_is_plain_pcm(tmp_path: Path, form: bytes, bytes_a_second: int) -> None:
    size = wav(tmp_path / "a", form=form).stat().st_size
    assert seconds_of(tmp_path / "a") == size / bytes_a_second


@pytest.mark.parametrize(
    "before",
    [b"JUNK" + struct.pack("<I", 27) + bytes(28), b"bext" + struct.pack("<I", 40_000) + bytes(40_000)],
    ids=["odd", "long"],
)
def test_other_chunks_may_come_first(tmp_path: Path, before: bytes) -> None:
    size = wav(tmp_path / "a", before=before).stat().st_size
    assert seconds_of(tmp_path / "a") == size / (2 * RATE)


@pytest.mark.parametrize(
    "before",
    [b"junk\0\0\0\0" * 1000, b"LIST" + struct.pack("<I", 70_000) + bytes(70_000)],
    ids=["many chunks", "far away"],
)
def test_a_header_is_not_searched_for_long(tmp_path: Path, before: bytes) -> None:
    """Chunks without end would hold up everybody: such a file is taken for speech at the lowest rate."""
    size = wav(tmp_path / "a", before=before).stat().st_size
    assert seconds_of(tmp_path / "a") == size / 500


@pytest.mark.parametrize(
    "form",
    [
        b"",
        fmt()[:4] + struct.pack("<I", 8) + fmt()[8:16],
        fmt(0),
        fmt(channels=0),
        fmt().replace(b"\x01\0\x01\0", b"\x55\0\x01\0"),
    ],
    ids=["none", "short", "no rate", "no channels", "mp3"],
)
def test_a_form_that_does_not_tell_the_length_is_not_believed(tmp_path: Path, form: bytes) -> None:
    size = wav(tmp_path / "a", form=form).stat().st_size
    assert seconds_of(tmp_path / "a") == size / 500


@pytest.mark.parametrize(
    ("n", "answers"), [(3, 3), ("3", 3), (3.0, 3), (True, 1), ("x", 1), (None, 1), (-3, 1), (3.5, 1)]
)
def test_numbers_are_read_as_the_engine_reads_them(n: Any, answers: int) -> None:
    call = ChatPayload("/v1/chat/completions", {"messages": [], "n": n, "max_tokens": "10"})
    found = demand_of([call], 512, 30.0)
    assert (found.output, found.requested_output) == (10 * answers, 10 * answers)


@given(st.integers(64, 600), st.integers(1, 700), st.integers(1, 6000), st.integers(0, 5), st.booleans())
def test_a_long_document_is_read_with_its_query_in_each_chunk(
    context: int, query: int, document: int, most: int, truncate: bool
) -> None:
    """At the worst each letter is a token, and four more are between query and document, and around them."""
    requested = RerankRequest("q" * query, ["d" * document], truncate, max_chunks=most)
    room = context - 4
    if truncate:
        read = 4 + sum(map(len, longest_first("q" * query, "d" * document, room)))
    elif query > room - LEAST_ROOM:
        return  # it is refused
    else:
        read = sum(4 + query + len(part) for part in chunks([0] * document, room - query, most))
    assert read <= demand_of([requested], context, 0.0).prompt


def test_what_the_client_has_cut_is_not_reserved() -> None:
    """A query that leaves no room for a document would make a chunk of each few of its letters."""
    long = RerankRequest("q" * 600, ["d" * 4000] * 20)
    limits: list[tuple[dict[str, int], int]] = [
        ({"max_document_tokens": 100}, 20 * 512 * 8),
        ({"max_query_tokens": 100}, 20 * 512 * 12),
        ({"max_query_tokens": 100, "max_document_tokens": 100}, 20 * (102 + 102)),
    ]
    for cut, most in limits:
        assert demand_of([msgspec.structs.replace(long, **cut)], 512, 0.0).prompt == most


def test_a_short_document_reserves_no_more_than_its_letters() -> None:
    assert demand_of([RerankRequest("query", ["document"] * 3)], 512, 0.0).prompt == 3 * (5 + 8 + 4)


def test_other_recordings_may_be_of_the_lowest_rate_of_speech(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"OggS" + bytes(4750 // 8 * 60))
    assert seconds_of(tmp_path / "a") >= 60
    assert seconds_of(tmp_path / "none") == 0


def test_none_is_taken_to_be_longer_than_it_may_be(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(10**6))
    assert demand_of([TranscribeRequest(path=str(tmp_path / "a"))], None, 30.0).audio_ms == 30_000
