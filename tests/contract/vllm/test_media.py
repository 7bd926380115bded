"""An engine fetches media only from the domains in its recipe, and follows no redirects."""

import asyncio
import base64
import io
import logging
import random
import struct
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image, UnidentifiedImageError

from models.chat import settings
from models.chat.requests.media import FORMATS
from models.chat.vllm import launch, prewarm
from models.chat.vllm.core import UnknownAdapter
from models.chat.vllm.media import sending
from tests.contract.chat import fixtures as chat_fixtures
from tests.contract.vllm.stock import stock

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_fixtures.write_base(tmp_path_factory.mktemp("media") / "base")


@pytest.fixture
def site() -> Iterator[tuple[str, list[str]]]:
    """A server in this machine's own network: its address, and the paths requested from it."""
    requested: list[str] = []

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.path)
            self.send_response(302 if self.path == "/away" else 404)
            self.send_header("Location", "/secret")
            self.send_header("Content-Length", "0")
            self.end_headers()

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
            with pytest.raises(Exception, match="Failed to"):
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
    assert wire.core.roundhouse_media.find("a") is None


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
    assert sum(wire.sizes) < total * 0.9
    slot, core = wire.client.roundhouse_media, wire.core.roundhouse_media
    assert {key: size for key, (size, _) in slot._items.items()} == {k: size for k, (size, _) in core._items.items()}
    assert 0 < sum(size for size, _ in core._items.values()) <= MIB


def test_images_are_read_in_the_formats_whose_pixels_are_counted() -> None:
    """In the same order, as a file may be of two formats. The others may hold an image that is larger than they tell.

    Such as a picture of 1,001 x 1,000 pixels in a BLP file of a single pixel.
    """
    prewarm.prewarm_core()
    from vllm.multimodal.image import open_image

    counted = [form for form in stock("vllm.multimodal.image").ALLOWED_IMAGE_FORMATS if form in FORMATS]
    assert counted == list(FORMATS)
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
