"""Uploads are streamed to a private file, capped while they arrive, and removed afterwards."""

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.messages import EmbedResult, ResponseEnd, TranscribeRequest, TranscriptInfo, Usage
from registry.bounds import Bounds
from runtime.http.audio.endpoints import RecordingResponse
from runtime.http.guard.access import dialect_of
from runtime.http.middleware import ContextMiddleware
from tests.fakes.multipart import BOUNDARY, END, HEADERS, part
from tests.unit.http.fakes import FakeGateway, Wire, application, nothing

PATH = "/v1/audio/transcriptions"
INFO = TranscriptInfo(language="en", language_probability=1, duration=1, duration_after_vad=1)


MODEL = part("model", b"speech")
FILE = part("file", b"some audio", "a.wav")


@pytest.fixture(autouse=True)
def scripted(gateway: FakeGateway) -> None:
    gateway.links["speech"].script = lambda _: [INFO, ResponseEnd(usage=Usage())]


def left_over(gateway: FakeGateway) -> list[Path]:
    return list(gateway.settings.run_dir.rglob("*.audio"))


async def send(client: httpx.AsyncClient, *parts: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
    return await client.post(PATH, content=b"".join(parts), headers=headers or HEADERS)


async def test_the_engine_reads_what_was_sent_from_a_private_file(
    client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    sound = bytes(range(256)) * 20_000  # 5 MB: several buffers
    seen: list[tuple[bytes, int]] = []

    def look(request: TranscribeRequest) -> None:
        path = Path(request.path)
        assert path.parent == gateway.settings.run_dir / "uploads"
        seen.append((path.read_bytes(), stat.S_IMODE(path.stat().st_mode)))

    gateway.links["speech"].look = look
    response = await client.post(PATH, data={"model": "speech"}, files={"file": ("a.wav", sound)})
    assert response.status_code == 200
    assert seen == [(sound, 0o600)]
    assert stat.S_IMODE((gateway.settings.run_dir / "uploads").stat().st_mode) == 0o700
    assert not left_over(gateway)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40)
@given(sound=st.binary(min_size=1, max_size=300), cuts=st.lists(st.integers(1, 60), max_size=30))
async def test_any_cut_of_the_body_gives_the_same_file(tmp_path: Path, sound: bytes, cuts: list[int]) -> None:
    gateway = FakeGateway(tmp_path)
    gateway.links["speech"].script = lambda _: [INFO, ResponseEnd(usage=Usage())]
    seen: list[bytes] = []
    gateway.links["speech"].look = lambda request: seen.append(Path(request.path).read_bytes())
    body = MODEL + part("file", sound, "a.wav") + part("language", b"en") + END
    pieces, rest = [], body
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    wire = Wire(recording(gateway), PATH, [*[p for p in pieces if p], rest], HEADERS)
    await wire.run()
    assert wire.sent[0]["status"] == 200
    assert seen == [sound]
    assert gateway.links["speech"].requests[0].language == "en"


def recording(gateway: FakeGateway) -> Any:
    """Return the endpoint alone, because building the application for each example would take most of the time."""
    return ContextMiddleware(RecordingResponse(PATH), lambda: gateway.gateway, dialect_of, nothing, nothing)


async def test_an_unknown_model_is_answered_before_the_file_arrives(app: FastAPI, gateway: FakeGateway) -> None:
    wire = Wire(app, PATH, [part("model", b"nobody"), part("file", b"", "a.wav")[:40]], HEADERS)
    wire.complete = False  # the rest never comes
    await asyncio.wait_for(wire.run(), 200)
    assert wire.sent[0]["status"] == 404
    assert not left_over(gateway)


async def test_the_model_may_come_after_the_file(client: httpx.AsyncClient) -> None:
    assert (await send(client, FILE, MODEL, END)).status_code == 200
    assert (await send(client, FILE, part("model", b"nobody"), END)).status_code == 404


async def test_the_files_name_may_be_in_any_encoding(client: httpx.AsyncClient) -> None:
    file = FILE.replace(b"a.wav", "M\u00e4rz.wav".encode("cp1252"))
    assert (await send(client, MODEL, file, END)).status_code == 200


@pytest.mark.parametrize(
    ("parts", "param"),
    [
        ([MODEL, END], "file"),
        ([MODEL, part("file", b"", "a.wav"), END], "file"),
        ([MODEL, part("file", b"lamp.wav"), END], "file"),
        ([FILE, END], "model"),
        ([MODEL, FILE, FILE, END], "file"),
        ([MODEL, MODEL, FILE, END], "model"),
        ([MODEL, FILE, part("cover", b"x", "cover.png"), END], "cover"),
        ([MODEL, FILE], None),
        ([MODEL, FILE[:-4]], None),
        ([part("model", b"\xff"), FILE, END], None),
        ([b"--" + BOUNDARY.encode() + b"\r\nContent-Type: x\r\n\r\nabc\r\n", END], None),
        ([b"garbage"], None),
        ([b""], None),
        ([END], "file"),
        ([MODEL, *[part("user", b"x")] * 130, FILE, END], None),
    ],
)
async def test_broken_forms_are_400(
    client: httpx.AsyncClient, gateway: FakeGateway, parts: list[bytes], param: str | None
) -> None:
    response = await send(client, *parts)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert not left_over(gateway)


@pytest.mark.parametrize(
    "kind", ["application/json", "multipart/form-data", "multipart/form-data; boundary=" + "x" * 300, "", "\xe9"]
)
async def test_other_content_types_are_400(client: httpx.AsyncClient, kind: str) -> None:
    response = await client.post(PATH, content=b"{}", headers={b"content-type": kind.encode("latin-1")})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_form"


async def test_a_file_over_the_limit_is_413(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path, max_audio=1000)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=application(gateway)), base_url="http://t"
    ) as client:
        response = await send(client, MODEL, part("file", b"x" * 1001, "a.wav"), END)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "payload_too_large"
        response = await client.post(PATH, content=b"", headers={**HEADERS, "content-length": str(10**9)})
        assert response.status_code == 413
        assert (await send(client, MODEL, part("prompt", b"x" * 300_000), FILE, END)).status_code == 413
    assert not left_over(gateway)


async def test_an_endless_upload_is_cut_off_at_the_limit(tmp_path: Path) -> None:
    """It is chunked, so that no length is declared. Reading stops soon after the limit."""
    gateway = FakeGateway(tmp_path, max_audio=100_000)
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield MODEL + part("file", b"", "a.wav")[:-2]
        while sent < 10_000_000:
            sent += 10_000
            yield b"x" * 10_000

    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
        response = await client.post(PATH, content=endless(), headers=HEADERS)
    assert response.status_code == 413
    assert sent <= 120_000
    assert not left_over(gateway)


async def test_a_client_that_disconnects_during_its_upload_leaves_no_file(app: FastAPI, gateway: FakeGateway) -> None:
    wire = Wire(app, PATH, [MODEL + FILE[:60]], HEADERS)
    wire.complete = False
    task = asyncio.create_task(wire.run())
    while not left_over(gateway):
        await asyncio.sleep(0.001)
    wire.leave.set()
    await asyncio.wait_for(task, 200)
    assert not left_over(gateway)
    assert not wire.sent
    assert not gateway.links["speech"].requests


@pytest.mark.parametrize("limit", ["upload_pause_seconds", "upload_seconds"])
async def test_a_client_that_stalls_is_408(tmp_path: Path, limit: str) -> None:
    gateway = FakeGateway(tmp_path, bounds=Bounds.model_validate({limit: 0.01}))
    wire = Wire(application(gateway), PATH, [MODEL + FILE[:60]], HEADERS)
    wire.complete = False
    await asyncio.wait_for(wire.run(), 200)
    assert wire.sent[0]["status"] == 408
    assert not left_over(gateway)


async def test_a_full_disk_is_503(
    client: httpx.AsyncClient, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("runtime.http.upload._write", full)
    response = await send(client, MODEL, FILE, END)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "no_space"
    assert response.headers["retry-after"] == "30"
    assert not left_over(gateway)


async def test_many_uploads_together_have_a_bound(tmp_path: Path) -> None:
    """An ended upload frees its space."""
    gateway = FakeGateway(tmp_path, max_uploads=50_000)
    gateway.links["speech"].script = lambda _: [INFO, ResponseEnd(usage=Usage())]
    app = application(gateway)
    large = part("file", b"x" * 30_000, "a.wav")
    first = Wire(app, PATH, [MODEL + large[:-2]], HEADERS)
    first.complete = False
    task = asyncio.create_task(first.run())
    while gateway.gateway.services.uploads.held < 30_000:
        await asyncio.sleep(0)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://t") as client:
        refused = await send(client, MODEL, large, END)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "uploads_full")
        assert int(refused.headers["retry-after"]) >= 1
        first.leave.set()
        await asyncio.wait_for(task, 200)
        assert (await send(client, MODEL, large, END)).status_code == 200
    assert gateway.gateway.services.uploads.held == 0
    assert not left_over(gateway)


async def test_a_disk_down_to_its_reserve_refuses_only_uploads(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path, disk_reserve=2**60)
    gateway.links["speech"].script = lambda _: [INFO, ResponseEnd(usage=Usage())]
    result = EmbedResult(vectors=bytes(8), dimensions=2, tokens=[1])
    gateway.links["embed"].script = lambda _: [result, ResponseEnd(usage=Usage())]
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=application(gateway)), base_url="http://t"
    ) as client:
        for _ in range(3):
            refused = await send(client, MODEL, FILE, END)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage_full"), refused.text
            assert refused.headers["retry-after"] == "60"
            assert (await client.post("/v1/embeddings", json={"model": "embed", "input": "x"})).status_code == 200
    assert not left_over(gateway)


@pytest.mark.parametrize("header", [b"x: ", b"x"])
async def test_a_parts_header_without_an_end_is_cut(app: FastAPI, gateway: FakeGateway, header: bytes) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield f"--{BOUNDARY}\r\n".encode() + header
        while sent < 10_000_000:
            sent += 10_000
            yield b"y" * 10_000

    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
        assert (await client.post(PATH, content=endless(), headers=HEADERS)).status_code in (400, 413)
    assert sent <= 300_000
    assert not left_over(gateway)
