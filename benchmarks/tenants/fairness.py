"""How one team's flood affects another team, on the chat model with real keys.

- A team of two clients during the flood of a team of 200: the team's time in the queue (`Server-Timing`), and what
  exceeds 5 ms of it in steps of the engine; and the flood's tokens/s compared with those without the other team.
- Critical requests during a flood of batch requests: the time to first token beyond 1.2 times that without the flood,
  in median steps of the engine and in long ones (the 99th percentile: a request that arrives at a random moment often
  meets these, which read prompts); and the share of batch requests while critical ones always wait, which should be
  their guaranteed minimum.
- Twenty teams with an adapter each, and three teams with weights 1:2:4, all with more requests than there are places
  (`shares`): Jain's index of the tokens that they received in 20 s, and how far a weighted team is off its share.

Physical limit: a request that arrives while every place is taken, including the spare ones, waits until the first is
free, for a part of an answer's time. The fair queue can give it that place, but not sooner.
"""

from benchmarks.harness import Bench
from benchmarks.tenants import shares, sharing


async def run(bench: Bench) -> None:
    await sharing.beside(bench)
    await shares.run(bench)
    bench.bar("tokens/s of a flood over those alone", "flood.kept", ">=", 0.95)
    bench.bar("a quiet team's queue during a flood, p99 beyond 5 ms", "quiet.queue_p99_added_steps", "<=", 1.0)
    bench.bar("Jain's index of twenty teams with an adapter each", "shares.jain", ">=", 0.95)
    bench.bar("deviation of a weighted team from its share", "shares.weights_off", "<=", 5)
    bench.bar("critical TTFT p99 beyond 1.2 times alone, long steps", "critical.p99_added_long_steps", "<=", 1.0)
    bench.bar("share of batch while critical requests always wait", "batch.part", ">=", 0.04)
