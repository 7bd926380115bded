"""The maximum usage of a request, from the numbers in its body and from a recording's header."""

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
from runtime.gateway.sinks.tenants import demand_of

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
    """Write a WAV file. Its header says `reported` bytes, and the chunks of `before` precede its format."""
    chunks = before + (fmt() if form is None else form) + b"data" + struct.pack("<I", reported)
    path.write_bytes(b"RIFF" + struct.pack("<I", 36 + len(SOUND)) + b"WAVE" + chunks + SOUND)
    return path


@pytest.mark.parametrize("reported", [0, 2, len(SOUND), 2**32 - 1])
def test_a_wav_files_length_comes_from_its_size_not_its_header(tmp_path: Path, reported: int) -> None:
    assert seconds_of(wav(tmp_path / "a", reported)) == pytest.approx(SECONDS, rel=0.01)


def test_the_first_of_several_format_chunks_counts(tmp_path: Path) -> None:
    """The decoder uses that one."""
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
    ids=["16 bits", "24 bits", "six channels", "fewer valid bits", "short", "floats", "another format"],
)
def test_the_extensible_format_is_read_if_it_is_plain_pcm(tmp_path: Path, form: bytes, bytes_a_second: int) -> None:
    size = wav(tmp_path / "a", form=form).stat().st_size
    assert seconds_of(tmp_path / "a") == size / bytes_a_second


@pytest.mark.parametrize(
    "before",
    [b"JUNK" + struct.pack("<I", 27) + bytes(28), b"bext" + struct.pack("<I", 40_000) + bytes(40_000)],
    ids=["odd", "long"],
)
def test_other_chunks_may_precede_the_format(tmp_path: Path, before: bytes) -> None:
    size = wav(tmp_path / "a", before=before).stat().st_size
    assert seconds_of(tmp_path / "a") == size / (2 * RATE)


@pytest.mark.parametrize(
    "before",
    [b"junk\0\0\0\0" * 1000, b"LIST" + struct.pack("<I", 70_000) + bytes(70_000)],
    ids=["many chunks", "far away"],
)
def test_the_search_for_the_format_is_bounded(tmp_path: Path, before: bytes) -> None:
    """Endless chunks would block all requests, so such a file counts as speech at the lowest bit rate."""
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
def test_an_invalid_format_counts_as_the_lowest_bit_rate(tmp_path: Path, form: bytes) -> None:
    size = wav(tmp_path / "a", form=form).stat().st_size
    assert seconds_of(tmp_path / "a") == size / 500


@pytest.mark.parametrize(
    ("n", "answers"), [(3, 3), ("3", 3), (3.0, 3), (True, 1), ("x", 1), (None, 1), (-3, 1), (3.5, 1)]
)
def test_numbers_are_read_like_in_the_engine(n: Any, answers: int) -> None:
    call = ChatPayload("/v1/chat/completions", {"messages": [], "n": n, "max_tokens": "10"})
    found = demand_of([call], 512, 30.0)
    assert (found.output, found.requested_output) == (10 * answers, 10 * answers)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_llama_cpps_limit_counts_since_the_engine_keeps_to_it(path: str) -> None:
    found = demand_of([ChatPayload(path, {"prompt": "a", "n_predict": 300})], 512, 30.0)
    assert (found.output, found.requested_output) == (300, 300)


def test_a_limit_that_is_none_reserves_the_context() -> None:
    """At a provider, -1 may stand for no limit."""
    assert demand_of([ChatPayload("/v1/completions", {"prompt": "a"})], 512, 30.0).output == 16
    for name in ("max_tokens", "n_predict"):
        assert demand_of([ChatPayload("/v1/completions", {"prompt": "a", name: -1})], 512, 30.0).output == 512


@given(st.integers(64, 600), st.integers(1, 700), st.integers(1, 6000), st.integers(0, 5), st.booleans())
def test_the_demand_of_a_document_covers_its_query_in_each_chunk(
    context: int, query: int, document: int, most: int, truncate: bool
) -> None:
    """In the worst case each letter is a token, and there are four more around query and document."""
    requested = RerankRequest("q" * query, ["d" * document], truncate, max_chunks=most)
    room = context - 4
    if truncate:
        read = 4 + sum(map(len, longest_first("q" * query, "d" * document, room)))
    elif query > room - LEAST_ROOM:
        return  # refused
    else:
        read = sum(4 + query + len(part) for part in chunks([0] * document, room - query, most))
    assert read <= demand_of([requested], context, 0.0).prompt


def test_limits_of_the_client_lower_the_demand() -> None:
    """A query that leaves little room would need a chunk for every few letters of a document."""
    long = RerankRequest("q" * 600, ["d" * 4000] * 20)
    limits: list[tuple[dict[str, int], int]] = [
        ({"max_document_tokens": 100}, 20 * 512 * 8),
        ({"max_query_tokens": 100}, 20 * 512 * 12),
        ({"max_query_tokens": 100, "max_document_tokens": 100}, 20 * (102 + 102)),
    ]
    for cut, most in limits:
        assert demand_of([msgspec.structs.replace(long, **cut)], 512, 0.0).prompt == most


def test_the_demand_of_a_short_document_is_at_most_its_letters() -> None:
    assert demand_of([RerankRequest("query", ["document"] * 3)], 512, 0.0).prompt == 3 * (5 + 8 + 4)


def test_other_recordings_count_as_speech_at_the_lowest_bit_rate(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"OggS" + bytes(4750 // 8 * 60))
    assert seconds_of(tmp_path / "a") >= 60
    assert seconds_of(tmp_path / "none") == 0


def test_the_demand_of_a_recording_is_at_most_the_allowed_length(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(10**6))
    assert demand_of([TranscribeRequest(path=str(tmp_path / "a"))], None, 30.0).audio_ms == 30_000
