"""Runs the processes that read what clients sent, two at a time. Asynchronous; one event loop.

Teams take turns: a team may have a hundred large files checked at once, which takes minutes.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from batches.check_process import InputJob, InputPart, InputSummary, encode_job
from batches.intake.split import SplitJob, SplitSummary
from registry.base.child import Child
from registry.base.turns import FairTurns
from registry.errors import EngineFailed

AT_ONCE = 2
LINE_BYTES = 8 << 20
"""Bytes of one answer of the process: a part has 500 lines, and JSON writes a control letter in six."""
GRACE_SECONDS = 30.0
"""Seconds beyond the job's CPU time, on a busy machine twice that, after which a silent process is ended."""
_ANSWERS = msgspec.json.Decoder(InputPart | InputSummary)
_SPLIT = msgspec.json.Decoder(SplitSummary)


class InputChecker:
    """Reads input files in a process of its own each. team: whose turn a file takes."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._turns = FairTurns(at_once)

    @asynccontextmanager
    async def check(self, job: InputJob, team: str = "") -> AsyncIterator[AsyncIterator[InputPart | InputSummary]]:
        """The parts of a file, then its summary. The process ends with the context.

        Raises EngineFailed (check_failed) for a process that died, OSError for one that did not start.
        """
        async with self._turns.take(team), _process(job) as child:
            yield _answers(child, 2 * job.seconds + GRACE_SECONDS)

    async def summarise(self, job: InputJob, team: str = "") -> InputSummary:
        """The faults of a file, without its parts. Raises what `check` does."""
        async with self.check(job, team) as answers:
            async for answer in answers:
                if isinstance(answer, InputSummary):
                    return answer
        raise _died()

    async def split(self, job: SplitJob, team: str = "") -> SplitSummary:
        """Make an input file of a body. Raises what `check` does."""
        async with self._turns.take(team), _process(job) as child:
            return _SPLIT.decode(await _line(child, 2 * job.seconds + GRACE_SECONDS))


@asynccontextmanager
async def _process(job: InputJob | SplitJob) -> AsyncIterator[Child]:
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
    child = await Child.python("batches.check_process", env={**inherited, "LANG": "C.UTF-8"}, limit=LINE_BYTES)
    try:
        child.stdin.write(encode_job(job))
        yield child
    finally:
        child.kill()
        await asyncio.shield(child.wait())


async def _answers(child: Child, seconds: float) -> AsyncIterator[InputPart | InputSummary]:
    while True:
        answer = _ANSWERS.decode(await _line(child, seconds))
        yield answer
        if isinstance(answer, InputSummary):
            return


async def _line(child: Child, seconds: float) -> bytes:
    """The next line of a process. Raises EngineFailed."""
    try:
        async with asyncio.timeout(seconds):
            line = await child.stdout.readline()
    except (TimeoutError, ConnectionError, ValueError) as error:
        raise _died() from error
    if not line.endswith(b"\n"):
        raise _died()
    return line


def _died() -> EngineFailed:
    return EngineFailed(
        "The process that checks input files was ended while it read this one. Create the batch again; if that fails "
        "too, the file is the cause.",
        code="check_failed",
    )
