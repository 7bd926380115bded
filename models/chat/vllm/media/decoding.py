"""Decode images, sounds and videos only within the budget of their request.

vLLM bounds each by itself: 600 s of a sound, 180 megapixels of an image or of each frame of a video. So 4,096 small
files, or a single one, may take all memory of a slot: a video of 2 MB took 4 GB.

Sounds are read here. vLLM's own readers differ in what they accept, and one of them takes integers for samples between
-1 and 1, and the samples of two channels for those of one.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar, copy_context
from io import BytesIO
from pathlib import Path
from typing import Any

import PIL.Image
from PIL import UnidentifiedImageError
from PIL.ExifTags import Base
from PIL.Image import DecompressionBombError, Transpose

from models.chat.grammars.admission import refusal
from models.chat.requests.media import BUDGET, PIXEL_BYTES
from models.speech.audio import Decoders
from models.speech.decoder import DEMUXERS, UndecodableFile, check_codec, check_tag
from registry.errors import BadRequest

SAMPLE_BYTES = 4
LOWEST_RATE = 4_000
"""Fewest samples per second of a sound. One with 1 per second would grow 48,000 times when it is resampled."""
RATES = frozenset({16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000})
"""Usual samples per second. To resample from 44,101 to 16,000, for example, torchaudio would build matrices of 6 GB."""
OTHER_RATE = 48_000
"""Samples per second of sounds that have others."""
PROFILE, PROFILES = b"iCCP", 16
"""Most colour profiles of a PNG. Each may be 1 KB that inflates to 1 MB, and Pillow reads all of them, for seconds."""
SCAN, SCANNED = b"\xff\xda", 1 << 31
"""The mark of a JPEG's scans, and the most pixels that all of them may have together. Each passes over the whole image:
400 scans of 85 megapixels have 1.4 MB and take 16 s. A usual image has 10."""
TILES = 1 << 16
"""Most tiles of an image. A TIFF of 3 MB may have 350,000 tiles of one pixel, which take 4 us each."""
SLOW, SLOW_PIXELS = ("dds_rgb", "fits_gzip", "ppm", "ppm_plain", "qoi"), 1_000_000
"""Pillow's decoders in Python, and the most pixels for them: each takes up to 1 us, in which all other threads wait."""
LARGE_DECODERS = {"AVIF": 10, "JPEG2000": 16, "WEBP": 16}
"""Formats whose decoders take much more memory than the image: bytes per pixel."""
PLAIN_MODES, PLAIN_BYTES, OTHER_BYTES = ("1", "L", "P", "RGB"), 5, 9
"""Modes of images without alpha, and the bytes per pixel to convert these and others to RGB."""
ALLOWANCE = 2
"""The decoder of one image may take this many times the budget of its request."""
UPRIGHT = {
    2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90,
}  # fmt: skip
"""The transposition for each orientation of EXIF."""
ORIENTED = ("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp")
"""Keys of an image's `info` that may hold its orientation."""
FRAME_LEAST = 8
"""Fewest bytes of a frame. A header may claim any number of frames, and vLLM tries to read each."""
PART_LEAST = 1024
"""Fewest bytes counted for a part of a sound. A file of 25 MB may have millions of one sample, each 50 us."""
LARGEST_BLOCK = 1 << 27
"""Bytes that FFmpeg may take at once. A WAV of 100 bytes may claim a title of 2 GB, which FFmpeg would fill with 0."""
OPENCV = "opencv"
"""The only decoder of videos whose formats and frames are bounded."""
HEADER_SECONDS = 10.0
"""Longest time for a file's header. FFmpeg compares each tag with all earlier ones: 150,000 in 3 MB take 48 s."""
HEADERS = Decoders()
"""Processes that read headers first, since nothing stops FFmpeg within one."""
FRAME_COUNT = 7
"""OpenCV's CAP_PROP_FRAME_COUNT."""
TRACK_READERS = ("vllm.model_executor.models.nano_nemotron_vl",)
"""Models that read a video's file again for its sound, if the recipe's `mm_processor_kwargs` say so."""
TRACK_BYTES = 1 << 28
"""Most bytes of such a sound, which the budget of its request does not count."""
_FRAME: ContextVar[int] = ContextVar("roundhouse_frame", default=0)
"""Pixels of a frame of the video that this thread decodes."""


def patch(connector: Any, image: Any, audio: Any, video: Any, decoders: tuple[Any, ...]) -> None:
    """Bound what is decoded.

    connector, image, audio: the modules of vllm.multimodal.media. video: vllm.multimodal.video. decoders: the modules
    with its check of a frame's size that may already be imported: its own, and OpenCV's.
    """
    from aiohttp import ClientError
    from vllm.exceptions import VLLMClientError

    stock_load = connector.MediaConnector.load_from_url_async
    stock_open, stock_decode, stock_check = image.open_image, video.decode_video, decoders[0].check_frame_pixel_limit
    opencv = decoders[1].OpenCVVideoBackendMixin
    stock_capture = opencv.open_video_capture.__func__
    stock_metadata, stock_check_size = opencv.get_video_metadata, PIL.Image._decompression_bomb_check

    async def load_from_url_async(self: Any, url: str, media_io: Any, **options: Any) -> Any:
        budget = BUDGET.get()
        if budget is None:
            return await stock_load(self, url, media_io, **options)
        async with budget.turns:
            try:
                return await stock_load(self, url, media_io, **options)
            except BadRequest as error:
                raise refusal(error) from None
            except (ValueError, NotImplementedError) as error:
                raise refusal(BadRequest(str(error), param=budget.param)) from None
            except VLLMClientError as error:  # names a setting of vLLM's for the field, and quotes the file's URL
                most = f": {size >> 20} MiB at most" if (size := media_io.get_max_bytes()) else ""
                raise refusal(BadRequest(f"{error.args[0]}{most}.", param=budget.param)) from None
            except (RuntimeError, OSError, ClientError) as error:
                raise refusal(BadRequest(_unread(url, error), param=budget.param)) from None
            except asyncio.CancelledError:
                budget.cancel()
                raise

    def check_size(size: tuple[int, int], **options: Any) -> None:
        stock_check_size(size, **options)
        if (budget := BUDGET.get()) is not None:
            budget.allow(PIXEL_BYTES * size[0] * size[1])

    def open_image(file: BytesIO) -> Any:
        if (count := file.getvalue().count(PROFILE)) > PROFILES:
            raise ValueError(f"The image has {count} colour profiles: send it with one.")
        try:
            opened = stock_open(file)
        except DecompressionBombError as error:
            raise ValueError(str(error)) from None
        except UnidentifiedImageError:
            raise ValueError("The image is in no format that is read here: send PNG, JPEG, WebP or GIF.") from None
        pixels = opened.width * opened.height
        _check_work(opened, file.getvalue())
        if (budget := BUDGET.get()) is not None:
            budget.take(len(file.getvalue()))
            budget.take_images(pixels)
            budget.allow(_decoder_bytes(opened) * pixels // ALLOWANCE)
        return opened

    def check_frame_pixel_limit(width: int, height: int) -> None:
        stock_check(width, height)
        _FRAME.set(width * height)

    def open_video_capture(cls: Any, data: bytes) -> Any:
        check_header(data)
        return stock_capture(cls, data)

    def get_video_metadata(cap: Any) -> Any:
        if (budget := BUDGET.get()) is not None:  # now, since the stock function already decodes up to the end
            budget.pass_frames(_FRAME.get(), int(cap.get(FRAME_COUNT)))
        return stock_metadata(cap)

    def decode_video(backend: str, loader: Any, data: bytes, *arguments: Any, **options: Any) -> Any:
        if backend != OPENCV:
            raise ValueError(f"Videos are not read by {backend} here: leave out 'backend', for {OPENCV}.")
        return stock_decode(backend, _bounded(loader, data), data, *arguments, **options)

    PIL.Image._decompression_bomb_check = check_size  # Pillow calls it before it takes memory for the pixels
    opencv.open_video_capture = classmethod(open_video_capture)
    opencv.get_video_metadata = staticmethod(get_video_metadata)
    _bound_blocks()
    pass_context(connector.global_thread_pool)
    connector.MediaConnector.load_from_url_async = load_from_url_async
    image.open_image, audio.load_audio, video.decode_video = open_image, read_sound, decode_video
    image.normalize_image, audio.load_audio_pyav = upright, read_track
    for model in filter(None, map(sys.modules.get, TRACK_READERS)):
        model.load_audio_pyav = read_track  # type: ignore[attr-defined]
    for module in decoders:
        module.check_frame_pixel_limit = check_frame_pixel_limit


def pass_context(pool: Any) -> None:
    """Let the threads of a pool know the request of each call."""
    stock_submit = pool.submit
    pool.submit = lambda work, *arguments, **named: stock_submit(copy_context().run, work, *arguments, **named)


def _check_work(opened: PIL.Image.Image, data: bytes) -> None:
    """Raise ValueError for an image that takes much more work than its size suggests."""
    pixels, tiles = opened.width * opened.height, getattr(opened, "tile", ())
    is_jpeg = any(tile.codec_name == "jpeg" for tile in tiles)  # other files may contain the mark by chance
    if is_jpeg and (scans := data.count(SCAN)) * pixels > SCANNED:
        raise ValueError(f"The image has {scans} scans, too many for its size: send it as a baseline JPEG.")
    if len(tiles) > TILES:
        raise ValueError(f"The image is in {len(tiles)} parts: send PNG, JPEG, WebP or GIF.")
    if pixels > SLOW_PIXELS and any(tile.codec_name in SLOW for tile in tiles):
        raise ValueError(
            f"An image of this kind is read up to {SLOW_PIXELS} pixels, and has {pixels}: send PNG, JPEG, WebP or GIF."
        )


def _decoder_bytes(opened: PIL.Image.Image) -> int:
    """Return the bytes for each pixel that decoding an image and converting it to RGB takes at a time."""
    is_plain = opened.mode in PLAIN_MODES and not opened.has_transparency_data
    return max(LARGE_DECODERS.get(opened.format or "", 0), PLAIN_BYTES if is_plain else OTHER_BYTES)


def upright(image: PIL.Image.Image) -> PIL.Image.Image:
    """Return an image as its EXIF orients it.

    Pillow's `exif_transpose` copies each image, oriented or not, and writes the whole EXIF anew: 2 s for 3 MB.
    """
    image.load()
    try:
        method = UPRIGHT.get(image.getexif().get(Base.Orientation, 1))
    except Exception:  # as vLLM does: what EXIF holds says nothing about the pixels
        return image
    if method is None:
        return image
    turned = image.transpose(method)
    for name in ORIENTED:
        turned.info.pop(name, None)
    return turned


def _bound_blocks() -> None:
    """Bound what FFmpeg takes at once, in each of its copies: PyAV and OpenCV have one of their own."""
    for path in {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libavutil" in line}:
        ctypes.CDLL(path).av_max_alloc(ctypes.c_size_t(LARGEST_BLOCK))


def check_header(data: bytes) -> None:
    """Raise ValueError for a file whose header takes FFmpeg too long, or makes it crash."""
    file = os.memfd_create("roundhouse-header")
    try:
        with open(file, "wb", closefd=False) as stream:
            stream.write(data)
        if not HEADERS.reads_header(f"/proc/{os.getpid()}/fd/{file}", HEADER_SECONDS):
            raise ValueError("The file's header takes too long to read: send the file without its tags.")
    finally:
        os.close(file)


class _Frames:
    """OpenCV's reader of a video, which stops between frames when the client leaves."""

    def __init__(self, capture: Any) -> None:
        self._capture, self._budget = capture, BUDGET.get()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._capture, name)

    def grab(self) -> bool:
        if self._budget is not None:
            self._budget.require(0)
        return bool(self._capture.grab())


def _unread(url: str, error: Exception) -> str:
    kind = url.partition(":")[0].lower()
    if kind == "file":
        return "A file: URL is not read here: send the content as a data: URL."
    if kind == "data":
        return f"A file cannot be decoded ({type(error).__name__}): send it in a usual format."
    return f"A file could not be fetched from its URL ({type(error).__name__}): send it as a data: URL, or try again."


def _bounded(loader: Any, data: bytes) -> Any:
    """Return a loader that takes the memory of a video's frames from the budget before they are decoded."""

    class Bounded(loader):  # type: ignore[misc]
        @classmethod
        def compute_frames_index_to_sample(cls, source: Any, target: Any, **options: Any) -> Any:
            if source.total_frames_num > len(data) // FRAME_LEAST:
                raise ValueError(f"The video claims {source.total_frames_num} frames, more than fit into its bytes.")
            frames = super().compute_frames_index_to_sample(source=source, target=target, **options)
            if (budget := BUDGET.get()) is not None:
                budget.take(len(data))
                budget.take_images(_FRAME.get(), len(frames))
            return frames

        @classmethod
        def read_frames(cls, cap: Any, *arguments: Any, **options: Any) -> Any:
            return super().read_frames(_Frames(cap), *arguments, **options)

    return Bounded


def read_sound(path: BytesIO | Path, *, max_duration_s: float, max_decode_bytes: int, **_: Any) -> tuple[Any, int]:
    """Return the samples of a sound, between -1 and 1, the mean of its channels, and how many are a second.

    Raises ValueError for an unreadable or overlong sound, and BadRequest if it does not fit in the budget.
    """
    import numpy as np

    budget, parts, taken, rate = BUDGET.get(), list[Any](), 0, OTHER_RATE
    if isinstance(path, BytesIO):
        if budget is not None:
            budget.take(len(path.getvalue()))
        check_header(path.getvalue())
    for frame in _decoded(path):
        part, rate = frame.to_ndarray().reshape(frame.samples, -1).mean(axis=1), frame.sample_rate
        parts.append(part)
        taken += part.nbytes
        if taken > min(max_decode_bytes, max_duration_s * rate * SAMPLE_BYTES):
            raise ValueError(f"The sound is longer than {max_duration_s} seconds: send it in parts.")
        if budget is not None:
            budget.take(max(part.nbytes, PART_LEAST))
    if not parts:
        raise ValueError("The file holds no sound.")
    return np.concatenate(parts), rate


def read_track(path: BytesIO | Path, *, max_duration_s: float, **_: Any) -> tuple[Any, int]:
    """Return the sound of a video that a model's preprocessor reads by itself, as `read_sound` does."""
    return read_sound(path, max_duration_s=max_duration_s, max_decode_bytes=TRACK_BYTES)


def _decoded(path: BytesIO | Path) -> Iterator[Any]:
    """Iterate over a sound's frames of 32-bit floats, at one of `RATES`. Raises ValueError for an unreadable one."""
    import av

    resampler = None
    limits = {"format_whitelist": DEMUXERS, "protocol_whitelist": "", "enable_drefs": "0"}
    try:
        with av.open(path, options=limits, metadata_errors="ignore") as container:
            for stream in container.streams.audio[:1]:
                if (context := stream.codec_context) is None:
                    raise ValueError("The file does not say how its sound is stored: send flac, mp3 or opus.")
                check_codec(context.name)
                check_tag(container.format.name, context.codec_tag, context.name)
            for frame in container.decode(audio=0) if container.streams.audio else ():
                if resampler is None:
                    if frame.sample_rate < LOWEST_RATE:
                        raise ValueError(f"The sound has fewer than {LOWEST_RATE} samples per second: send 16000.")
                    rate = frame.sample_rate if frame.sample_rate in RATES else OTHER_RATE
                    # with all channels in one plane, since PyAV crashes at the eighth plane
                    resampler = av.AudioResampler(format="flt", rate=rate)
                frame.pts = None  # ignore gaps in timestamps, which would add silence
                yield from resampler.resample(frame)
            if resampler is not None:
                yield from resampler.resample(None)
    except UndecodableFile as error:
        raise ValueError(error.args[1]) from None
    except av.FFmpegError:
        raise ValueError("The sound cannot be decoded: send wav, mp3, flac or another usual format.") from None
