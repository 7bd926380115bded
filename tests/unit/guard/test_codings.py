"""Bodies with Content-Encoding are decoded, and bounded during that."""

import gzip
import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import BadRequest, UnsupportedMedia
from runtime.http.guard import bodies
from tests.unit.guard.serving import HOST, JSON, Answer, Served, served


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "X-GZip": ("X-GZip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "zstd": ("zstd", zstd),
}


def decoded(coding: str, parts: list[bytes]) -> bytes:
    decodes = bodies.decoder(coding)
    assert decodes is not None
    pieces = [piece for part in parts for piece in decodes.feed(part)]
    decodes.finish()
    assert all(pieces)
    return b"".join(pieces)


@pytest.mark.parametrize("name", PACKERS)
@given(st.lists(st.binary(max_size=2000), min_size=1, max_size=3), st.integers(1, 40), st.integers(0, 3))
def test_compressed_data_is_decoded_however_it_is_cut(name: str, members: list[bytes], size: int, more: int) -> None:
    coding, pack = PACKERS[name]
    members = members if coding != "deflate" else members[:1]
    data = [member * 10**more for member in members]
    packed = b"".join(map(pack, data))
    parts = [packed[start : start + size * 10**more] for start in range(0, len(packed), size * 10**more)]
    assert decoded(coding, parts) == b"".join(data)
    with pytest.raises(BadRequest, match="too early"):
        decoded(coding, [packed[:-1]])


@pytest.mark.parametrize("name", PACKERS)
def test_no_piece_is_large(name: str) -> None:
    coding, pack = PACKERS[name]
    decodes = bodies.decoder(coding)
    assert decodes is not None
    size = 64 * 2**20
    bomb = pack(bytes(size))
    assert len(bomb) < size / 900
    lengths = [len(piece) for piece in decodes.feed(bomb)]
    assert sum(lengths) == size
    assert max(lengths) <= 8 * 2**20


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
def test_data_in_another_coding_is_refused(coding: str) -> None:
    with pytest.raises(BadRequest, match="without Content-Encoding"):
        decoded(coding, [b'{"model": "embed"}'])


def test_unknown_codings_are_refused_with_a_list_of_the_known_ones() -> None:
    for coding in ("br", "gzip, gzip", "gzip\r\nx", "compress"):
        with pytest.raises(UnsupportedMedia, match="gzip, deflate or zstd") as refused:
            bodies.decoder(coding)
        assert (refused.value.status, refused.value.code) == (415, "unsupported_coding")
    assert bodies.decoder(" Identity ") is None
    assert bodies.decoder("") is None


async def post(server: Served, path: bytes, coding: bytes, body: bytes, more: bytes = JSON) -> Answer:
    head = b"POST " + path + b" HTTP/1.1\r\n" + HOST + more + b"Content-Encoding: " + coding + b"\r\n"
    return await server.ask(head + b"Content-Length: %d\r\n" % len(body), body)


@pytest.mark.parametrize("name", PACKERS)
async def test_every_path_accepts_compressed_bodies_but_no_bomb(tmp_path: Path, name: str) -> None:
    coding, pack = PACKERS[name]
    body = json.dumps({"model": "nothing", "input": "a" * 100_000}).encode()
    bomb, deep = pack(b'"' + b"a" * 2**26), pack(b"[" * 900_000)
    assert len(bomb) < 2**20
    async with served(tmp_path, max_json=2**20) as server:
        for path in (b"/v1/embeddings", b"/v1/chat/completions", b"/api/show"):
            answer = await post(server, path, coding.encode(), pack(body))
            assert answer.status == 404, answer.body
            answer = await post(server, path, coding.encode(), bomb)
            assert answer.status == 413
            assert b"1.0 MiB" in answer.body
            answer = await post(server, path, coding.encode(), deep)
            assert answer.status == 413, "too many values"
            answer = await post(server, path, coding.encode(), pack(body)[:-5])
            assert (answer.status, b"too early" in answer.body) == (400, True)
        assert server.memory.held == 0


async def test_a_large_body_that_hardly_compresses_is_accepted(tmp_path: Path) -> None:
    body = json.dumps({"model": "nothing", "input": random.Random(1).randbytes(2**20).hex()}).encode()
    packed = gzip.compress(body)
    assert len(packed) > bodies.MOST_EMPTY
    async with served(tmp_path, max_json=2**23) as server:
        assert (await post(server, b"/v1/embeddings", b"gzip", packed)).status == 404


@pytest.mark.parametrize("path", [b"/v1/embeddings", b"/api/chat", b"/v1/messages", b"/v1/adapters"])
async def test_an_unknown_coding_is_refused_in_the_dialect_of_its_path(tmp_path: Path, path: bytes) -> None:
    async with served(tmp_path) as server:
        answer = await post(server, path, b"br", b"abc")
        assert answer.status == 415
        error = json.loads(answer.body)["error"]
        assert "gzip, deflate or zstd" in (error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize("name", PACKERS)
async def test_a_compressed_form_is_accepted(tmp_path: Path, name: str) -> None:
    coding, pack = PACKERS[name]
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nnothing\r\n--b--\r\n'
    kind = b"Content-Type: multipart/form-data; boundary=b\r\n"
    async with served(tmp_path) as server:
        plain = await post(server, b"/v1/audio/transcriptions", b"identity", form, kind)
        packed = await post(server, b"/v1/audio/transcriptions", coding.encode(), pack(form), kind)
        assert (packed.status, packed.body) == (plain.status, plain.body)
        part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        bomb = pack(part + bytes(2**27))
        assert (await post(server, b"/v1/audio/transcriptions", coding.encode(), bomb, kind)).status == 413


@pytest.mark.parametrize(
    ("coding", "empty"),
    [("gzip", gzip.compress(b"", mtime=0)), ("deflate", b"\0\0\0\xff\xff"), ("zstd", zstd(b""))],
    ids=["gzip", "deflate", "zstd"],
)
async def test_an_endless_body_that_decodes_to_nothing_is_refused(tmp_path: Path, coding: str, empty: bytes) -> None:
    part = empty * (2**16 // len(empty))
    chunk = b"%x\r\n%s\r\n" % (len(part), part)
    head = b"POST /v1/embeddings HTTP/1.1\r\n" + HOST + JSON + b"Transfer-Encoding: chunked\r\n"
    async with served(tmp_path) as server:
        answer = await server.ask(head + b"Content-Encoding: %s\r\n" % coding.encode(), chunk * 20)
        assert (answer.status, b"almost nothing" in answer.body) == (400, True)
        assert server.memory.held == 0
