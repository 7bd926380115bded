"""Routing: decisions, their quality, and what models elsewhere cost more through the gateway.

Each part says itself what it measures: `intents`, `decisions`, `provider_cost`.

Physical limit: without vectors, a few products over some hundred hashed pieces; with them, one pass of the encoder; of
an answer from elsewhere, one more hop over loopback each way.
"""

from benchmarks.harness import Bench
from benchmarks.routing import data, decisions, intents, provider_cost


async def run(bench: Bench) -> None:
    result = data.read() if bench.settings.pick(True, False, False) else None
    if result is None:
        bench.note("150 intents: not measured; it takes a full run, and the data")
    fitted = None if result is None else intents.measure(bench, result)
    await decisions.measure(bench, result, fitted)
    await provider_cost.measure(bench)
