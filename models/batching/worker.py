"""Run batches in threads: items that wait when one ends form the next."""

import asyncio
import contextlib
import itertools
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from models.batching.plan import PADDED, BatchEntry, Item, P, RequestRing
from registry.errors import EngineFailed, QueueFull, RoundhouseError

R = TypeVar("R")

STEP_SECONDS = 0.1
"""A step is cut to about this long (by the speed so far), so that a new request soon gets its turn."""
LEAST_TOKENS = 256
MEMORY = 0.2
"""Weight of the newest step in the measured speed."""
SHARE = 256
"""Tokens from which on waiting work is shared among idle threads: small steps cost more for each of their items. Less
than that waits for a step that is about as small, and goes beside one that is long."""


@dataclass(slots=True)
class Answers(Generic[R]):
    """Results in the order of the items, and the largest batch among them."""

    results: list[R]
    batch: int


@dataclass(slots=True, eq=False)
class _Request(Generic[R]):
    future: asyncio.Future[Answers[R]]
    loop: asyncio.AbstractEventLoop
    results: list[R | None]
    remaining: int
    batch: int = 0
    broken: RoundhouseError | None = None
    each: Callable[[int, R], None] | None = None


@dataclass(slots=True)
class BatchLimits:
    """`tokens`, `items`: per step. `waiting`: requests. `workers`: steps at once.

    A step is cut to about `step_seconds`, but never below `least` tokens. `padded`: a step of n items costs n times its
    longest, as most libraries do it; else their sum. `share`: tokens from which on idle threads share what waits.
    """

    tokens: int
    items: int
    waiting: int
    step_seconds: float = STEP_SECONDS
    least: int = LEAST_TOKENS
    workers: int = 1
    padded: bool = True
    share: int = SHARE


@dataclass(slots=True)
class _Batch(Generic[P, R]):
    entries: list[BatchEntry[P]]
    """Longest item first; empty: nothing to do."""
    tokens: int
    step: Callable[[], Sequence[R]] | None = None
    """The prepared step; None: not prepared."""


@dataclass(slots=True)
class _Speed:
    """Tokens a second, as measured; 0: not known yet, so steps begin small."""

    value: float = 0.0

    def budget(self, limits: BatchLimits) -> int:
        if not self.value:
            return min(limits.tokens, 2 * limits.least)
        return max(int(min(limits.tokens, self.value * limits.step_seconds)), min(limits.least, limits.tokens))

    def learn(self, tokens: int, seconds: float, limits: BatchLimits) -> None:
        now = tokens / max(seconds, 1e-6)
        # Only full steps are measured, since a short one is mostly fixed cost.
        if tokens >= limits.least:
            self.value = now if not self.value else (1 - MEMORY) * self.value + MEMORY * now


@dataclass
class Batcher(Generic[P, R]):
    """`run` turns payloads, longest first, into results in their order, in a thread.

    `prepare` is called before, in the same thread, with the tokens of the step and whether it runs alone. `examine` is
    called there after a step that failed in the library: it raises if no step can succeed any more, as when a GPU's
    context is lost. Then the batcher is broken, and its heartbeats fail.

    `prepare_step` turns payloads into what computes their results, as `run` would. A single worker has a second thread
    that calls it for the next batch while one runs. It prepares at most one batch ahead, and only a full one, so that
    batches do not become smaller.

    | state   | submit, ping  | close               |
    |---------|---------------|---------------------|
    | new     | EngineFailed  | closed              |
    | started | works         | fails what waits, ends the threads after their step |
    | broken  | EngineFailed; what waits fails step by step | as started |
    | closed  | EngineFailed  | nothing             |
    """

    name: str
    run: Callable[[Sequence[P]], Sequence[R]]
    limits: BatchLimits
    prepare: Callable[[int, bool], None] | None = None
    examine: Callable[[], None] | None = None
    prepare_step: Callable[[Sequence[P]], Callable[[], Sequence[R]]] | None = None
    _turns: RequestRing[P] = field(init=False)
    _state: str = field(default="new", init=False)

    def __post_init__(self) -> None:
        self._turns = RequestRing(self.limits.padded)
        lock = threading.RLock()
        self._wake, self._behind = threading.Condition(lock), threading.Condition(lock)
        """Events: one wakes the threads that run steps, the other the thread that prepares steps."""
        self._keys = itertools.count()
        self._requests: dict[int, _Request[R]] = {}
        self._speed = _Speed()
        self._busy = self._running = 0  # steps that run, and their tokens
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"{self.name}-{number}", daemon=True)
            for number in range(self.limits.workers)
        ]
        self._next: _Batch[P, R] | None = None
        self._preparing = False
        self._preparer: threading.Thread | None = None
        if self.prepare_step is not None and self.limits.workers == 1:
            self._preparer = threading.Thread(target=self._prepare, name=f"{self.name}-next", daemon=True)
        self._pings: list[list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]] = [[] for _ in self._threads]
        """Pings that wait for each thread's answer."""

    def start(self) -> None:
        self._state = "started"
        for thread in self._all_threads():
            thread.start()

    def _all_threads(self) -> list[threading.Thread]:
        return [*self._threads, *([self._preparer] if self._preparer is not None else [])]

    async def submit(self, items: Sequence[Item[P]], each: Callable[[int, R], None] | None = None) -> Answers[R]:
        """Wait for all items of one request. Cancelling drops those that have not started.

        `each` is called in this loop's thread with the index and result of each item once it is there.
        """
        if not items:
            return Answers([], 0)
        loop = asyncio.get_running_loop()
        request: _Request[R] = _Request(loop.create_future(), loop, [None] * len(items), len(items), each=each)
        with self._wake:
            self._check()
            if len(self._requests) >= self.limits.waiting:
                raise QueueFull(f"{self.name} has {self.limits.waiting} requests waiting.", retry_after=1.0)
            key = next(self._keys)
            self._requests[key] = request
            self._turns.add(key, items)
            self._wake.notify()
            self._behind.notify()
        try:
            return await request.future
        finally:
            with self._wake:
                self._requests.pop(key, None)
                self._turns.drop(key)
                if self._next is not None and not self._awaited(self._next.entries):
                    self._next = None
                    self._behind.notify()

    async def stream(self, items: Sequence[Item[P]]) -> AsyncGenerator[tuple[int, R], None]:
        """Index and result of each item, as they come. Closing it drops the rest."""
        done: asyncio.Queue[tuple[int, R] | None] = asyncio.Queue()
        task = asyncio.create_task(self.submit(items, lambda index, result: done.put_nowait((index, result))))
        task.add_done_callback(lambda _: done.put_nowait(None))
        try:
            while (finished := await done.get()) is not None:
                yield finished
            task.result()
        finally:
            task.cancel()

    async def ping(self) -> None:
        """Return when each thread has answered, which it does between two steps."""
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in self._threads]
        with self._wake:
            self._check()
            for pings, future in zip(self._pings, futures, strict=True):
                pings.append((loop, future))
            self._wake.notify_all()
        await asyncio.gather(*futures)

    def close(self, seconds: float = 5.0) -> None:
        """Fail what waits, and wait for the step that runs, at most `seconds`."""
        with self._wake:
            started, self._state = self._state != "new", "closed"
            for request in self._requests.values():
                _tell(request.loop, request.future, None, EngineFailed("The model was unloaded."))
            self._next = None
            self._wake.notify_all()
            self._behind.notify_all()
        deadline = time.monotonic() + seconds
        for thread in self._all_threads() if started else ():
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _check(self) -> None:
        if self._state != "started" or not all(thread.is_alive() for thread in self._all_threads()):
            raise EngineFailed(f"{self.name} is {self._state if self._state != 'started' else 'broken'}.")

    def _work(self, number: int) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._ready() or self._pings[number] or self._state == "closed")
                pings, self._pings[number] = self._pings[number], []
                if self._state == "closed":
                    for loop, future in pings:
                        _tell(loop, future, None, EngineFailed("The model was unloaded."))
                    return
                batch = self._take()
                self._busy, self._running = self._busy + bool(batch.entries), self._running + batch.tokens
                alone = self._busy == 1 and not self._turns
                if self._worth():
                    self._wake.notify()  # an idle thread takes the rest, if there is one
                self._behind.notify()
            for loop, future in pings:
                _tell(loop, future, None)
            if batch.entries:
                self._step(batch, alone)
            del batch

    def _ready(self) -> bool:
        """Whether there is a batch to run now. One that is being prepared goes first."""
        return self._next is not None or (self._worth() and not self._preparing)

    def _take(self) -> _Batch[P, R]:
        """The batch to run now; without entries if there is none."""
        if self._next is not None:
            batch, self._next = self._next, None
            awaited = self._awaited(batch.entries)
            return batch if len(awaited) == len(batch.entries) else _Batch(awaited, self._cost(awaited))
        entries = self._turns.take(self._budget(), self.limits.items) if self._ready() else []
        return _Batch(entries, self._cost(entries))

    def _awaited(self, entries: list[BatchEntry[P]]) -> list[BatchEntry[P]]:
        """The entries whose requests were not cancelled."""
        return [picked for picked in entries if picked.key in self._requests]

    def _prepare(self) -> None:
        while True:
            with self._behind:
                self._behind.wait_for(lambda: self._is_full() or self._state == "closed")
                if self._state == "closed":
                    return
            self._prepare_next()  # apart: what it names is let go of when it ends

    def _is_full(self) -> bool:
        """Whether a step runs, and what waits fills the next one."""
        waits = self._turns.tokens >= self._budget() or self._turns.items >= self.limits.items
        return bool(self._busy and self._turns and waits and self._next is None)

    def _prepare_next(self) -> None:
        assert self.prepare_step is not None
        with self._wake:
            if not self._is_full():
                return
            entries = self._turns.take(self._budget(), self.limits.items)
            self._preparing = True
        batch: _Batch[P, R] = _Batch(entries, self._cost(entries))
        with contextlib.suppress(Exception):  # it is prepared again, and fails, where it is run
            batch.step = self.prepare_step([picked.item.payload for picked in entries])
        with self._wake:
            self._preparing = False
            if self._state != "closed" and self._awaited(entries):
                self._next = batch
            self._wake.notify()

    def _worth(self) -> bool:
        """Whether the waiting items are worth a step now."""
        return bool(self._turns) and (not self._busy or max(self._turns.tokens, self._running) >= self.limits.share)

    def _budget(self) -> int:
        """Tokens of the next step: while others idle, this thread's share of what waits."""
        budget, idle = self._speed.budget(self.limits), len(self._threads) - self._busy
        waiting = self._turns.tokens * (PADDED if self.limits.padded else 1)
        return budget if idle < 2 else min(budget, max(self.limits.share, math.ceil(waiting / idle)))

    def _cost(self, batch: Sequence[BatchEntry[P]]) -> int:
        """Tokens of a step, longest item first."""
        if self.limits.padded:
            return batch[0].item.tokens * len(batch) if batch else 0
        return sum(picked.item.tokens for picked in batch)

    def _step(self, batch: _Batch[P, R], alone: bool) -> None:
        entries, tokens = batch.entries, batch.tokens
        began = time.perf_counter()
        outcomes = self._outcomes(entries, tokens, alone, batch.step)
        seconds = time.perf_counter() - began
        done: dict[int, _Request[R]] = {}
        with self._wake:
            self._busy, self._running = self._busy - 1, self._running - tokens
            self._speed.learn(tokens, seconds, self.limits)
            for picked, outcome in zip(entries, outcomes, strict=True):
                key = picked.key
                request = self._requests.get(key)
                if request is None:
                    continue  # cancelled meanwhile
                request.remaining -= 1
                request.batch = max(request.batch, len(entries))
                if isinstance(outcome, RoundhouseError):
                    request.broken = outcome
                    self._turns.drop(key)
                else:
                    request.results[picked.item.index] = outcome
                    if request.each is not None:
                        _call(request.loop, request.each, picked.item.index, outcome)
                if not request.remaining or request.broken is not None:
                    done[key] = request
        for request in done.values():
            _tell(request.loop, request.future, Answers(request.results, request.batch), request.broken)

    def _outcomes(
        self,
        batch: Sequence[BatchEntry[P]],
        tokens: int,
        alone: bool,
        step: Callable[[], Sequence[R]] | None = None,
    ) -> Sequence[R | RoundhouseError]:
        """A result or an error per item.

        Items of a failed step run again one by one, since only one of them may be at fault, and the others may be other
        clients'.
        """
        try:
            if self.prepare is not None:
                self.prepare(tokens, alone)
            return step() if step is not None else self.run([picked.item.payload for picked in batch])
        except RoundhouseError as error:
            return [error] * len(batch)
        except Exception as error:  # any error of the library fails these items, and no others
            failed = EngineFailed(f"The engine failed: {type(error).__name__}: {error}")
            self._examine()
        if len(batch) == 1 or self._state != "started":
            return [failed] * len(batch)
        return [outcome for picked in batch for outcome in self._outcomes([picked], picked.item.tokens, alone)]

    def _examine(self) -> None:
        if self.examine is None:
            return
        try:
            self.examine()
        except Exception as error:  # any error means that no step can succeed
            with self._wake:
                if self._state == "started":
                    self._state = f"broken: {type(error).__name__}: {error}"


def _tell(
    loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Any]", result: object, error: Exception | None = None
) -> None:
    """Settle a future of another loop, unless it is cancelled or its loop closed."""

    def settle() -> None:
        if not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    _call(loop, settle)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
        loop.call_soon_threadsafe(function, *arguments)
