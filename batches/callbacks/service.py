"""Callbacks and webhooks of a running server, for HTTP and the console."""

import secrets
import time
from collections.abc import Callable, Sequence

from batches.callbacks.addresses import CallbackAddresses
from batches.callbacks.records import Delivery, DeliveryOutcome, Webhook
from batches.callbacks.sender import CallbackSender, event_body
from batches.callbacks.webhooks import MOST, new_seed
from batches.records import BatchRecord
from batches.store import BatchStore, BatchTables
from registry.base.wording import quoted
from registry.errors import Conflict, FinalConflict, NotFound, QueueFull

KEPT_SECONDS = 30 * 86_400
"""Time for which ended deliveries are listed."""
TESTS = 4
"""Most concurrent test events."""


class CallbackService:
    """All calls raise Unavailable and QueueFull. A team sees only its own webhooks."""

    def __init__(self, store: BatchStore, addresses: CallbackAddresses) -> None:
        self._store, self.addresses = store, addresses
        self._sender = CallbackSender(addresses)
        self.wake: Callable[[], None] = lambda: None
        """Called when a delivery is due now."""
        self._tests = 0

    async def close(self) -> None:
        await self._sender.close()

    # --- deliveries ---------------------------------------------------------------------------------------------------
    async def deliveries(self, batch: BatchRecord) -> Sequence[Delivery]:
        return await self._store.read(lambda tables: tables.outbox.of(batch.id), batch.team)

    async def redeliver(self, batch: BatchRecord) -> Sequence[Delivery]:
        """Send the events of a batch again. Raises FinalConflict if there are none that can be sent now."""
        if not await self._store.write(lambda tables: tables.outbox.redeliver(batch.id, time.time())):
            raise FinalConflict(
                f"Batch {quoted(batch.id)} has no event to send again: it has not ended, it had no callback_url and no "
                "webhook when it ended, its webhook was deleted, or the event is being sent now.",
                code="no_deliveries",
            )
        self.wake()
        return await self.deliveries(batch)

    async def forget(self, now: float) -> None:
        """Delete deliveries that ended long ago."""
        while await self._store.write(lambda tables: tables.outbox.forget(now - KEPT_SECONDS)) >= 1000:
            pass

    # --- the secret of callback_url -----------------------------------------------------------------------------------
    async def signer(self, team: str) -> Webhook:
        """Return the signer of the team's callbacks. Raises NotFound before there is one."""
        signer = await self._store.find(lambda tables: tables.webhooks.signer(team), None, team)
        if signer is None:
            raise NotFound(
                "Your team has no secret for callbacks yet: it is created with the first batch with a callback_url, or "
                "when you rotate it.",
                code="no_callback_secret",
            )
        return signer

    async def rotate_signer(self, team: str, *, keeps_previous: bool) -> Webhook:
        """Rotate the secret of the team's callbacks. The old one also signs for a day if it is kept."""
        now = time.time()

        def rotate(tables: BatchTables) -> Webhook:
            existing = tables.webhooks.signer(team)
            signer = existing and tables.webhooks.rotate(existing.id, team, now, keeps_previous=keeps_previous)
            return signer or tables.webhooks.ensure_signer(team, now)

        return await self._store.write(rotate)

    # --- webhooks -----------------------------------------------------------------------------------------------------
    async def create(self, team: str, name: str, url: str, events: Sequence[str]) -> Webhook:
        """Create a webhook. Raises BadRequest if its URL is refused, Conflict if the team has too many."""
        await self.addresses.check(url, "url", team)
        now = time.time()
        id_ = f"webhook_{secrets.token_hex(16)}"
        webhook = Webhook(id_, team, now, now, new_seed(), name, url, tuple(dict.fromkeys(events)))
        created = await self._store.write(lambda tables: tables.webhooks.create(webhook))
        if created is None:
            raise Conflict(f"Your team has {MOST} webhooks: delete one of them first.", code="too_many_webhooks")
        return created

    async def list(self, team: str, after: str | None, limit: int) -> tuple[Sequence[Webhook], bool]:
        """Return a page, and whether more follow. Raises BadRequest for an unknown `after`."""
        return await self._store.page(lambda tables, most: tables.webhooks.list(team, after, most), after, limit, team)

    async def get(self, team: str, id_: str) -> Webhook:
        """Return a webhook. Raises NotFound."""
        return _existing(await self._store.find(lambda tables: tables.webhooks.get(id_, team), None, team), id_)

    async def update(
        self, team: str, id_: str, *, name: str | None, url: str | None, events: Sequence[str] | None
    ) -> Webhook:
        """Change the fields that are not None. Raises NotFound, and BadRequest if the URL is refused."""
        await self.get(team, id_)
        if url is not None:
            await self.addresses.check(url, "url", team)
        unique = None if events is None else tuple(dict.fromkeys(events))
        changed = await self._store.write(
            lambda tables: tables.webhooks.update(id_, team, time.time(), name=name, url=url, events=unique)
        )
        return _existing(changed, id_)

    async def rotate(self, team: str, id_: str, *, keeps_previous: bool) -> Webhook:
        """Rotate the secret. The old one also signs for a day if it is kept. Raises NotFound."""
        await self.get(team, id_)
        rotated = await self._store.write(
            lambda tables: tables.webhooks.rotate(id_, team, time.time(), keeps_previous=keeps_previous)
        )
        return _existing(rotated, id_)

    async def delete(self, team: str, id_: str) -> None:
        """Delete a webhook. Raises NotFound."""
        await self.get(team, id_)
        await self._store.write(lambda tables: tables.webhooks.delete(id_, team, time.time()))

    async def test(self, team: str, id_: str, event: str) -> DeliveryOutcome:
        """Send a sample event now. Raises NotFound, QueueFull."""
        webhook = await self.get(team, id_)
        if self._tests >= TESTS:
            raise QueueFull("Several test events are being sent: try again in a moment.", retry_after=5)
        self._tests += 1
        try:
            event_id, now = f"evt_{secrets.token_hex(16)}", time.time()
            body = event_body(event_id, event, f"batch_{secrets.token_hex(16)}", now)
            return await self._sender.send(webhook.url, event_id, body, webhook.secrets(now), now, team)
        finally:
            self._tests -= 1


def _existing(webhook: Webhook | None, id_: str) -> Webhook:
    if webhook is None:
        raise NotFound(f"There is no webhook {quoted(id_)}; it may have been deleted.", code="webhook_not_found")
    return webhook
