"""Sharing: what keys, limits, the fair queue and the ledger cost, and what a team feels of another's flood.

Without a server (`layer`):
- a decision (start the next, settle the one that ended) with 10,000 requests of 100 teams and 10,000 keys waiting;
- rows of the ledger a second, each written at its beginning and again at its end, on SQLite;
- a report on ten million rows, its time and memory, in a process of its own;
- memory of keys, limits, fair queue and ledger with 10,000 keys, and its growth over a million requests.

On the chat model with real keys and limits (`sharing`):
- first tokens and tokens/s against the same server without keys, at 1, 16 and 64 clients, in turns, and beside
  LiteLLM's proxy, without keys, in front of that server (`scripts/install-clients routing`);
- a team of two clients beside a team of 200: its waiting in the queue (`Server-Timing`), and what the flood gets of
  its tokens/s alone;
- critical requests beside a flood of batch ones: first tokens against alone; and batch's part while critical ones
  always wait, which is to be its floor.

Twenty teams with an adapter each, and three by weights 1:2:4, all with more to ask than there is room (`shares`):
Jain's index of the tokens that they were served in 20 s, and by how much a weighted team is off its part.

Physical limit: a request that comes while every place is taken waits for the first that is free, a part of an answer's
time; the fair queue can give it that place, and no more.
"""

from benchmarks.harness import Bench
from benchmarks.tenants import layer, shares, sharing


async def run(bench: Bench) -> None:
    await layer.run(bench)
    await sharing.run(bench)
    await shares.run(bench)
    top = bench.settings.pick(64, 16, 2)
    bench.bar("decision p50, 10,000 waiting", "decision.adapters0.p50", "<=", 50)
    bench.bar("rows of the ledger", "ledger.rows", ">=", 5000)
    bench.bar("a report on ten million rows", "report.ms", "<=", 200)
    bench.bar("its memory", "report.mib", "<=", 50)
    bench.bar("memory of the layer with 10,000 keys", "layer.mib", "<=", 40)
    bench.bar("its growth over a million requests", "layer.growth_mib", "<=", 4)
    bench.bar("first tokens p50 against open, most clients", f"c{top}.ttft_p50_added", "<=", 0.3)
    bench.bar("first tokens p99 against open, most clients", f"c{top}.ttft_p99_added", "<=", 2.0)
    bench.bar("tokens/s against open, worst level", "worst.tokens_ratio", ">=", 0.97)
    bench.bar("what a flood keeps of its tokens/s alone", "flood.kept", ">=", 0.95)
    bench.bar("Jain's index of twenty teams with an adapter each", "shares.jain", ">=", 0.95)
    bench.bar("a weighted team off its part", "shares.weights_off", "<=", 5)
    bench.bar("critical first tokens p99 against alone, in steps", "critical.p99_added_steps", "<=", 1.0)
