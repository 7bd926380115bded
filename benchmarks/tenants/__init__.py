"""Sharing: what keys, limits, the fair queue and the ledger cost, and what a team feels of another's flood.

Without a server (`layer`):
- a decision (start the next, settle the one that ended) with 10,000 requests of 100 teams and 10,000 keys waiting;
- rows of the ledger a second, each written at its beginning and again at its end, on SQLite;
- a report on ten million rows, its time and memory, in a process of its own;
- memory of keys, limits, fair queue and ledger with 10,000 keys, and its growth over a million requests.

On the chat model with real keys and limits (`sharing`):
- first tokens and tokens/s against the same server without keys, at 1, 16 and 64 clients, in pairs of rounds, beside
  what each server differs from itself; and against it, LiteLLM's proxy, without keys, in front of that server
  (`scripts/install-clients routing`);
- the same on an engine that follows a script, where first tokens are the gateway's alone (`scripted`).

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
    bench.bar("its memory", "report.mib", "<=", 50)
    bench.bar("memory of the layer with 10,000 keys", "layer.mib", "<=", 40)
    bench.bar("its growth over a million requests", "layer.growth_mib", "<=", 4)
    paced = bench.settings.pick(64, 64, 2)
    bench.bar("first tokens p50 on a scripted engine", f"scripted.c{paced}.ttft_p50_added", "<=", 0.3)
    bench.bar("first tokens p99 on a scripted engine", f"scripted.c{paced}.ttft_p99_added", "<=", 2.0)
    bench.bar("first tokens p50 against open, most clients", f"c{top}.ttft_p50_added", "<=", 0.3)
    bench.bar("first tokens p99 against open, most clients", f"c{top}.ttft_p99_added", "<=", 2.0)
    bench.bar("tokens/s against open, worst level", "worst.tokens_ratio", ">=", 0.97)
