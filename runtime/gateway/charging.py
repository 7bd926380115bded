"""Bounds on a request's usage, which limits and budgets reserve; and prices.

A token is at least one byte of the body, and no sequence is longer than the context, so the bound holds for every
tokenizer. Text that a chat template adds, such as a preamble, or an embedding model's own prompt is not in the body and
not counted.
At the end the difference between reserved and actual usage is returned or charged.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

from models.tasks import Call, task_of
from models.tasks.kind import Demand
from registry.recipes.definition import Prices
from tenants.costs.prices import MILLION, PriceList
from tenants.limits.limiter import Amounts
from tenants.limits.records import MAX_AMOUNT

UNKNOWN_CONTEXT = 32_768
"""Assumed context length in tokens if it is unknown."""


def demand_of(calls: Sequence[Call], context: int | None, audio_seconds: float) -> Demand:
    """Sum the demand of a request's calls. audio_seconds: the longest recording allowed."""
    demands = [task_of(call).demand(call, context or UNKNOWN_CONTEXT, audio_seconds) for call in calls]
    if len(demands) == 1:
        return demands[0]
    fields: tuple[Callable[[Demand], int], ...] = (
        lambda d: d.prompt, lambda d: d.output, lambda d: d.requested_output, lambda d: d.audio_ms, lambda d: d.pairs,
    )  # fmt: skip
    return Demand(*(sum(map(value, demands)) for value in fields))


def amounts(demand: Demand, price: PriceList) -> Amounts:
    """Convert a demand to amounts to reserve, capped at the largest possible limit."""
    money = price.most(prompt=demand.prompt, output=demand.output, audio_ms=demand.audio_ms, pairs=demand.pairs)
    return Amounts(
        min(demand.prompt + demand.output, MAX_AMOUNT),
        min(demand.audio_ms, MAX_AMOUNT),
        min(money, MAX_AMOUNT),
        min(demand.requested_output, MAX_AMOUNT),
    )


@lru_cache(maxsize=1024)
def price_list(prices: Prices, factor: float = 1.0) -> PriceList:
    """Convert prices, each times `factor`, to millionths of the currency."""

    def micro(amount: float) -> int:
        return round(amount * factor * MILLION)

    cached = prices.input if prices.cached_input is None else prices.cached_input
    written = prices.input if prices.written_input is None else prices.written_input
    return PriceList(
        micro(prices.input), micro(cached), micro(prices.output), micro(prices.audio_hour), micro(prices.pairs),
        micro(written) - micro(prices.input),
    )  # fmt: skip


def batch_price_list(prices: Prices) -> PriceList:
    """Prices of batch lines, with their own version."""
    return price_list(prices, prices.batch)
