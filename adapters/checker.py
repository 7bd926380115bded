"""A pool of checking processes, for one event loop.

A worker runs one job at a time. If it dies or hangs, or if its caller leaves, it is killed and replaced.
"""

import asyncio
import logging
import os

import msgspec

from adapters.jobs import CheckAnswer, Job, encode_job
from adapters.types import Base, CheckedAdapter
from registry.base.child import Child, out_of_memory
from registry.errors import EngineFailed, RoundhouseError, Unavailable, Unfit

log = logging.getLogger("roundhouse.adapters")
_LINE = 1 << 20
_GRACE = 5.0
"""Seconds past the job's own limit after which a silent worker is killed."""
_START = 60.0
"""Seconds in which a new worker must be ready; its imports take one, and longer on a busy machine."""


class Checker:
    """Up to `workers` processes, started by `start` or else with the first jobs.

    | method | new                | running            | closed       |
    |--------|--------------------|--------------------|--------------|
    | start  | starts the workers | no-op              | EngineFailed |
    | check  | starts one         | waits for a worker | EngineFailed |
    | close  | closed             | ends the workers   | no-op        |
    """

    def __init__(self, workers: int = 2) -> None:
        self._free: asyncio.LifoQueue[Child | None] = asyncio.LifoQueue()
        self._all: set[Child] = set()
        self._closed = False
        for _ in range(workers):
            self._free.put_nowait(None)

    async def start(self) -> None:
        taken = [await self._free.get() for _ in range(self._free.qsize())]
        for worker in await asyncio.gather(*(self._alive(worker) for worker in taken)):
            self._free.put_nowait(worker)

    async def close(self) -> None:
        """End the workers. Running jobs fail."""
        self._closed = True
        for worker in list(self._all):
            await self._kill(worker)

    @property
    def pids(self) -> list[int]:
        """Ids of the running processes."""
        return [worker.pid for worker in self._all if worker.returncode is None]

    async def check(self, job: Job) -> CheckedAdapter:
        """Check a folder or archive, and write its normalised form.

        Raises Unfit with every fault, Unavailable (codes disk_full, out_of_memory), EngineFailed (code check_failed).
        """
        worker = await self._free.get()
        try:
            worker = await self._alive(worker)
            answer = await self._ask(worker, job)
        except BaseException:  # a cancelled caller too: the worker may be in any state
            if worker is not None:
                await asyncio.shield(self._kill(worker))
            worker = None
            raise
        finally:
            self._free.put_nowait(worker)
        return _result(answer, job.base)

    async def _ask(self, worker: Child, job: Job) -> CheckAnswer:
        worker.kills.reset()
        try:
            worker.stdin.write(encode_job(job))
            async with asyncio.timeout(job.bounds.adapter_check_seconds + _GRACE):
                await worker.stdin.drain()
                line = await worker.stdout.readline()
        except TimeoutError:
            raise EngineFailed(
                f"Checking the adapter took more than {job.bounds.adapter_check_seconds:.0f} s and was stopped.",
                code="check_failed",
            ) from None
        except (ConnectionError, ValueError) as error:
            raise await _died(worker) from error
        if not line.endswith(b"\n"):
            raise await _died(worker)
        return msgspec.json.decode(line, type=CheckAnswer)

    async def _alive(self, worker: Child | None) -> Child:
        if self._closed:
            raise EngineFailed("The server is stopping and checks no more adapters.", code="check_failed")
        if worker is not None and worker.returncode is None:
            return worker
        if worker is not None:
            self._all.discard(worker)
        inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
        worker = await Child.python(
            "adapters.check_process", limit=_LINE,
            env={**inherited, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"},
        )  # fmt: skip
        self._all.add(worker)
        try:
            async with asyncio.timeout(_START):
                ready = await worker.stdout.readline()
        except BaseException as error:
            await asyncio.shield(self._kill(worker))
            if isinstance(error, TimeoutError):
                raise EngineFailed(
                    f"The process that checks adapters did not start within {_START:.0f} s. Nothing was registered. "
                    "Try again when this machine is less busy.",
                    code="check_failed",
                ) from None
            raise
        if ready != b"ready\n":
            raise await _died(worker)
        return worker

    async def _kill(self, worker: Child) -> None:
        self._all.discard(worker)
        worker.kill()
        await worker.wait()


async def _died(worker: Child) -> RoundhouseError:
    log.error("the adapter checker died", extra={"pid": worker.pid})
    if await worker.ran_out_of_memory():
        return out_of_memory("while it checked the adapter. Nothing was registered")
    return EngineFailed(
        "The process that checks adapters was killed while it read this one. Nothing was registered, and the process "
        "is replaced. If it happens again with this adapter, its files are the cause.",
        code="check_failed",
    )


def _result(answer: CheckAnswer, base: Base) -> CheckedAdapter:
    if answer.outcome == "fit":
        return CheckedAdapter(answer.digest, answer.rank, answer.bytes, answer.notes)
    if answer.outcome == "unfit":
        count = len(answer.faults)
        raise Unfit(
            f"The adapter does not fit model '{base.id}': {answer.faults[0] if count == 1 else f'{count} faults'}",
            answer.faults,
            code="unfit_adapter",
        )
    if answer.outcome == "disk_full":
        raise Unavailable(
            f"The disk that holds the adapters is full, or cannot be written: {answer.detail}. Nothing was registered.",
            code="disk_full",
        )
    log.error("the adapter checker failed", extra={"detail": answer.detail})
    raise EngineFailed("The adapter could not be checked; the server's log says why.", code="check_failed")
