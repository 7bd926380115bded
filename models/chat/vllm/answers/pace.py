"""Streams take each step's logprobs before those of the next step are read.

vLLM reads all waiting steps in one go and joins what a stream has not taken yet. Text gets cheaper by this, but each
logprob is serialised by itself: once that takes longer than the steps, each turn of the event loop reads more of them
than the one before. 12 streams of 8 answers with 20 logprobs blocked it until the engine was restarted as hanging.
"""

import asyncio
from typing import Any

TURN = 4096
"""Logprobs after which streams have their turn. They take some 10 µs each."""


def pace_logprobs(engine: Any) -> None:
    """Make `engine` pause between steps with many logprobs. Call it before its first request."""
    core = engine.engine_core
    receive = core.get_output_async
    read = 0

    async def received() -> Any:
        nonlocal read
        if read >= TURN:
            read = 0
            await asyncio.sleep(0)  # queue.get does not pause while steps wait
        outputs = await receive()
        read += sum(one.new_logprobs.logprob_token_ids.size for one in outputs.outputs if one.new_logprobs is not None)
        return outputs

    core.get_output_async = received
