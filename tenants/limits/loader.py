"""Reloads the limits of a running server after each change."""

import asyncio

from registry.storage.database import Database
from tenants.ledger.ledger import Ledger
from tenants.limits.history import history_of
from tenants.limits.limiter import Limiter
from tenants.limits.stored import QueueLimiter, StorageLimiter
from tenants.limits.table import LimitTable


class LimitLoader:
    def __init__(
        self,
        limiter: Limiter,
        ledger: Ledger,
        storage: StorageLimiter | None = None,
        queue: QueueLimiter | None = None,
    ) -> None:
        self.limiter, self._ledger = limiter, ledger
        self.storage, self.queue = storage or StorageLimiter(), queue or QueueLimiter()

    async def read(self, database: Database) -> None:
        """Load the limits from the database. They are in effect when it returns. Raises Unavailable."""
        table = LimitTable(database)
        all_limits = await asyncio.to_thread(table.all)
        self.storage.replace([limit for limit in all_limits if limit.kind.is_stored])
        self.queue.replace([limit for limit in all_limits if limit.kind.is_queued])
        limits = [limit for limit in all_limits if limit.kind.is_of_requests]
        zones = await asyncio.to_thread(table.zones)
        new = self.limiter.new(limits, zones)
        if not new:  # their meters continue and already know all that the ledger does
            self.limiter.replace(limits, zones)
            return
        with self.limiter.collecting():
            await self._ledger.flush()
            history = await asyncio.to_thread(history_of, database, new, zones, self._ledger.clock())
            self.limiter.replace(limits, zones, history.recent, history.spent)
