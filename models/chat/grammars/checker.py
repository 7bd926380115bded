"""Check grammars for a slot: one at a time, each once, given up when the client leaves.

Teams take turns, and each has its own bound on waiting checks, because a grammar may take seconds before it is refused
and costs its client nothing.
"""

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from cachetools import LRUCache

from models.chat import processes
from models.chat.grammars import process, sizes
from models.chat.grammars.parts import Path, dotted
from models.chat.grammars.process import CheckerProcess, Verdict
from models.chat.vllm import grammars
from registry.base.counting import count_down
from registry.base.turns import FairTurns
from registry.bounds import Bounds
from registry.errors import BadRequest, EngineFailed, QueueFull, Unavailable

Locate = Callable[[Path], tuple[str, Path]]
"""Maps a path in a constraint to the request's field with its schema, and the path in that."""
ESCAPED = 16
"""Largest ratio of a verdict's bytes to those of its constraint, reached by escaped grammars of choices."""
TEAMS = 8
"""Number of teams whose full shares of waiting grammars may wait together at most."""


class GrammarChecker:
    """Checks grammars for one engine. Its process starts at the first check, or by `begin`."""

    def __init__(self, fork: Callable[[], CheckerProcess], bounds: Bounds) -> None:
        self._fork, self._bounds = fork, bounds
        self._judge: CheckerProcess | None = None
        self._starting: asyncio.Future[None] | None = None
        """The start of the process, which goes on if its client leaves."""
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.WriteTransport | None = None
        self._given_up: asyncio.Future[bytes] | None = None
        """The pending answer to a check whose client has left."""
        self._turns = FairTurns()
        self._waiting = Counter[str]()
        """Number of checks by team, including the running one."""
        self._closed = False
        self._verdicts: LRUCache[bytes, Verdict] = LRUCache(bounds.verdict_cache, lambda verdict: 500 + _bytes(verdict))

    async def begin(self) -> None:
        async with self._turns.take(""):
            await self._started()

    async def check(self, constraint: Any, locate: Locate, team: str = "") -> None:
        """Check vLLM's `StructuredOutputsParams` and change it as vLLM's own check would.

        Raises BadRequest or QueueFull.

        Args:
            locate: finds where the client wrote a keyword of the constraint's schema.
            team: the team whose turn it takes.
        """
        kind, fields = grammars.fields_of(constraint)
        if not kind:
            return
        try:
            order = msgspec.json.encode(fields)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise BadRequest(
                f"The grammar or schema of this request cannot be used: {error}"[:500], code=process.INVALID
            ) from None
        digest = hashlib.sha256(order).digest()
        verdict = self._verdicts.get(digest)
        if verdict is None:
            sizes.check(kind, fields[kind], len(order), self._bounds)
            verdict = await self._request_verdict(digest, order, team)
        if verdict.code == process.BUSY:
            raise Unavailable(
                "There was no time to check the grammar of this request: try again.", code=process.BUSY, retry_after=1
            )
        if verdict.path is not None:
            field, path = locate(tuple(verdict.path))
            where = f" at {dotted(path)[:200]}" if path else ""
            raise BadRequest(
                f"The JSON schema of this request cannot be enforced{where}: {verdict.fault}.",
                param=dotted((field, *path)),
                code=process.INVALID,
            )
        if verdict.code:
            raise BadRequest(verdict.fault, code=verdict.code)
        grammars.settle(constraint, verdict.settled)

    async def _request_verdict(self, digest: bytes, order: bytes, team: str) -> Verdict:
        own, every, most = self._waiting[team], self._waiting.total(), self._bounds.grammars_waiting
        if own >= most or every >= TEAMS * most:
            raise QueueFull(
                f"{own if own >= most else every} grammars or schemas wait to be checked: try again.",
                code="grammar_queue_full",
                retry_after=1,
            )
        self._waiting[team] += 1
        try:
            async with self._turns.take(team):
                if (known := self._verdicts.get(digest)) is not None:
                    return known
                await self._started()
                verdict = await self._exchange(order)
        finally:
            count_down(self._waiting, team)
        if verdict.code != process.BUSY:
            with suppress(ValueError):  # larger than the cache
                self._verdicts[digest] = verdict
        return verdict

    async def _exchange(self, order: bytes) -> Verdict:
        assert self._reader is not None
        assert self._writer is not None
        if self._given_up is not None:  # arrives soon; must not be mistaken for the verdict on the next check
            await asyncio.wait([self._given_up])
        self._given_up = None
        self._writer.write(order + b"\n")
        answer = asyncio.ensure_future(self._reader.readline())
        try:
            line = await asyncio.shield(answer)
        except asyncio.CancelledError:
            self._writer.write(b"null\n")
            self._given_up = answer
            raise
        if not line:
            await self._end()
            raise EngineFailed("the process that checks grammars has ended")
        return msgspec.json.decode(line, type=Verdict)

    async def _started(self) -> None:
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        try:
            await asyncio.shield(self._starting)
        except Exception:
            self._starting = None
            raise

    async def _start(self) -> None:
        if not self._closed:
            self._judge = await processes.in_new_thread(self._fork)
        if self._closed:  # may have happened in the meantime
            await self._end()
            raise EngineFailed("the engine was closed")
        assert self._judge is not None
        judge = self._judge
        loop = asyncio.get_running_loop()
        self._reader = reader = asyncio.StreamReader(ESCAPED * self._bounds.grammar_bytes)
        self._writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(judge.orders, "wb", 0))
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(judge.verdicts, "rb", 0))

    async def _end(self) -> None:
        """End the process and wait until it is gone, which may take seconds if it has much memory."""
        judge, self._judge, self._starting = self._judge, None, None
        if self._writer is not None and not self._writer.is_closing():
            self._writer.abort()
        if judge is not None:
            judge.process.kill()
            await asyncio.to_thread(judge.process.join)

    async def close(self) -> None:
        """End the process. A running check fails with EngineFailed."""
        self._closed = True
        await self._end()


def _bytes(verdict: Verdict) -> int:
    return len(verdict.fault) + sum(len(value) for value in verdict.settled.values() if isinstance(value, str))
