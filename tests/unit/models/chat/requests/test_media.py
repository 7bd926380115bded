"""Images that take more memory than their bytes tell, and settings that enlarge them."""

import base64
import io
import json
import random
import struct
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image, ImageFile

from models.chat.engine import VllmEngine
from models.chat.requests import fields, media
from models.chat.requests.request import ChatRequest
from registry.bounds import Bounds
from registry.errors import BadRequest

BOUNDS = Bounds(image_pixels=1_000_000, parts_all=64)


def encoded(width: int, height: int, form: str = "PNG") -> str:
    stream = io.BytesIO()
    Image.new("1" if form == "PNG" else "RGB", (width, height)).save(stream, form)
    return base64.b64encode(stream.getvalue()).decode()


def check(path: str, **body: Any) -> None:
    media.check(ChatRequest(path, json.dumps(body).encode()), BOUNDS)


def by_chat(image: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}


def by_responses(image: str) -> dict[str, Any]:
    return {"type": "input_image", "image_url": f"DATA:image/png;base64,{image}"}


def by_messages(image: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}}


@pytest.mark.parametrize(
    ("path", "field", "part"),
    [
        ("/v1/chat/completions", "messages", by_chat),
        ("/v1/responses", "input", by_responses),
        ("/v1/messages", "messages", by_messages),
    ],
)
@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP"])
def test_all_images_together_are_bounded(path: str, field: str, part: Any, form: str) -> None:
    half = encoded(500, 1000, form)
    first, second = ({"role": "user", "content": [part(half)]} for _ in range(2))
    check(path, **{field: [first, second]})
    with pytest.raises(BadRequest, match="more than 1000000 pixels together") as refused:
        check(path, **{field: [first, second, {"role": "user", "content": [part(encoded(1, 1, form))]}]})
    assert (refused.value.code, refused.value.param) == ("images_too_large", field)


@pytest.mark.parametrize("escaped", ["base64", "data:", "source"])
def test_an_image_is_found_however_its_json_is_written(escaped: str) -> None:
    image = encoded(1001, 1000)
    for part in (by_chat(image), by_messages(image)):
        body = json.dumps({"messages": [{"role": "user", "content": [part]}]}).replace(
            escaped, f"\\u{ord(escaped[0]):04x}{escaped[1:]}"
        )
        with pytest.raises(BadRequest, match="pixels together"):
            media.check(ChatRequest("/v1/chat/completions", body.encode()), BOUNDS)


@pytest.mark.parametrize("source", [{}, {"type": "file"}, {"media_type": "image/png"}])
def test_a_source_of_any_type_but_url_is_base64_as_for_vllm(source: dict[str, str]) -> None:
    part = {"type": "image", "source": {**source, "data": encoded(1001, 1000)}}
    with pytest.raises(BadRequest, match="pixels together"):
        check("/v1/messages", messages=[{"role": "user", "content": [part]}])
    check(
        "/v1/messages", messages=[{"role": "user", "content": [{**part, "source": {**part["source"], "type": "url"}}]}]
    )


def test_each_frame_of_a_video_of_images_counts() -> None:
    frames = [encoded(500, 500, "JPEG")] * 4
    for more, is_refused in (([], False), ([encoded(1, 1, "JPEG")], True)):
        url = f"data:Video/jpeg;base64,{','.join([*frames, *more])}"
        body = {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": url}}]}]}
        with pytest.raises(BadRequest, match="pixels together") if is_refused else nullcontext():
            check("/v1/chat/completions", **body)


def test_the_files_of_a_request_are_bounded_where_they_are_no_images() -> None:
    """Each takes 0.1 ms to find out, on the loop that feeds all streams."""
    for count, is_refused in ((BOUNDS.parts_all, False), (BOUNDS.parts_all + 1, True)):
        part = {"type": "text", "text": "base64", "more": ["data:,AAAA"] * count}
        with pytest.raises(BadRequest, match="images or other files") if is_refused else nullcontext():
            check("/v1/chat/completions", messages=[{"role": "user", "content": [part]}])


def test_an_image_that_pillow_itself_refuses_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    image = encoded(500, 500)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(BadRequest, match="pixels together"):
        check("/v1/chat/completions", messages=[{"role": "user", "content": [by_chat(image)]}])


def test_only_the_beginning_of_an_image_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest takes a millisecond for each MB, on the loop that feeds all streams."""
    image = base64.b64encode(base64.b64decode(encoded(1001, 1000)) + bytes(1 << 20)).decode()
    decode, sizes = base64.b64decode, list[int]()

    def count(data: str, validate: bool) -> bytes:
        sizes.append(len(data))
        return decode(data, validate=validate)

    monkeypatch.setattr(base64, "b64decode", count)
    with pytest.raises(BadRequest, match="pixels together"):
        check("/v1/chat/completions", messages=[{"role": "user", "content": [by_chat(image)]}])
    assert sum(sizes) < 1 << 16


@pytest.mark.parametrize("form", ["AVIF", "BMP", "GIF", "ICO", "JPEG", "JPEG2000", "PCX", "PNG", "PPM", "TIFF", "WEBP"])
def test_no_image_is_decoded_to_count_its_pixels(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """An ICO of 0.7 MB took 12 s and 0.7 GB before it was refused."""
    image, decoded = encoded(9, 9, form), list[str]()
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda opened: decoded.append(opened.format))
    assert (media._pixels_of(image), decoded) == (81 if form in media.FORMATS else 0, [])


async def test_no_image_is_opened_on_the_loop_that_feeds_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """The colour profiles of a PNG of 2 MB may take seconds to inflate."""
    threads = list[str]()
    monkeypatch.setattr(media, "_pixels_of", lambda image: threads.append(threading.current_thread().name) or 0)
    for part in (by_chat("AAAA"), by_messages("AAAA"), {"type": "text", "text": "no image"}):
        body = json.dumps({"messages": [{"role": "user", "content": [part]}]})
        await media.check_aside(ChatRequest("/v1/chat/completions", body.encode()), BOUNDS)
    assert [name[:6] for name in threads] == ["images"] * 2


@pytest.mark.parametrize("size", [0, 1, 2, 3, 8192, 20_001])
def test_base64_is_read_like_a_file(size: int) -> None:
    data = random.Random(size).randbytes(size)
    reader = io.BufferedReader(media._Base64Reader(base64.b64encode(data).decode()))
    assert reader.read() == data
    for start in (0, 1, 2, 5, size // 2, size - 1, size, size + 7):
        reader.seek(max(0, start))
        assert reader.read(100) == data[max(0, start) :][:100]
    assert reader.seek(0, io.SEEK_END) == size


@pytest.mark.parametrize("image", ["", "AAAA", "%%%", encoded(9, 9)[:30]])
def test_what_is_no_image_is_left_to_vllm(image: str) -> None:
    check("/v1/chat/completions", messages=[{"role": "user", "content": [by_chat(image)]}, None, "x", {"content": 7}])


def test_deeply_nested_contents_are_read_to_the_end() -> None:
    nested = '{"a": [' * 400 + json.dumps(f"data:image/png;base64,{encoded(1001, 1000)}") + "]}" * 400
    body = f'{{"messages": [{{"role": "user", "content": [{nested}]}}]}}'
    with pytest.raises(BadRequest, match="pixels together"):
        media.check(ChatRequest("/v1/chat/completions", body.encode()), BOUNDS)


TWO = [{"role": "user", "content": [by_chat("AAAA"), by_chat("AAAA")]}]


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_pixels": 1_000_000}, {"min_pixels": 500_000}, {"do_pan_and_scan": True, "use_audio_in_video": None}],
)
def test_settings_that_are_bounded_are_passed_on(settings: dict[str, Any]) -> None:
    check("/v1/chat/completions", messages=TWO, mm_processor_kwargs=settings)
    check("/v1/chat/completions", messages=TWO, media_io_kwargs={"image": {"image_mode": "RGB"}, "video": {}})


@pytest.mark.parametrize(
    "settings",
    [
        {"max_pixels": 1_000_001},
        {"min_pixels": 500_001},
        {"min_pixels": 1e12},
        {"min_pixels": -1},
        {"size": {"height": 100_000, "width": 100_000}},
        {"num_frames": 100_000},
        {"device": "cuda"},
    ],
)
def test_settings_that_need_any_amount_of_memory_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as refused:
        check("/v1/chat/completions", messages=TWO, mm_processor_kwargs=settings)
    assert (refused.value.code, refused.value.param) == (
        "unsupported_value",
        f"mm_processor_kwargs.{next(iter(settings))}",
    )


@pytest.mark.parametrize(
    ("path", "field", "item"),
    [
        ("/v1/responses", "input", {"type": "function_call_output", "output": [by_responses("AAAA")] * 2}),
        ("/v1/chat/completions", "messages", {"role": "user", "content": [
            {"type": "video_url", "video_url": {"url": "data:video/jpeg;base64,AAAA,AAAA"}}
        ]}),
    ],
)  # fmt: skip
def test_every_image_counts_that_a_setting_enlarges(path: str, field: str, item: dict[str, Any]) -> None:
    body: dict[str, Any] = {field: [item]}
    check(path, **body, mm_processor_kwargs={"min_pixels": 500_000})
    with pytest.raises(BadRequest, match="up to 500000 are taken"):
        check(path, **body, mm_processor_kwargs={"min_pixels": 500_001})


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"video": {"num_frames": -1}}, "video.num_frames"), ({"image": {"x": 1}}, "image.x"), ({"y": {"z": 1}}, "y.z")],
)
def test_settings_of_decoding_are_the_recipes(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(BadRequest, match="only the model's recipe") as refused:
        check("/v1/chat/completions", messages=TWO, media_io_kwargs=settings)
    assert refused.value.param == f"media_io_kwargs.{name}"


@pytest.mark.parametrize("reads_images", [True, False])
async def test_only_models_that_read_images_count_them(reads_images: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others refuse them by themselves."""
    engine: Any = VllmEngine(BOUNDS)
    engine._engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=512, is_multimodal_model=reads_images))
    engine._state, engine._adapters, engine._model = "loaded", SimpleNamespace(), "m"
    checked = list[ChatRequest]()
    monkeypatch.setattr(fields, "check", lambda *_, **__: "")
    monkeypatch.setattr(media, "check", lambda request, bounds: checked.append(request))
    request = ChatRequest("/v1/chat/completions", b'{"model": "m", "messages": []}')
    await engine._check(SimpleNamespace(adapter=None, served="m"), request, None, strict=False)
    assert checked == [request] * reads_images


def test_an_image_of_two_formats_counts_as_vllm_reads_it() -> None:
    """A JPEG whose first segment is also the header of an animation in the FLI format, with other sizes."""
    jpeg = base64.b64decode(encoded(1, 1, "JPEG"))
    segment = bytearray(b"\xff\xe0\x11\xaf" + bytes(0x11AF - 2))
    segment[4:10] = struct.pack("<HHH", 1, 1001, 1000)
    segment[10] = 8
    image = base64.b64encode(jpeg[:2] + segment + jpeg[2:]).decode()
    with pytest.raises(BadRequest, match="pixels together"):
        check("/v1/messages", messages=[{"role": "user", "content": [by_messages(image)]}])
