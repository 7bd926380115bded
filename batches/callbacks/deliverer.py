"""Sends the outbox: claims due deliveries under the server's epoch, sends them, and stores the outcomes.

| event                                 | effect                                                           |
|---------------------------------------|------------------------------------------------------------------|
| a delivery is due                     | it is claimed and sent: `MOST` at a time, `PER_TEAM` per team    |
| it succeeded or failed                | its row is written as soon as the database accepts it, if this   |
|                                       | server's epoch is still open                                     |
| another server closed the epoch       | sending stops; that server sends the delivery again              |
| the server stops                      | it may finish within `CLOSE_SECONDS`; then it is pending again   |
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from batches.callbacks import policy
from batches.callbacks.outbox import ClaimedDelivery
from batches.callbacks.records import DELETED_WORDS, DeliveryOutcome, DeliveryState
from batches.callbacks.sender import CallbackSender, event_body
from batches.looks import look_repeatedly
from batches.store import BatchStore
from registry.errors import Unavailable

log = logging.getLogger("roundhouse.batches")
MOST, PER_TEAM = 16, 4
"""Most concurrent deliveries, in total and per team, so that slow receivers do not delay other teams."""
POLL_SECONDS = 1.0
CLOSE_SECONDS = 3.0


class CallbackDeliverer:
    """epoch: returns the epoch under which this server claims, None without one. chance: returns 0 to 1."""

    def __init__(
        self,
        store: BatchStore,
        sender: CallbackSender,
        epoch: Callable[[], int | None],
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._store, self._sender, self._epoch = store, sender, epoch
        self._clock, self._chance = clock, chance
        self._running: dict[asyncio.Task[None], tuple[str, int]] = {}
        """Running deliveries, with the team and the epoch of each."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        complaint = "callbacks wait: their table cannot be read or written"
        work = look_repeatedly(self.look, self._changed, POLL_SECONDS, complaint)
        self._task = asyncio.create_task(work, name="callbacks")

    def wake(self) -> None:
        """Check the outbox now: a batch ended, or a delivery is to be sent again."""
        self._changed.set()

    async def close(self) -> None:
        """Stop. Deliveries being sent become pending again when the epoch is closed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._running:
            await asyncio.wait(list(self._running), timeout=CLOSE_SECONDS)
        await self._stop(list(self._running))
        await self._sender.close()

    async def look(self) -> None:
        """Start sending due deliveries. Raises what the store raises."""
        epoch, now = self._epoch(), self._clock()
        await self._stop([task for task, (_, its_epoch) in self._running.items() if its_epoch != epoch])
        if epoch is None or not await self._store.opened():
            return
        while (free := MOST - len(self._running)) > 0:
            if not await self._store.read(lambda tables: tables.outbox.is_due(now)):
                return
            counts = Counter(team for team, _ in self._running.values())
            claimed = await self._claim(epoch, now, free, counts)
            for one in claimed:
                task = asyncio.create_task(self._deliver(one, epoch), name=one.delivery.id)
                self._running[task] = one.delivery.team, epoch
                task.add_done_callback(self._ended)
            if not claimed:
                return

    async def _claim(self, epoch: int, now: float, most: int, counts: Mapping[str, int]) -> Sequence[ClaimedDelivery]:
        return await self._store.write(lambda tables: tables.outbox.claim(epoch, now, most, PER_TEAM, counts))

    async def _deliver(self, claimed: ClaimedDelivery, epoch: int) -> None:
        delivery = claimed.delivery
        if claimed.secrets:
            body = event_body(delivery.id, delivery.event, delivery.batch, delivery.created)
            outcome = await self._sender.send(
                delivery.url, delivery.id, body, claimed.secrets, self._clock(), delivery.team
            )
        else:
            outcome = DeliveryOutcome(policy.GONE, DELETED_WORDS)
        now = self._clock()
        change = policy.decide(delivery, outcome, now, self._chance())
        while True:
            try:
                await self._store.write(lambda tables: tables.outbox.end(epoch, delivery, change, now))
                break
            except Unavailable:  # until then it counts as being sent
                await asyncio.sleep(POLL_SECONDS)
        if change.state is DeliveryState.DEAD:
            log.warning(
                "a callback could not be delivered",
                extra={"batch": delivery.batch, "delivery": delivery.id, "cause": outcome.error},
            )

    async def _stop(self, tasks: list["asyncio.Task[None]"]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        del self._running[task]
        self._changed.set()
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("the end of a callback was not written", exc_info=error)
