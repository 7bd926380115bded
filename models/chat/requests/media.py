"""Bound the memory for images before vLLM decodes them.

A PNG of a few KB can hold millions of pixels, and settings of the preprocessing can enlarge each image.
"""

import asyncio
import base64
import io
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from models.chat.requests.request import ChatRequest
from registry.base.json import NOT_JSON
from registry.bounds import Bounds
from registry.errors import BadRequest

PROCESSING, READING = "mm_processor_kwargs", "media_io_kwargs"
"""Settings for the model's preprocessor, and for decoding, which vLLM passes to the libraries."""
LARGEST, SMALLEST = "max_pixels", "min_pixels"
DECODING = {"image": frozenset({"image_mode", "rgba_background_color"})}
"""Settings of decoding that clients may send: those without effect on memory."""
HOLDERS = ("messages", "input")
"""Fields that may hold images."""
_MARKS = re.compile(rb'base64|"source"|\\u00[0-7]')
"""Matches items that may hold an image. JSON may write any letter of the other two as an escape."""
_FRAMES = "data:video/jpeg;"
"""The beginning of a video that is a list of images."""
_TOO_MANY = 1 << 62
FORMATS = (
    "AVIF", "BMP", "CUR", "DCX", "DDS", "DIB", "FITS", "FLI", "FTEX", "GBR", "GIF", "IM", "IMT", "JPEG", "JPEG2000",
    "MCIDAS", "MSP", "PCD", "PCX", "PIXAR", "PNG", "PPM", "PSD", "QOI", "SGI", "SPIDER", "SUN", "TGA", "TIFF", "WEBP",
    "XBM", "XPM", "XVTHUMB",
)  # fmt: skip
"""Formats of images in the order in which they are tried, in vLLM as well: a file may be of two, of different sizes.

Those of vLLM, without BLP, ICNS and IPTC, in which an image of any size may be inside one that seems small, and
without ICO, which Pillow decodes when it opens it: 12 s and 0.7 GB for one of 0.7 MB.
"""
_THREADS = ThreadPoolExecutor(4, "images")


async def check_aside(request: ChatRequest, bounds: Bounds) -> None:
    """Check a request that may have images in a thread, beside the loop that feeds all streams.

    Opening an image is usually quick, but the colour profiles of a PNG of 2 MB may be 2 GB, which takes 4 s to inflate.
    """
    if any(_MARKS.search(memoryview(request.fields[name])) for name in HOLDERS if name in request.fields):
        await asyncio.get_running_loop().run_in_executor(_THREADS, check, request, bounds)
    else:
        check(request, bounds)


def check(request: ChatRequest, bounds: Bounds) -> None:
    """Raise BadRequest for images with too many pixels together, or settings that may need unbounded memory.

    For models with images only; others refuse images, and have no use for the settings.
    """
    _check_settings(request, bounds)
    pixels = count = 0
    for name in HOLDERS:
        for image in _images(request, name):
            pixels, count = pixels + _pixels_of(image), count + 1
            if pixels > bounds.image_pixels:
                raise BadRequest(
                    f"The images have more than {bounds.image_pixels} pixels together. Send fewer or smaller ones.",
                    param=name,
                    code="images_too_large",
                )
            if count > bounds.parts_all:  # each takes 0.1 ms
                raise BadRequest(
                    f"'{name}' has more than {bounds.parts_all} images or other files. Send fewer.",
                    param=name,
                    code="too_many_entries",
                )


def _check_settings(request: ChatRequest, bounds: Bounds) -> None:
    parts = 0
    if request.is_object(PROCESSING):
        for name in HOLDERS:  # images may also be in the output of a tool, and frames in a video
            parts += max(_part_count(request, name), sum(1 for _ in _images(request, name)))
    for name, value in request.object(PROCESSING).items():
        most = {LARGEST: bounds.image_pixels, SMALLEST: bounds.image_pixels // max(1, parts)}.get(name, 0)
        if not (value is None or isinstance(value, bool) or (isinstance(value, int) and 0 <= value <= most)):
            advice = f"up to {most} are taken" if most else "only the model's recipe may set it, in engine.flags"
            raise _refusal(f"{PROCESSING}.{name}", advice)
    for kind, settings in request.object(READING).items():
        known = DECODING.get(kind, frozenset())
        for name in settings if isinstance(settings, dict) else ():
            if name not in known:
                raise _refusal(f"{READING}.{kind}.{name}", "only the model's recipe may set it, in engine.flags")


def _refusal(name: str, advice: str) -> BadRequest:
    field = name[:100]
    return BadRequest(f"'{field}' could need any amount of memory: {advice}.", param=field, code="unsupported_value")


def _part_count(request: ChatRequest, name: str) -> int:
    contents = (turn.content for turn in request.turns(name) if turn is not None)
    return sum(len(value) if isinstance(value := _decoded(content), list) else 1 for content in contents)


def _images(request: ChatRequest, name: str) -> Iterator[str]:
    """Iterate over the base64 of what may be images in all contents, in any dialect."""
    for item in request.items(name):
        if _MARKS.search(memoryview(item)) is not None:
            yield from _encoded(_decoded(item))


def _decoded(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except NOT_JSON:
        return None  # vLLM refuses it


def _encoded(content: Any) -> Iterator[str]:
    rest = [content]
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            if value[:5].lower() == "data:":
                data = value.partition(",")[2]
                yield from data.split(",") if value[: len(_FRAMES)].lower() == _FRAMES else (data,)
        elif isinstance(value, list):
            rest += value
        elif isinstance(value, dict):
            rest += value.values()
            source = value.get("source")  # Anthropic's; vLLM takes any other type for base64
            if isinstance(source, dict) and source.get("type") != "url" and isinstance(source.get("data"), str):
                yield source["data"]


def _pixels_of(encoded: str) -> int:
    """Return the pixels of an image's first frame from its header; 0 for anything else, which vLLM refuses."""
    from PIL import Image

    try:
        with Image.open(io.BufferedReader(_Base64Reader(encoded)), formats=FORMATS) as image:
            return image.width * image.height
    except Image.DecompressionBombError:
        return _TOO_MANY
    except Exception:  # any kind, from one of thirty readers
        return 0


class _Base64Reader(io.RawIOBase):
    """Decodes only what is read, since decoding 4 MB takes 5 ms.

    Raises ValueError for characters that base64 does not have, as vLLM does.
    """

    def __init__(self, encoded: str) -> None:
        self._encoded, self._position = encoded, 0
        self._size = len(encoded) // 4 * 3 - encoded[-2:].count("=")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        first, skipped = divmod(self._position, 3)
        last = -(-(self._position + len(buffer)) // 3)
        data = base64.b64decode(self._encoded[4 * first : 4 * last], validate=True)[skipped:][: len(buffer)]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
