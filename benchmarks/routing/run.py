"""Routing: the time and quality of decisions, and what the gateway adds to a provider.

The modules of the parts say what they measure: `intents`, `decisions`, `provider_cost`.

Physical limit: a decision without vectors takes a few products over some hundred hashed pieces, one with vectors a pass
of the encoder; a provider's answer takes one more hop over loopback each way.
"""

from benchmarks.harness import Bench
from benchmarks.routing import data, decisions, intents, provider_cost


async def run(bench: Bench) -> None:
    result = data.read() if bench.settings.pick(True, False, False) else None
    if result is None:
        bench.note("150 intents: not measured; this needs a full run and the data")
    fitted = None if result is None else intents.measure(bench, result)
    await decisions.measure(bench, result, fitted)
    await provider_cost.measure(bench)
