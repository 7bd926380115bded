"""Durations of this node's own requests by model, for its reports."""

from typing import NamedTuple

from cachetools import LRUCache

from runtime.gateway.local.backend import NAME as LOCAL
from runtime.gateway.record import End, RequestRecord

LEARNING_RATE = 0.05
"""Weight of a new value in a running mean."""
MOST_MODELS = 256
"""Most models in a report."""
MOST_CACHED = 0.5
"""Largest cached share of a prompt for which the time to the first token counts as prefill time."""


class RequestTimes(NamedTuple):
    request: float = 0.0
    """Mean seconds from a request's start to its end. 0 before the first one has ended."""
    prefill: float = 0.0
    """Seconds to read an uncached prompt of mean length. 0 if unknown."""


class _ModelTimes:
    """Running means for one model: seconds, and prompt tokens of streamed answers."""

    __slots__ = ("prefill", "prompt", "read", "request")

    def __init__(self, seconds: float) -> None:
        self.request = seconds
        self.prompt = self.prefill = self.read = 0.0

    def learn_prefill(self, seconds: float, prompt: int, cached: int) -> None:
        """Learn from a streamed answer. The first byte of others arrives only with the last."""
        self.prompt = _mean(self.prompt, prompt)
        if cached <= MOST_CACHED * prompt:
            self.prefill, self.read = _mean(self.prefill, seconds), _mean(self.read, prompt - cached)

    @property
    def times(self) -> RequestTimes:
        return RequestTimes(self.request, self.prefill * self.prompt / self.read if self.read else 0.0)


class RequestTimer:
    """The sink from which a node learns how long its models take. Costs a few additions per request."""

    def __init__(self) -> None:
        self._models = LRUCache[str, _ModelTimes](MOST_MODELS)

    def take(self, record: RequestRecord) -> None:
        target, causes, usage = record.target, record.causes, record.usage
        if target is None or target.backend != LOCAL or record.end is not End.DONE or "prefill" not in causes:
            return
        seconds = causes["prefill"] + causes["decode"]
        times = self._models.get(target.model)
        if times is None:
            times = self._models[target.model] = _ModelTimes(seconds)
        else:
            times.request = _mean(times.request, seconds)
        if record.is_stream and usage.prompt_tokens:
            times.learn_prefill(causes["prefill"], usage.prompt_tokens, usage.cached_tokens)

    def times_of(self, model: str) -> RequestTimes:
        times = self._models.get(model)
        return RequestTimes() if times is None else times.times


def _mean(mean: float, value: float) -> float:
    return mean + LEARNING_RATE * (value - mean) if mean else value
