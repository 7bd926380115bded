"""Measure how much work arrives at a model. Pure: the caller gives the time."""

import math

from tenants.caller import ServiceClass

SPAN = 30.0
"""Seconds over which the rates are means: what came before counts less and less."""


class ArrivalRates:
    """Work per second by class, refused requests included: they are what is lacking."""

    def __init__(self, now: float) -> None:
        self._since = self._last = now
        self._sums = [0.0] * len(ServiceClass)

    def add(self, service_class: ServiceClass, work: float, now: float) -> None:
        self._fade(now)
        self._sums[service_class] += work

    def rate(self, service_class: ServiceClass, now: float) -> float:
        """Work per second lately: since the first request if that is recent, over a second at least."""
        self._fade(now)
        span = SPAN * -math.expm1(-max(1.0, now - self._since) / SPAN)
        return self._sums[service_class] / span

    def _fade(self, now: float) -> None:
        if now <= self._last:
            return
        part = math.exp((self._last - now) / SPAN)
        self._sums = [one * part for one in self._sums]
        self._last = now
