"""What a team feels of another's flood, on the chat model with real keys:

- a team of two clients beside a team of 200: its waiting in the queue (`Server-Timing`), in steps of the engine what is
  over 5 ms of it, and what the flood gets of its tokens/s alone;
- critical requests beside a flood of batch ones: first tokens over 1.2 times those alone, in steps of the engine:
  median ones, and in long ones (the 99th of a hundred: who comes at any moment meets those, which read prompts); and
  batch's part while critical ones always wait, which is to be its floor.

And twenty teams with an adapter each, and three by weights 1:2:4, all with more to ask than there is room (`shares`):
Jain's index of the tokens that they were served in 20 s, and by how much a weighted team is off its part.

Physical limit: a request that comes while every place is taken, those beside the others too, waits for the first that
is free, a part of an answer's time; the fair queue can give it that place, and no more.
"""

from benchmarks.harness import Bench
from benchmarks.tenants import shares, sharing


async def run(bench: Bench) -> None:
    await sharing.beside(bench)
    await shares.run(bench)
    bench.bar("what a flood keeps of its tokens/s alone", "flood.kept", ">=", 0.95)
    bench.bar("a quiet team's waiting beside a flood, p99 over 5 ms", "quiet.queue_p99_added_steps", "<=", 1.0)
    bench.bar("Jain's index of twenty teams with an adapter each", "shares.jain", ">=", 0.95)
    bench.bar("a weighted team off its part", "shares.weights_off", "<=", 5)
    bench.bar("critical first tokens p99 over 1.2 times alone, long steps", "critical.p99_added_long_steps", "<=", 1.0)
    bench.bar("batch's part beside critical ones that always wait", "batch.part", ">=", 0.04)
