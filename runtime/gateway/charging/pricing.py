"""A recipe's prices as whole numbers, and what the machine itself costs."""

from functools import lru_cache

from registry.recipes.definition import Prices
from tenants.costs.prices import MILLION, PriceList


@lru_cache(maxsize=1024)
def price_list(prices: Prices) -> PriceList:
    """In millionths of the currency."""

    def micro(amount: float) -> int:
        return round(amount * MILLION)

    cached = prices.input if prices.cached_input is None else prices.cached_input
    written = prices.input if prices.written_input is None else prices.written_input
    return PriceList(
        micro(prices.input), micro(cached), micro(prices.output), micro(prices.audio_hour), micro(prices.pairs),
        micro(written) - micro(prices.input),
    )  # fmt: skip
