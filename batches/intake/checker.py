"""Runs `batches.check_process`, two at a time. Asynchronous; one event loop."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from batches.check_process import InputJob, InputPart, InputSummary, encode_job
from registry.base.child import Child
from registry.errors import EngineFailed

AT_ONCE = 2
LINE_BYTES = 8 << 20
"""Of an answer of the process: a part has 500 lines, and JSON writes a control letter in six."""
GRACE_SECONDS = 30.0
"""Beyond the job's CPU time, on a busy machine twice that: then a silent process is ended."""
_ANSWERS = msgspec.json.Decoder(InputPart | InputSummary)


class InputChecker:
    """Reads input files in a process of its own each."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._free = asyncio.Semaphore(at_once)

    @asynccontextmanager
    async def check(self, job: InputJob) -> AsyncIterator[AsyncIterator[InputPart | InputSummary]]:
        """The parts of a file, then its summary. The process ends with the context.

        Raises EngineFailed (check_failed) for a process that died, OSError for one that did not start.
        """
        async with self._free:
            child = await _start()
            try:
                child.stdin.write(encode_job(job))
                yield _answers(child, 2 * job.seconds + GRACE_SECONDS)
            finally:
                child.kill()
                await asyncio.shield(child.wait())

    async def summarise(self, job: InputJob) -> InputSummary:
        """What is wrong with a file, without its parts. Raises what `check` does."""
        async with self.check(job) as answers:
            async for answer in answers:
                if isinstance(answer, InputSummary):
                    return answer
        raise _died()


async def _start() -> Child:
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
    return await Child.python("batches.check_process", env={**inherited, "LANG": "C.UTF-8"}, limit=LINE_BYTES)


async def _answers(child: Child, seconds: float) -> AsyncIterator[InputPart | InputSummary]:
    while True:
        try:
            async with asyncio.timeout(seconds):
                line = await child.stdout.readline()
        except (TimeoutError, ConnectionError, ValueError) as error:
            raise _died() from error
        if not line.endswith(b"\n"):
            raise _died()
        answer = _ANSWERS.decode(line)
        yield answer
        if isinstance(answer, InputSummary):
            return


def _died() -> EngineFailed:
    return EngineFailed(
        "The process that checks input files was ended while it read this one. Create the batch again; if that fails "
        "too, the file is the cause.",
        code="check_failed",
    )
