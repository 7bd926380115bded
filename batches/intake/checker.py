"""Runs the processes that parse what clients sent, two at a time. For use on one event loop.

Teams take turns, because checking a hundred large files of one team takes minutes.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from batches.check_process import InputJob, InputPart, InputSummary, encode_job
from batches.intake.split import SplitJob, SplitSummary
from registry.base.child import Child, out_of_memory
from registry.base.turns import FairTurns
from registry.errors import EngineFailed, RoundhouseError

AT_ONCE = 2
LINE_BYTES = 8 << 20
"""Longest answer of the process: a part has 500 lines, and JSON escapes a control character as six bytes."""
GRACE_SECONDS = 30.0
"""Seconds that a silent process gets beyond twice its job's CPU time, for busy machines."""
_ANSWERS = msgspec.json.Decoder(InputPart | InputSummary)
_SPLIT = msgspec.json.Decoder(SplitSummary)


class InputChecker:
    """Checks each input file in its own process. team: the team whose turn a file takes."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._turns = FairTurns(at_once)

    @asynccontextmanager
    async def check(self, job: InputJob, team: str = "") -> AsyncIterator[AsyncIterator[InputPart | InputSummary]]:
        """Yield the parts of a file, then its summary. The process ends with the context.

        Raises EngineFailed (check_failed) or Unavailable (out_of_memory) if the process died, OSError if it did not
        start.
        """
        async with self._turns.take(team), _process(job) as child:
            yield _answers(child, 2 * job.seconds + GRACE_SECONDS)

    async def summarise(self, job: InputJob, team: str = "") -> InputSummary:
        """Return the faults of a file, without its parts. Raises what `check` raises."""
        async with self.check(job, team) as answers:
            async for answer in answers:
                if isinstance(answer, InputSummary):
                    return answer
        raise _broken()

    async def split(self, job: SplitJob, team: str = "") -> SplitSummary:
        """Turn a body into an input file. Raises what `check` raises."""
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
    """Return the next line of a process. Raises EngineFailed."""
    try:
        async with asyncio.timeout(seconds):
            line = await child.stdout.readline()
    except (TimeoutError, ValueError) as error:
        raise _broken() from error
    except ConnectionError as error:
        raise await _died(child) from error
    if not line.endswith(b"\n"):
        raise await _died(child)
    return line


async def _died(child: Child) -> RoundhouseError:
    if await child.ran_out_of_memory():
        return out_of_memory("while it checked the input file")
    return _broken()


def _broken() -> EngineFailed:
    return EngineFailed(
        "The process that checks input files died while it read this one. Create the batch again; if that fails "
        "too, the file is the cause.",
        code="check_failed",
    )
