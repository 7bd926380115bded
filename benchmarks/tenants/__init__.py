"""Tenants: what keys, limits, the fair queue and the ledger cost.

Without a server (`layer`):
- a decision (start the next request, settle the one that ended) while 10,000 requests of 100 teams and 10,000 keys
  wait;
- rows of the ledger per second on SQLite, each written when its request begins and again when it ends;
- time and memory of a report on ten million rows, in its own process;
- memory of keys, limits, fair queue and ledger with 10,000 keys, and its growth over a million requests.

On the chat model with real keys and limits (`sharing`):
- first tokens and tokens/s, compared in pairs of rounds with the same server without keys, at 1, 16 and 64 clients, and
  each server compared with itself;
- the same for LiteLLM's proxy without keys in front of that server (`scripts/install-clients routing`);
- the same on the scripted engine, where first tokens only take the gateway's time (`scripted`).

Physical limit: a row is committed before its request starts, which takes a commit of the database.
"""

from benchmarks.harness import Bench
from benchmarks.tenants import layer, sharing


async def run(bench: Bench) -> None:
    await layer.run(bench)
    await sharing.by_script(bench)
    await sharing.overhead(bench)
    top = bench.settings.pick(64, 16, 2)
    bench.bar("decision p50, 10,000 waiting", "decision.adapters0.p50", "<=", 50)
    bench.bar("rows of the ledger", "ledger.rows", ">=", 5000)
    bench.bar("a report on ten million rows", "report.ms", "<=", 200)
    bench.bar("memory of that report", "report.mib", "<=", 50)
    bench.bar("memory of the layer with 10,000 keys", "layer.mib", "<=", 40)
    bench.bar("its growth over a million requests", "layer.growth_mib", "<=", 4)
    paced = bench.settings.pick(64, 64, 2)
    bench.bar("first tokens p50 on a scripted engine", f"scripted.c{paced}.ttft_p50_added", "<=", 0.3)
    bench.bar("first tokens p99 on a scripted engine", f"scripted.c{paced}.ttft_p99_added", "<=", 2.0)
    bench.bar("first tokens p50 against no keys, most clients", f"c{top}.ttft_p50_added", "<=", 0.3)
    bench.bar("first tokens p99 against no keys, most clients", f"c{top}.ttft_p99_added", "<=", 2.0)
    bench.bar("tokens/s against no keys, worst level", "worst.tokens_ratio", ">=", 0.97)
