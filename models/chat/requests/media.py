"""Bound the memory for a request's images, sounds and videos, and settings that enlarge them.

A PNG of a few KB can hold millions of pixels, a recording hours of silence, and settings of the preprocessing can
enlarge each image. vLLM's readers ask a request's `MediaBudget` before they take the memory (`vllm.media.decoding`).
"""

import asyncio
import threading
from contextvars import ContextVar

from models.chat.requests.request import RESPONSES, ChatRequest
from registry.base.wording import size_words
from registry.bounds import Bounds
from registry.errors import BadRequest

PROCESSING, READING = "mm_processor_kwargs", "media_io_kwargs"
"""Settings for the model's preprocessor, and for decoding, which vLLM passes to the libraries."""
LARGEST, SMALLEST = "max_pixels", "min_pixels"
DECODING = {"image": frozenset({"image_mode", "rgba_background_color"})}
"""Settings of decoding that clients may send: those without effect on memory."""
PIXEL_BYTES = 3
PASSED = 1 << 36
"""Pixels of the frames that a request's videos have up to the last one that is read: 40 minutes of 1280 x 720 at 30
per second. All are decoded, in a minute; a file of 10 MB may have 240,000 frames."""
AT_ONCE = 4
"""Files of one request that are fetched and decoded at once, of the eight that vLLM decodes for all."""


class MediaBudget:
    """Bytes that the media of a request may still take, in any thread."""

    def __init__(self, total: int, param: str, smallest: int = 0) -> None:
        """param: the field that holds them. smallest: pixels to which each image is enlarged at least."""
        self._total = self._left = total
        self._passed = 0
        self._smallest, self._lock = smallest, threading.Lock()
        self.param, self.turns = param, asyncio.Semaphore(AT_ONCE)

    def take(self, count: int) -> None:
        """Take bytes. Raises BadRequest if there are too few, and at each later call."""
        with self._lock:
            self._left -= count
            if self._left < 0:
                raise BadRequest(
                    f"The images, sounds and videos take more than {size_words(self._total)} together when decoded. "
                    "Send fewer, smaller or shorter ones.",
                    param=self.param,
                    code="media_too_large",
                )

    def require(self, count: int) -> None:
        """Raise BadRequest if so many bytes cannot be taken."""
        if count > self._left:
            self.take(count)

    def allow(self, count: int) -> None:
        """Raise BadRequest if so many bytes would exceed the whole budget, without regard to what was taken before."""
        if count > self._total:
            self.take(count)

    def cancel(self) -> None:
        """Refuse all further bytes, because the client has left. This ends running decoders."""
        with self._lock:
            self._left = -1

    def take_images(self, pixels: int, count: int = 1) -> None:
        """Take the bytes of images, or frames, with so many pixels each. Raises BadRequest if there are too few."""
        self.take(PIXEL_BYTES * count * max(pixels, self._smallest))

    def pass_frames(self, pixels: int, count: int) -> None:
        """Count the frames of a video, with so many pixels each. Raises BadRequest if decoding takes too long."""
        with self._lock:
            self._passed += pixels * max(count, 0)
            if self._passed > PASSED:
                raise BadRequest(
                    f"The frames of the videos have more than {PASSED} pixels together. Send smaller or shorter ones.",
                    param=self.param,
                    code="media_too_large",
                )


BUDGET: ContextVar[MediaBudget | None] = ContextVar("roundhouse_media_budget", default=None)


def budget(request: ChatRequest, bounds: Bounds) -> MediaBudget:
    """Return the budget of a request. Raises BadRequest for settings that may need unbounded memory.

    For models with media only; others refuse them, and have no use for the settings.
    """
    most = bounds.media_bytes // PIXEL_BYTES
    processing = request.object(PROCESSING)
    for name, value in processing.items():
        highest = most if name in (LARGEST, SMALLEST) else 0
        if not (value is None or isinstance(value, bool) or (isinstance(value, int) and 0 <= value <= highest)):
            advice = f"up to {highest} are taken" if highest else "only the model's recipe may set it, in engine.flags"
            raise _refusal(f"{PROCESSING}.{name}", advice)
    for kind, settings in request.object(READING).items():
        known = DECODING.get(kind, frozenset())
        for name in settings if isinstance(settings, dict) else ():
            if name not in known:
                raise _refusal(f"{READING}.{kind}.{name}", "only the model's recipe may set it, in engine.flags")
    param = "input" if request.path == RESPONSES else "messages"
    return MediaBudget(bounds.media_bytes, param, int(processing.get(SMALLEST) or 0))


def _refusal(name: str, advice: str) -> BadRequest:
    field = name[:100]
    return BadRequest(f"'{field}' could need any amount of memory: {advice}.", param=field, code="unsupported_value")
