"""What an engine fetches, decodes and sends of the media in a request."""

import asyncio
import base64
import contextlib
import io
import json
import logging
import random
import shutil
import struct
import threading
import wave
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import torch
from aiohttp import ClientPayloadError
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from models.chat import settings
from models.chat.grammars.admission import ADMISSION
from models.chat.requests import media
from models.chat.requests.media import BUDGET, MediaBudget
from models.chat.vllm import launch, prewarm
from models.chat.vllm.core import UnknownAdapter
from models.chat.vllm.media import decoding, reading, sending
from models.chat.vllm.media.decoding import PART_LEAST
from models.chat.vllm.media.reading import NESTED
from registry.errors import BadRequest, Unfit
from tests.contract.chat import fixtures as chat_fixtures
from tests.contract.vllm.stock import stock

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_fixtures.write_base(tmp_path_factory.mktemp("media") / "base")


FILES: dict[str, bytes] = {}
"""Files of the site by path."""


@pytest.fixture
def site() -> Iterator[tuple[str, list[str]]]:
    """A server in this machine's own network: its address, and the paths requested from it."""
    requested: list[str] = []

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.path)
            data = FILES.get(self.path, b"")
            self.send_response(200 if data else 302 if self.path == "/away" else 404)
            self.send_header("Location", "/secret")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", requested
        server.shutdown()


def connector(base: Path, **flags: Any) -> Any:
    prewarm.prewarm_core()
    from vllm.connections import HTTPConnection
    from vllm.multimodal.media.connector import MediaConnector

    parsed = settings.arguments(chat_fixtures.recipe(base, **flags), base, "cpu", launch.parser())
    return MediaConnector(connection=HTTPConnection(), allowed_media_domains=parsed.allowed_media_domains)


def png(width: int, height: int) -> bytes:
    """Return a black picture."""
    rows = zlib.compress(b"".join(b"\0" + bytes(3 * width) for _ in range(height)))
    parts = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b"")
    framed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


async def test_nothing_is_fetched_for_a_client(base: Path, site: tuple[str, list[str]]) -> None:
    url, requested = site
    for of in (f"{url}/x", "http://169.254.169.254/latest/meta-data", "https://user@localhost/x"):
        with pytest.raises(ValueError, match=r"data: URL.*engine\.flags\.allowed_media_domains"):
            await connector(base).fetch_image_async(of)
        with pytest.raises(ValueError, match="data: URL"):
            connector(base).fetch_audio(of)
    assert requested == []


def test_media_within_a_request_is_accepted(base: Path) -> None:
    image = connector(base).fetch_image(f"data:image/png;base64,{base64.b64encode(png(2, 3)).decode()}")
    assert image.size == (2, 3)


@pytest.mark.parametrize("flag", ["allowed_media_domains", "allowed-media-domains"])
async def test_a_recipe_may_name_domains_and_a_redirect_leads_nowhere(
    base: Path, site: tuple[str, list[str]], flag: str
) -> None:
    url, requested = site
    of = connector(base, **{flag: ["127.0.0.1", "example.org"]})
    async with await of.connection.get_async_client():  # closes vLLM's session, which it keeps for the next URL
        for path in ("/away", "/missing"):
            with pytest.raises(Exception, match=r"Failed to|in no format"):
                await of.fetch_image_async(url + path)
    assert requested == ["/away", "/missing"]


def video(frames: int, width: int, height: int, form: str = "mp4") -> bytes:
    """Return a black video of 30 frames per second."""
    import av

    stream = io.BytesIO()
    with av.open(stream, "w", format=form) as container:
        track = container.add_stream("mpeg4", rate=30)
        track.width, track.height, track.pix_fmt = width, height, "yuv420p"
        frame = av.VideoFrame.from_image(Image.new("RGB", (width, height)))
        for index in range(frames):
            frame.pts = index
            container.mux(track.encode(frame))
        container.mux(track.encode())
    return stream.getvalue()


def test_a_video_opens_no_other_file(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FFmpeg reads a short text as a list of files, and would show the model a video that lies on this machine."""
    monkeypatch.chdir(tmp_path)
    Path("private.mp4").write_bytes(video(3, 32, 16))
    url = "data:video/mp4;base64," + base64.b64encode(b"ffconcat version 1.0\nfile 'private.mp4'\n").decode()
    with pytest.raises(ValueError, match="Could not open"):
        connector(base).fetch_video(url)


@pytest.mark.parametrize("form", ["mp4", "matroska", "avi", "mpegts", "asf"])
def test_usual_videos_are_read(base: Path, form: str) -> None:
    url = f"data:video/{form};base64,{base64.b64encode(video(10, 64, 48, form)).decode()}"
    frames, _ = connector(base).fetch_video(url)
    assert frames.shape == (10, 48, 64, 3)


def wav(seconds: float, rate: int = 16_000, channels: int = 1) -> bytes:
    """Return a sound of a constant 0.5 in its first channel, and silence in the others."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((struct.pack("<h", 1 << 14) + bytes(2 * channels - 2)) * int(seconds * rate))
    return stream.getvalue()


@pytest.mark.parametrize("channels", [1, 2, 8, 12])
@pytest.mark.parametrize(("rate", "read"), [(8_000, 48_000), (16_000, 16_000), (44_100, 44_100), (44_101, 48_000)])
def test_a_sound_is_the_mean_of_its_channels(base: Path, channels: int, rate: int, read: int) -> None:
    """At a usual rate: vLLM would build matrices of 6 GB for others."""
    sound, now = connector(base).fetch_audio(
        f"data:audio/wav;base64,{base64.b64encode(wav(2, rate, channels)).decode()}"
    )
    assert (now, sound.shape) == (read, (2 * read,))
    assert sound[read // 2 : -read // 2] == pytest.approx(0.5 / channels, rel=1e-3)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"ffconcat version 1.0\nfile 'private.wav'\n", "cannot be decoded"),
        (b"RIFF", "cannot be decoded"),
        (wav(0), "holds no sound"),
        (wav(1)[:20] + b"\x42" + wav(1)[21:], "stored as g723_1, which is not decoded here"),
        (wav(1, 3999), "fewer than 4000 samples"),
        (wav(601), "longer than 600 seconds"),
        (video(3, 32, 16), "holds no sound"),
    ],
)
def test_a_sound_that_is_none_is_refused(
    base: Path, data: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("private.wav").write_bytes(wav(1))
    with pytest.raises(ValueError, match=message):
        connector(base).fetch_audio(f"data:audio/wav;base64,{base64.b64encode(data).decode()}")


IMAGE, SOUND, VIDEO = png(100, 50), wav(1), video(10, 64, 48)
SIZES = {"image": len(IMAGE) + 3 * 100 * 50, "audio": len(SOUND) + 4 * 16_000, "video": len(VIDEO) + 3 * 10 * 64 * 48}


async def read(of: Any, budget: MediaBudget, *urls: tuple[str, str]) -> BadRequest | None:
    """Read files of these kinds and URLs, as vLLM does. Returns the refusal, None if all were read."""
    refusals = list[BadRequest]()
    BUDGET.set(budget)
    ADMISSION.set(SimpleNamespace(refuse=refusals.append))  # type: ignore[arg-type]
    done = await asyncio.gather(
        *(getattr(of, f"fetch_{kind}_async")(url) for kind, url in urls), return_exceptions=True
    )
    failed = [each for each in done if isinstance(each, BaseException)]
    assert len(failed) == len(refusals)
    assert {str(error) for error in failed} <= {"refused"}
    return refusals[0] if refusals else None


@pytest.mark.parametrize("by_site", [False, True])
@pytest.mark.parametrize(("kind", "data"), [("image", IMAGE), ("audio", SOUND), ("video", VIDEO)])
async def test_the_media_of_a_request_are_bounded(
    base: Path, site: tuple[str, list[str]], kind: str, data: bytes, by_site: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those from a site that the recipe allows."""
    monkeypatch.setitem(FILES, "/file", data)
    url = f"{site[0]}/file" if by_site else f"data:{kind}/x;base64,{base64.b64encode(data).decode()}"
    of = connector(base, allowed_media_domains=["127.0.0.1"])
    async with await of.connection.get_async_client():
        assert await read(of, MediaBudget(3 * SIZES[kind], "messages"), *[(kind, url)] * 3) is None
        refused = await read(of, MediaBudget(3 * SIZES[kind] - 1, "messages"), *[(kind, url)] * 3)
    assert refused is not None
    assert (refused.code, refused.param, refused.status) == ("media_too_large", "messages", 400)


async def test_all_kinds_of_media_share_the_budget(base: Path) -> None:
    of, total = connector(base), sum(SIZES.values())
    urls = [
        (kind, f"data:{kind}/x;base64,{base64.b64encode(data).decode()}")
        for kind, data in (("image", IMAGE), ("audio", SOUND), ("video", VIDEO))
    ]
    assert await read(of, MediaBudget(total, "input"), *urls) is None
    assert await read(of, MediaBudget(total - 1, "input"), *urls) is not None


async def test_frames_count_before_they_are_decoded(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("the memory was taken")

    monkeypatch.setattr(np, "empty", fail)
    monkeypatch.setattr("cv2.cvtColor", fail)
    url = f"data:video/mp4;base64,{base64.b64encode(VIDEO).decode()}"
    assert await read(connector(base), MediaBudget(SIZES["video"] - 1, "messages"), ("video", url)) is not None


@pytest.mark.parametrize("form", ["AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PCX", "PNG", "PPM", "TIFF", "WEBP"])
async def test_no_image_is_decoded_before_it_counts(base: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """An ICO of 0.7 MB took 12 s and 0.7 GB before it was refused."""
    picture, decoded = io.BytesIO(), list[str]()
    Image.new("RGB", (900, 900)).save(picture, form)
    url = f"data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()}"
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda opened: decoded.append(opened.format))
    assert await read(connector(base), MediaBudget(3 * 900 * 900 - 1, "messages"), ("image", url)) is not None
    assert decoded == []


async def test_a_sound_is_decoded_only_as_far_as_the_budget(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = list[int]()

    class Budget(MediaBudget):
        def take(self, count: int) -> None:
            taken.append(count)
            super().take(count)

    data = wav(60)
    url = f"data:audio/wav;base64,{base64.b64encode(data).decode()}"
    assert await read(connector(base), Budget(len(data) + 64_000, "messages"), ("audio", url)) is not None
    assert sum(taken) < len(data) + 100_000


async def test_each_frame_of_a_video_of_images_that_is_read_counts(base: Path) -> None:
    frame = base64.b64encode(IMAGE).decode()
    url = f"data:video/jpeg;base64,{','.join([frame] * 40)}"  # vLLM reads 32
    assert await read(connector(base), MediaBudget(32 * SIZES["image"], "messages"), ("video", url)) is None
    assert await read(connector(base), MediaBudget(32 * SIZES["image"] - 1, "messages"), ("video", url)) is not None


@pytest.mark.parametrize(
    ("kind", "url", "message"),
    [
        ("image", "data:image/png,AAAA", "Only base64 data URLs"),
        ("image", "data:image/png;base64", "missing ','"),
        ("image", "data:image/png;base64,AAAA", "in no format that is read"),
        ("image", "data:image/png;base64,%%%", "base64"),
        ("image", "http://example.org/x", "must be from one of the allowed domains"),
        ("audio", "data:audio/wav;base64,AAAA", "cannot be decoded"),
        ("video", "data:video/mp4;base64,AAAA", "Could not open"),
        ("audio", "data:audio/wav;base64," + "A" * (34 << 20), "file size exceeded: 25 MiB at most"),
        ("image", "file:///etc/hostname", "file: URL is not read here"),
    ],
)
async def test_media_that_cannot_be_read_are_refused_by_field(base: Path, kind: str, url: str, message: str) -> None:
    refused = await read(connector(base), MediaBudget(1 << 20, "input"), (kind, url))
    assert refused is not None
    assert (refused.param, refused.status) == ("input", 400)
    assert message in refused.message


@pytest.mark.parametrize("fault", [ClientPayloadError(), ConnectionRefusedError(), TimeoutError()])
async def test_a_url_that_cannot_be_fetched_is_refused_by_field(base: Path, fault: Exception) -> None:
    of = connector(base, allowed_media_domains=["127.0.0.1"])
    of.connection = SimpleNamespace(async_get_bytes=AsyncMock(side_effect=fault))
    refused = await read(of, MediaBudget(1 << 20, "input"), ("image", "http://127.0.0.1/x"))
    assert refused is not None
    assert refused.param == "input"
    assert f"could not be fetched from its URL ({type(fault).__name__})" in refused.message


@pytest.mark.parametrize("kind", ["audio", "video"])
def test_a_small_file_takes_no_memory_by_a_claim(base: Path, kind: str) -> None:
    """FFmpeg fills as much with zeros as the title of a WAV file is said to have."""
    size = 0x6000_0000
    listed = b"LIST" + struct.pack("<I", size + 12) + b"INFOINAM" + struct.pack("<I", size)
    data = wav(1)[:36] + listed
    url = f"data:{kind}/x;base64,{base64.b64encode(data).decode()}"
    of, status = connector(base), Path("/proc/self/status")
    Path("/proc/self/clear_refs").write_text("5")  # the highest number from now on

    def most() -> int:
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) >> 10

    before = most()
    with pytest.raises(ValueError, match=r"cannot be decoded|Could not open"):
        getattr(of, f"fetch_{kind}")(url)
    assert most() - before < 200


async def test_a_sound_in_parts_of_a_sample_counts_as_more(base: Path) -> None:
    """Each part takes 50 us, and a file of 25 MB may have 6 million."""
    form = struct.pack("<HHIIHHHH", 0x11, 1, 16_000, 64_000, 4, 4, 2, 1)  # IMA ADPCM in blocks of one sample
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", 4_000) + bytes(4_000)
    data = b"RIFF" + struct.pack("<I", len(body)) + body
    url = f"data:audio/wav;base64,{base64.b64encode(data).decode()}"
    assert await read(connector(base), MediaBudget(len(data) + 1_000 * PART_LEAST, "messages"), ("audio", url)) is None
    refused = await read(connector(base), MediaBudget(len(data) + 999 * PART_LEAST, "messages"), ("audio", url))
    assert refused is not None
    assert refused.code == "media_too_large"


async def test_a_picture_of_many_colour_profiles_is_not_opened(base: Path) -> None:
    """Each is 1 KB that inflates to 1 MB, and Pillow would read all of them."""
    profile = b"name\0\0" + zlib.compress(bytes(1000))
    chunk = struct.pack(">I", len(profile)) + b"iCCP" + profile + struct.pack(">I", zlib.crc32(b"iCCP" + profile))
    for count, is_refused in ((1, False), (16, False), (17, True)):
        data = IMAGE[:33] + count * chunk + IMAGE[33:]
        url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        refused = await read(connector(base), MediaBudget(1 << 20, "messages"), ("image", url))
        assert (refused is not None) == is_refused
    assert refused is not None
    assert "17 colour profiles" in refused.message


async def test_a_long_video_is_refused_before_it_is_decoded(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All frames up to the last of the sample are decoded: a file of 10 MB may take an hour."""
    url = f"data:video/mp4;base64,{base64.b64encode(VIDEO).decode()}"
    of, passed = connector(base), 2 * 10 * 64 * 48
    monkeypatch.setattr(media, "PASSED", passed)
    assert await read(of, MediaBudget(1 << 30, "messages"), ("video", url), ("video", url)) is None
    monkeypatch.setattr(media, "PASSED", passed - 1)
    refused = await read(of, MediaBudget(1 << 30, "messages"), ("video", url), ("video", url))
    assert refused is not None
    assert (refused.param, refused.code) == ("messages", "media_too_large")


async def test_a_video_that_claims_more_frames_than_it_can_hold_is_refused(base: Path) -> None:
    """vLLM would try to read each up to the last of its sample."""
    data = bytearray(video(3, 32, 16))
    sizes, times = data.index(b"stsz"), data.index(b"stts")
    data[sizes + 8 : sizes + 16] = struct.pack(">II", 1, 1 << 24)  # each has one byte
    data[times + 12 : times + 16] = struct.pack(">I", 1 << 24)
    url = f"data:video/mp4;base64,{base64.b64encode(data).decode()}"
    refused = await read(connector(base), MediaBudget(1 << 30, "messages"), ("video", url))
    assert refused is not None
    assert "claims 16777216 frames" in refused.message


@pytest.mark.parametrize(
    ("flags", "environment", "place"),
    [
        ({"media_io_kwargs": '{"video": {"backend": "torchcodec"}}'}, "opencv", "media_io_kwargs.video.backend"),
        ({"media_io_kwargs": '{"video": {"video_backend": "pynvvideocodec"}}'}, "", "media_io_kwargs.video.video_back"),
        ({}, "pynvvideocodec", "VLLM_VIDEO_LOADER_BACKEND in the environment"),
    ],
)
def test_a_recipe_cannot_choose_a_decoder_of_videos_without_bounds(
    base: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any], environment: str, place: str
) -> None:
    monkeypatch.setenv("VLLM_VIDEO_LOADER_BACKEND", environment)
    with pytest.raises(Unfit, match=f"{place}.*leave it out, for OpenCV"):
        settings.arguments(chat_fixtures.recipe(base, **flags), base, "cpu", launch.parser())
    monkeypatch.delenv("VLLM_VIDEO_LOADER_BACKEND")
    flags = {"media_io_kwargs": '{"video": {"backend": "opencv"}}'}
    settings.arguments(chat_fixtures.recipe(base, **flags), base, "cpu", launch.parser())


def test_a_model_that_decodes_videos_by_itself_gets_none(base: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(base, tmp_path / "base"))
    config = json.loads((folder / "config.json").read_text())
    for name, limits in ((config["architectures"][0], {}), ("Dots3NoteForCausalLM", {"video": 0})):
        (folder / "config.json").write_text(json.dumps(config | {"architectures": [name]}))
        parsed = settings.arguments(chat_fixtures.recipe(folder), folder, "cpu", launch.parser())
        assert parsed.limit_mm_per_prompt == limits


def test_a_video_is_read_by_no_other_decoder(base: Path) -> None:
    from vllm.multimodal.video import VIDEO_LOADER_REGISTRY

    connector(base)
    with pytest.raises(ValueError, match="not read by torchcodec"):
        VIDEO_LOADER_REGISTRY.load("opencv").load_bytes(VIDEO, backend="torchcodec")


def gif(screen: int, frame: int) -> bytes:
    """Return the beginning of a square GIF whose frame is to be cleared afterwards."""
    head = b"GIF89a" + struct.pack("<HHBBB", screen, screen, 0x80, 0, 0) + bytes(6)
    return head + b"!\xf9\x04\x08\0\0\0\0," + struct.pack("<HHHHB", 0, 0, frame, frame, 0) + b"\x02\x02\x44\x01\0;"


@pytest.mark.parametrize(("screen", "frame"), [(13_300, 13_300), (1, 13_300)])
async def test_a_gif_takes_no_memory_by_its_header(
    base: Path, monkeypatch: pytest.MonkeyPatch, screen: int, frame: int
) -> None:
    """Pillow makes the background of the first frame when it opens the file: 180 MB."""

    def fail(*_: Any) -> Any:
        raise AssertionError("the memory was taken")

    Image.init()  # Pillow's modules make small images when they are imported
    monkeypatch.setattr("PIL.Image.core.fill", fail)
    url = f"data:image/gif;base64,{base64.b64encode(gif(screen, frame)).decode()}"
    refused = await read(connector(base), MediaBudget(256 << 20, "messages"), ("image", url))
    assert refused is not None
    assert refused.code == "media_too_large"


def saved(form: str, size: tuple[int, int], mode: str = "RGB", **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.new(mode, size).save(stream, form, **options)
    return stream.getvalue()


def qoi(width: int, height: int) -> bytes:
    runs = b"\xfd" * -(-width * height // 62)
    return b"qoif" + struct.pack(">II", width, height) + b"\3\0" + runs + bytes(7) + b"\1"


def strips(count: int) -> bytes:
    """Return a TIFF with so many strips of one pixel."""
    fields = [(256, 1), (257, count), (258, 8), (259, 1), (262, 1), (273, 0), (277, 1), (278, 1), (279, 0)]
    tables = 8 + 2 + 12 * len(fields) + 4
    places = {273: tables, 279: tables + 4 * count}
    listed = b"".join(
        struct.pack("<HHII", tag, 4, count if tag in places else 1, places.get(tag, value)) for tag, value in fields
    )
    numbers = struct.pack(f"<{2 * count}I", *[8] * count, *[1] * count)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(fields)) + listed + bytes(4) + numbers


def scans(count: int, side: int) -> bytes:
    """Return a progressive JPEG with so many scans in addition."""
    data = saved("JPEG", (side, side), "L", progressive=True)
    return data[:-2] + data[data.rindex(decoding.SCAN) : -2] * count + data[-2:]


def marked(count: int, side: int) -> bytes:
    """Return a PNG in which a JPEG's mark of a scan stands so many times, as it does by chance in a large one."""
    data, text = saved("PNG", (side, side), "L"), b"tEXtmark\0" + decoding.SCAN * count
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    end = data.rindex(b"IEND") - 4
    return data[:end] + chunk + data[end:]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (qoi(1000, 1000), None),
        (qoi(1000, 1001), "read up to 1000000 pixels, and has 1001000"),
        (strips(decoding.TILES), None),
        (strips(decoding.TILES + 1), "in 65537 parts"),
        (scans(20, 2000), None),
        (scans(600, 2000), "scans, too many for its size"),
        (marked(600, 2000), None),
    ],
    ids=["small", "slow", "parts", "too many parts", "scans", "too many scans", "no scans"],
)
async def test_an_image_that_takes_more_work_than_its_size_tells(base: Path, data: bytes, message: str | None) -> None:
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    refused = await read(connector(base), MediaBudget(1 << 26, "messages"), ("image", url))
    assert (refused is not None) == (message is not None)
    assert message is None or (refused is not None and message in refused.message)


@pytest.mark.parametrize(
    ("form", "mode", "share"),
    [("JPEG", "RGB", 3), ("PNG", "RGBA", 4.5), ("JPEG", "CMYK", 4.5), ("WEBP", "RGB", 8), ("AVIF", "RGB", 5)],
)
async def test_a_decoder_takes_at_most_twice_what_a_request_may(base: Path, form: str, mode: str, share: float) -> None:
    """That of a WebP takes 16 bytes for a pixel, and 1.3 GB for one that counts 0.25."""
    data = saved(form, (500, 400), mode)
    url = f"data:image/x;base64,{base64.b64encode(data).decode()}"
    total = max(int(share * 200_000), len(data) + 600_000)
    assert await read(connector(base), MediaBudget(total, "messages"), ("image", url)) is None
    assert await read(connector(base), MediaBudget(total - 1, "messages"), ("image", url)) is not None


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_upright_once(base: Path, orientation: int) -> None:
    picture = Image.effect_noise((30, 20), 100).convert("RGB")
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = orientation, "x"
    stream = io.BytesIO()
    picture.save(stream, "PNG", exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(stream.getvalue())))
    image = connector(base).fetch_image(f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}").media
    assert image.tobytes() == expected.tobytes()
    assert ImageOps.exif_transpose(image).tobytes() == expected.tobytes()


def test_exif_is_not_written_anew(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of 3 MB took 2 s."""
    monkeypatch.delattr(Image.Exif, "tobytes")
    exif = b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0"
    url = f"data:image/jpeg;base64,{base64.b64encode(saved('JPEG', (30, 20), exif=exif)).decode()}"
    assert connector(base).fetch_image(url).size == (20, 30)


@pytest.mark.parametrize("kind", ["audio", "video"])
async def test_a_header_that_takes_ffmpeg_too_long_is_refused(
    base: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Each tag is compared with all before: 150,000 in 3 MB took 48 s, and nothing stops FFmpeg meanwhile."""
    monkeypatch.setattr(decoding, "HEADER_SECONDS", 0.5)
    tags = b"".join(b"TXXX\0\0\0\x08\0\0\3%05d\0b" % index for index in range(80_000))
    size = bytes(len(tags) >> shift & 127 for shift in (21, 14, 7, 0))
    url = f"data:{kind}/x;base64,{base64.b64encode(b'ID3' + bytes([4, 0, 0]) + size + tags + VIDEO).decode()}"
    refused = await read(connector(base), MediaBudget(1 << 30, "messages"), (kind, url))
    assert refused is not None
    assert "header takes too long" in refused.message


async def test_the_decoding_of_a_sound_ends_when_its_client_leaves(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = threading.Event(), threading.Event()

    def endless(_: Any) -> Iterator[Any]:
        import numpy as np

        try:
            while True:
                yield SimpleNamespace(samples=1, sample_rate=16_000, to_ndarray=lambda: np.zeros((1, 1), np.float32))
                began.set()
        finally:
            ended.set()

    monkeypatch.setattr(decoding, "_decoded", endless)
    monkeypatch.setattr(decoding, "PART_LEAST", 0)
    BUDGET.set(MediaBudget(1 << 60, "messages"))
    url = f"data:audio/wav;base64,{base64.b64encode(SOUND).decode()}"
    reading = asyncio.create_task(connector(base).fetch_audio_async(url))
    await asyncio.to_thread(began.wait, 60)
    reading.cancel()
    assert await asyncio.to_thread(ended.wait, 60)
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_the_decoding_of_a_video_ends_when_its_client_leaves(base: Path) -> None:
    class LeavingClient(MediaBudget):
        def take_images(self, pixels: int, count: int = 1) -> None:
            super().take_images(pixels, count)
            self.cancel()

    url = f"data:video/mp4;base64,{base64.b64encode(VIDEO).decode()}"
    assert await read(connector(base), LeavingClient(1 << 30, "messages"), ("video", url)) is not None


async def test_the_sound_of_a_video_that_a_model_reads_by_itself_counts(base: Path) -> None:
    """As Nemotron's preprocessor does if the recipe says so; it goes on without a sound that cannot be read."""
    connector(base)
    from vllm.exceptions import VLLMClientError
    from vllm.multimodal.media.audio import load_audio_pyav
    from vllm.renderers.base import BaseRenderer

    class Renderer:
        def __init__(self) -> None:
            self._mm_executor = ThreadPoolExecutor(1)

    def preprocess() -> None:
        with contextlib.suppress(Exception):
            load_audio_pyav(io.BytesIO(SOUND), max_duration_s=600)

    async def process(_: Any, __: Any, **___: Any) -> dict[str, str]:
        await asyncio.get_running_loop().run_in_executor(renderer._mm_executor, preprocess)
        return {"type": "multimodal"}

    fakes: Any = SimpleNamespace(_get_cache_type=None), SimpleNamespace(ALLOWED_IMAGE_FORMATS=())
    Renderer._process_tokens_async = process  # type: ignore[attr-defined]
    reading.patch(*fakes, Renderer)
    renderer: Any = Renderer()
    prompt = {"multi_modal_data": {"video": [VIDEO]}}
    refusals = list[BadRequest]()
    ADMISSION.set(SimpleNamespace(refuse=refusals.append))  # type: ignore[arg-type]
    BUDGET.set(MediaBudget(SIZES["audio"], "messages"))
    await renderer._process_tokens_async(prompt)
    BUDGET.set(MediaBudget(SIZES["audio"] - 1, "messages"))
    with pytest.raises(VLLMClientError, match="refused"):
        await renderer._process_tokens_async(prompt)
    assert [refusal.code for refusal in refusals] == ["media_too_large"]
    assert BaseRenderer.__init__.__qualname__ == "patch.<locals>.init"


def test_a_url_that_fails_is_not_logged() -> None:
    prewarm.prewarm_core()
    assert not logging.getLogger("vllm.connections").isEnabledFor(logging.WARNING)


def config(gb: float = 1, kind: str = "lru", cores: int = 1) -> Any:
    settings = SimpleNamespace(mm_processor_cache_gb=gb, mm_processor_cache_type=kind)
    model = SimpleNamespace(supports_multimodal_inputs=True, get_multimodal_config=lambda: settings)
    parallel = SimpleNamespace(_api_process_count=1, data_parallel_size=cores, data_parallel_external_lb=False)
    return SimpleNamespace(model_config=model, parallel_config=parallel)


def test_an_image_is_sent_again_if_the_request_before_was_never_sent() -> None:
    """A refused request leaves its image in the slot's cache, and EngineCore knows nothing of it."""
    prewarm.prewarm_core()
    from vllm.multimodal.cache import factories
    from vllm.multimodal.inputs import MultiModalKwargsItem

    slot, core = factories.processor_cache_from_config(config()), factories.engine_receiver_cache_from_config(config())
    assert slot is not None
    image = MultiModalKwargsItem.dummy()
    slot.get_and_update_item((image, []), "hash")
    sent, _ = slot.get_and_update_item((image, []), "hash")
    received = core.get_and_update_item(sent, "hash") if core is not None else sent
    assert received is image


def item(size: int) -> Any:
    from vllm.multimodal.inputs import MultiModalBatchedField, MultiModalFieldElem, MultiModalKwargsItem

    tensor = torch.zeros(size - sending.LEAST_BYTES, dtype=torch.uint8)
    return MultiModalKwargsItem({"pixels": MultiModalFieldElem(data=tensor, field=MultiModalBatchedField())})


class Wire:
    """A slot's client and its EngineCore, with vLLM's own encoding between them."""

    def __init__(self, **options: Any) -> None:
        prewarm.prewarm_core()
        from vllm.v1.engine import EngineCoreRequest
        from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

        self.client: Any = SimpleNamespace(vllm_config=config(**options), encoder=MsgpackEncoder(), core_engine=b"")
        self.client._send_input_message = self.send
        self.core: Any = SimpleNamespace(vllm_config=config(**options))
        self.decoder, self.sizes, self.is_prompt = MsgpackDecoder(EngineCoreRequest), list[int](), True

    def send(self, message: Any, engine: bytes) -> Any:
        self.sizes.append(sum(len(memoryview(part).cast("B")) for part in message))
        self.message = [bytes(part) for part in message[1:]]
        sent = asyncio.get_running_loop().create_future()
        if self.is_prompt:
            sent.set_result(None)
        return sent

    def request(self, *images: tuple[str, int]) -> None:
        """Send a request with these keys and sizes of images, which EngineCore refuses, after it took the images."""
        from vllm.lora.request import LoRARequest
        from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
        from vllm.v1.engine import EngineCoreRequest, EngineCoreRequestType
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.engine.core_client import AsyncMPClient

        features = [
            MultiModalFeatureSpec(item(size), "image", key, PlaceholderRange(offset=0, length=1), key)
            for key, size in images
        ]
        request = EngineCoreRequest(
            request_id="r", prompt_token_ids=[1], mm_features=features, sampling_params=None, pooling_params=None,
            arrival_time=0.0, lora_request=LoRARequest("absent", 7, "/nowhere"), cache_salt=None,
            data_parallel_rank=None,
        )  # fmt: skip
        AsyncMPClient._send_input(self.client, EngineCoreRequestType.ADD, request)
        assert request.mm_features is features
        received = self.decoder.decode(self.message)
        with pytest.raises(UnknownAdapter):
            EngineCore.preprocess_add_request(self.core, received)
        assert [sending.size_of(feature.data) for feature in received.mm_features] == [size for _, size in images]


MIB = 1 << 20


async def test_an_image_is_sent_once_though_the_first_request_was_refused() -> None:
    wire = Wire()
    for _ in range(3):
        wire.request(("a", 4 * MIB), ("b", MIB))
    wire.request(("b", MIB), ("c", MIB), ("c", MIB))
    assert [size >> 20 for size in wire.sizes] == [4, 0, 0, 0]
    assert wire.sizes[-1] > MIB - sending.LEAST_BYTES


async def test_an_image_whose_request_was_not_sent_is_sent_with_the_next() -> None:
    wire = Wire()
    encoder, wire.client.encoder = wire.client.encoder, None
    with pytest.raises(AttributeError):
        wire.request(("a", 4 * MIB))
    wire.client.encoder = encoder
    for _ in range(2):
        wire.request(("a", 4 * MIB))
    assert [size >> 20 for size in wire.sizes] == [3, 0]


async def test_images_are_always_sent_once_the_socket_has_not_taken_one_at_once() -> None:
    """Such a message may be cancelled before it is sent."""
    wire = Wire()
    wire.request(("a", 4 * MIB))
    wire.is_prompt = False
    wire.request(("a", 4 * MIB))
    wire.is_prompt = True
    for _ in range(2):
        wire.request(("a", 4 * MIB), ("b", 4 * MIB))
    assert [size >> 20 for size in wire.sizes] == [3, 0, 7, 7]


@pytest.mark.parametrize("options", [{"gb": 0}, {"kind": "shm"}, {"cores": 2}])
async def test_images_are_always_sent_where_no_cache_of_ours_fits(options: dict[str, Any]) -> None:
    wire = Wire(**options)
    for _ in range(2):
        wire.request(("a", 4 * MIB))
    assert [size >> 20 for size in wire.sizes] == [3, 3]


async def test_one_of_several_engine_cores_of_a_dense_model_keeps_no_image() -> None:
    """vLLM tells each that it is the only one, but they get each image every time."""
    wire = Wire(cores=2)
    wire.core.vllm_config, wire.core.has_coordinator = config(), True
    wire.request(("a", 4 * MIB))
    assert wire.core.roundhouse_media.get("a") is None


@pytest.mark.parametrize("seed", range(5))
async def test_engine_core_has_every_image_that_is_left_out(seed: int) -> None:
    """With little room, images of all sizes, some larger than the room, and requests that are never sent."""
    rng = random.Random(seed)
    sizes = [rng.randrange(sending.LEAST_BYTES, 400_000) for _ in range(6)] + [MIB + 1]
    wire = Wire(gb=1 / 1024 * sending.SHARE)
    total = 0
    for _ in range(100):
        images = [(f"{key}", sizes[key]) for key in rng.choices(range(7), [8, 4, 4, 2, 1, 1, 1], k=rng.randrange(1, 4))]
        encoder = wire.client.encoder
        if rng.random() < 0.2:
            wire.client.encoder = None
            with pytest.raises(AttributeError):
                wire.request(*images)
            wire.client.encoder = encoder
        else:
            wire.request(*images)
            total += sum(size for _, size in images)
            assert wire.client.roundhouse_media.keys() <= wire.core.roundhouse_media.keys()
    assert sum(wire.sizes) < total * 0.9
    assert 0 < wire.core.roundhouse_media.currsize <= MIB


def test_images_are_read_in_the_formats_whose_pixels_are_counted() -> None:
    """Others may hold an image that is larger than they tell.

    Such as a picture of 1,001 x 1,000 pixels in a BLP file of a single pixel.
    """
    prewarm.prewarm_core()
    from vllm.multimodal.image import open_image

    assert set(NESTED) < set(stock("vllm.multimodal.image").ALLOWED_IMAGE_FORMATS)
    picture = io.BytesIO()
    Image.new("RGB", (1001, 1000)).save(picture, "JPEG")
    data = picture.getvalue()
    head = b"BLP1" + struct.pack("<6I", 0, 0, 1, 1, 5, 0)
    places = struct.pack("<32I", 160, *[0] * 15, len(data), *[0] * 15)
    blp = head + places + struct.pack("<I", 0) + data
    with Image.open(io.BytesIO(blp)) as image:
        image.load()  # Pillow decodes it all
        assert image.size == (1, 1)
    with pytest.raises(UnidentifiedImageError):
        open_image(io.BytesIO(blp))


async def key_of(color: str | None, *, salt: str, name: str | None = None) -> str:
    """Return the key under which vLLM caches an image of a request."""
    from vllm.multimodal.parse import MultiModalDataParser, parse_mm_uuids
    from vllm.multimodal.processing import ProcessorInputs
    from vllm.renderers.base import BaseRenderer

    async def process(prompt: list[int], data: Any, *, mm_uuids: Any, media_io_kwargs: Any, **_: Any) -> dict[str, str]:
        items, names = MultiModalDataParser().parse_mm_data(data), parse_mm_uuids(mm_uuids)
        inputs = ProcessorInputs(prompt, items, names, media_io_kwargs=media_io_kwargs)
        return {"type": "multimodal", "key": inputs.get_mm_hashes("tiny", "sha256")["image"][0]}

    renderer: Any = SimpleNamespace(_process_multimodal_async=process)
    prompt: Any = {
        "prompt_token_ids": [1],
        "multi_modal_data": {"image": [color and Image.new("RGB", (2, 2), color)]},
        "multi_modal_uuids": {"image": [name]},
        "cache_salt": salt,
    }
    processed: Any = await BaseRenderer._process_tokens_async(renderer, prompt)
    return str(processed["key"])


@pytest.mark.parametrize("salt", ["", "team"])
async def test_no_client_chooses_under_which_key_its_image_is_cached(salt: str) -> None:
    """Another's image with the same name would be answered about this one."""
    prewarm.prewarm_core()
    red = await key_of("red", salt=salt, name="logo")
    assert red == await key_of("red", salt=salt)
    assert red != await key_of("blue", salt=salt, name="logo")
    with pytest.raises(ValueError, match="has no image: send it as a data: URL"):
        await key_of(None, salt=salt, name="logo")


async def test_teams_share_no_cached_image() -> None:
    """Else the time of an answer would tell whether another team has sent an image."""
    prewarm.prewarm_core()
    assert len({await key_of("red", salt=salt) for salt in ("", "one", "two")}) == 3
