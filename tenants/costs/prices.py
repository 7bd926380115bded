"""List prices of a recipe, and the cost of a request at those prices."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the ledger's rows need no recipes
    from registry.recipes.definition import Prices

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class PriceList:
    """Millionths per million tokens, hour of audio, and thousand pairs."""

    input: int = 0
    cached: int = 0
    """Price of prompt tokens read from the cache."""
    output: int = 0
    audio_hour: int = 0
    pairs: int = 0
    written: int = 0
    """Surcharge on `input` for prompt tokens written into the cache. May be negative."""

    @property
    def version(self) -> str:
        """A version derived from the content: a price that is changed and restored has the same version again."""
        return _version(self)

    def cost(
        self,
        *,
        prompt: int = 0,
        cached: int = 0,
        written: int = 0,
        output: int = 0,
        audio_ms: int = 0,
        pairs: int = 0,
    ) -> int:
        """Return the cost, rounded once to a millionth. prompt: includes cached and written tokens."""
        tokens = (prompt - cached) * self.input + cached * self.cached + written * self.written + output * self.output
        # over the common denominator of a million tokens, 3.6 million ms and a thousand pairs
        whole = tokens * 18 + audio_ms * self.audio_hour * 5 + pairs * self.pairs * 18_000
        return (whole + 9 * MILLION) // (18 * MILLION)

    def most(self, *, prompt: int = 0, output: int = 0, audio_ms: int = 0, pairs: int = 0) -> int:
        """Return the highest possible cost, whatever part of the prompt is cached or written."""
        if self.cached > max(self.input, self.input + self.written):
            return self.cost(prompt=prompt, cached=prompt, output=output, audio_ms=audio_ms, pairs=pairs)
        written = prompt if self.written > 0 else 0
        return self.cost(prompt=prompt, written=written, output=output, audio_ms=audio_ms, pairs=pairs)


@lru_cache(256)
def _version(prices: PriceList) -> str:
    """Cached because each ledger row needs it three times, and a recipe has few price lists."""
    return hashlib.sha256(repr(astuple(prices)).encode()).hexdigest()[:16]


@lru_cache(maxsize=1024)
def price_list(prices: "Prices", factor: float = 1.0) -> PriceList:
    """Convert a recipe's prices, each times `factor`, to millionths of the currency."""

    def micro(amount: float) -> int:
        return round(amount * factor * MILLION)

    cached = prices.input if prices.cached_input is None else prices.cached_input
    written = prices.input if prices.written_input is None else prices.written_input
    return PriceList(
        micro(prices.input), micro(cached), micro(prices.output), micro(prices.audio_hour), micro(prices.pairs),
        micro(written) - micro(prices.input),
    )  # fmt: skip


def batch_price_list(prices: "Prices") -> PriceList:
    """Prices of batch lines, with their own version."""
    return price_list(prices, prices.batch)


class DeviceTime:
    """Divides the time of devices among running requests. Runs on one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at, self._running, self._shared = clock(), 0, 0.0
        self.busy = 0.0
        """Seconds during which at least one request ran."""

    def _now(self) -> None:
        now = self._clock()
        if self._running:
            self.busy += now - self._at
            self._shared += (now - self._at) / self._running
        self._at = now

    def begin(self) -> float:
        """Start a request. Returns a mark for `end`."""
        self._now()
        self._running += 1
        return self._shared

    def end(self, mark: float) -> float:
        """End a request. Returns the seconds of device time charged to it."""
        self._now()
        self._running -= 1
        return self._shared - mark
