"""The task that delivers events, against a real receiver, with the test's clock."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import openai
import pytest
from openai.types.webhooks import BatchCompletedWebhookEvent

from batches.callbacks.addresses import CallbackAddresses
from batches.callbacks.deliverer import MOST, PER_TEAM, CallbackDeliverer
from batches.callbacks.records import Delivery, DeliveryOutcome, DeliveryState
from batches.callbacks.sender import CallbackSender
from batches.records import LineEnd, NewLine
from batches.store import BatchStore, BatchTables
from batches.work.ends import decide
from registry.errors import Unavailable
from registry.storage.database import Database
from tenants.ledger.ledger import Ledger
from tenants.storage.opening import open_tables
from tests.eventually import PATIENCE
from tests.unit.batches.callbacks.receiver import Receiver
from tests.unit.batches.callbacks.test_addresses import LOOPBACK
from tests.unit.batches.conftest import BATCH, FILE, KEY


@dataclass
class Rig:
    store: BatchStore
    epoch: int | None = None
    ahead: float = 0.0
    """Seconds by which the clock is ahead."""
    started: list[CallbackDeliverer] = field(default_factory=list)

    def clock(self) -> float:
        return time.time() + self.ahead

    async def end_batch(self, url: str, number: int = 1, team: str = "search") -> str:
        """Create a batch with one line, and end it."""
        id_ = f"batch_{number}"
        batch = replace(BATCH, id=id_, team=team, input_file=f"file-{team}", callback=url)

        def work(tables: BatchTables) -> None:
            if tables.files.get(batch.input_file, team) is None:
                tables.files.create(replace(FILE, id=batch.input_file, team=team))
            tables.batches.create(batch)
            tables.lines.add(id_, [NewLine(0, "a", "m", 0, 1)])
            tables.batches.start(id_, 11.0)
            assert self.epoch is not None
            now = self.clock()
            [line] = tables.lines.claim(self.epoch, id_, "m", 1, now)
            assert tables.lines.end(self.epoch, line, decide(line, LineEnd(200), now), now)

        await self.store.write(work)
        return id_

    async def of(self, batch: str) -> Delivery:
        [row] = await self.store.read(lambda tables: tables.outbox.of(batch))
        return row

    async def reach(self, batch: str, is_there: Callable[[Delivery], bool]) -> Delivery:
        async with asyncio.timeout(PATIENCE):
            while not is_there(row := await self.of(batch)):
                await asyncio.sleep(0.01)
        return row

    def deliverer(self, sender: CallbackSender) -> CallbackDeliverer:
        made = CallbackDeliverer(self.store, sender, lambda: self.epoch, self.clock, lambda: 0.0)
        self.started.append(made)
        made.start()
        return made


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    ledger = Ledger(tmp_path)
    database: Database = open_tables(tmp_path)
    await ledger.enable(database)

    async def open_database() -> None:
        raise AssertionError("it is open")

    rig = Rig(BatchStore(ledger, tmp_path, open_database, lambda: KEY))
    rig.epoch, _ = await rig.store.write(lambda tables: tables.runners.open())
    yield rig
    for deliverer in rig.started:
        await deliverer.close()
    await ledger.close()
    database.close()


async def test_a_delivery_that_fails_twice_is_unwrapped_by_the_sdk(rig: Rig) -> None:
    async with Receiver(500, 503, 200) as receiver:
        id_ = await rig.end_batch(receiver.url)
        deliverer = rig.deliverer(CallbackSender(CallbackAddresses(LOOPBACK)))
        first = await rig.reach(id_, lambda row: row.attempts == 1)
        assert (first.state, first.status) == (DeliveryState.PENDING, 500)
        assert first.error == "It answered with status 500."
        rig.ahead = 5.0
        deliverer.wake()
        await rig.reach(id_, lambda row: row.attempts == 2)
        rig.ahead = 20.0
        deliverer.wake()
        done = await rig.reach(id_, lambda row: row.state is DeliveryState.DELIVERED)
        assert (done.attempts, done.status, done.error) == (3, 200, "")
    signer = await rig.store.read(lambda tables: tables.webhooks.signer("search"))
    assert signer is not None
    client = openai.OpenAI(api_key="x", webhook_secret=signer.secret)
    events = [client.webhooks.unwrap(one.body, one.headers) for one in receiver.received]
    assert all(isinstance(event, BatchCompletedWebhookEvent) for event in events)
    assert {(event.id, event.data.id, event.object) for event in events} == {(done.id, id_, "event")}
    headers = [{name.lower(): value for name, value in one.headers.items()} for one in receiver.received]
    assert {one["webhook-id"] for one in headers} == {done.id}
    times = [int(one["webhook-timestamp"]) for one in headers]
    assert times[0] + 4 <= times[1] <= times[2] - 14
    assert len({one["webhook-signature"] for one in headers}) == 3
    assert len({one.body for one in receiver.received}) == 1
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(receiver.received[0].body + b" ", receiver.received[0].headers)


async def test_two_secrets_sign_while_one_is_rotated(rig: Rig) -> None:
    async with Receiver() as receiver:
        id_ = await rig.end_batch(receiver.url)
        old = await rig.store.write(lambda tables: tables.webhooks.ensure_signer("search", rig.clock()))
        new = await rig.store.write(
            lambda tables: tables.webhooks.rotate(old.id, "search", rig.clock(), keeps_previous=True)
        )
        rig.deliverer(CallbackSender(CallbackAddresses(LOOPBACK)))
        await rig.reach(id_, lambda row: row.state is DeliveryState.DELIVERED)
    assert new is not None
    client = openai.OpenAI(api_key="x")
    for secret in (old.secret, new.secret):
        one = receiver.received[0]
        assert client.webhooks.unwrap(one.body, one.headers, secret=secret).type == "batch.completed"


class SlowSender(CallbackSender):
    """Holds every attempt until `gate` is set."""

    def __init__(self) -> None:
        super().__init__(CallbackAddresses())
        self.gate, self.there = asyncio.Event(), list[str]()

    async def send(
        self, url: str, id_: str, body: bytes, secrets: object, now: float, team: str = ""
    ) -> DeliveryOutcome:
        self.there.append(json.loads(body)["data"]["id"])
        await self.gate.wait()
        return DeliveryOutcome(200)


async def until(is_there: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not is_there():
            await asyncio.sleep(0.01)


async def test_deliveries_at_once_are_bounded_in_all_and_for_each_team(rig: Rig) -> None:
    for number in range(PER_TEAM + 3):
        await rig.end_batch("https://a.example", number)
    for number in range(100, 100 + MOST):
        await rig.end_batch("https://a.example", number, team=f"team-{number}")
    sender = SlowSender()
    deliverer = rig.deliverer(sender)
    await until(lambda: len(sender.there) >= MOST)
    await deliverer.look()
    assert len(sender.there) == MOST
    assert sum(int(id_.removeprefix("batch_")) < 100 for id_ in sender.there) == PER_TEAM
    sender.gate.set()
    await until(lambda: len(sender.there) == PER_TEAM + 3 + MOST)


async def test_a_server_that_lost_its_epoch_writes_nothing(rig: Rig) -> None:
    """Its deliveries are stopped, and sent in the next epoch."""
    id_ = await rig.end_batch("https://a.example")
    sender = SlowSender()
    deliverer = rig.deliverer(sender)
    await until(lambda: len(sender.there) == 1)
    closed, rig.epoch = rig.epoch, None
    await rig.store.write(lambda tables: tables.runners.close(closed))
    deliverer.wake()
    assert (await rig.reach(id_, lambda row: row.state is DeliveryState.PENDING)).epoch is None
    rig.epoch, _ = await rig.store.write(lambda tables: tables.runners.open())
    await until(lambda: len(sender.there) == 2)
    sender.gate.set()
    done = await rig.reach(id_, lambda row: row.state is DeliveryState.DELIVERED)
    assert done.attempts == 1
    assert sender.there == [id_, id_]


async def test_an_outcome_that_cannot_be_written_is_written_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A row that stays `sending` would not be sent again before the next start."""
    monkeypatch.setattr("batches.callbacks.deliverer.POLL_SECONDS", 0.01)
    id_ = await rig.end_batch("https://a.example")
    sender, write, refused = SlowSender(), rig.store.write, 0

    async def fails_twice(work: Callable[[BatchTables], object]) -> object:
        nonlocal refused
        if sender.gate.is_set() and refused < 2:
            refused += 1
            raise Unavailable("The disk is full.", code="disk_full")
        return await write(work)

    monkeypatch.setattr(rig.store, "write", fails_twice)
    rig.deliverer(sender)
    await until(lambda: len(sender.there) == 1)
    sender.gate.set()
    done = await rig.reach(id_, lambda row: row.state is DeliveryState.DELIVERED)
    assert (done.attempts, refused, sender.there) == (1, 2, [id_])
    assert not caplog.records


async def test_a_stop_returns_deliveries_that_are_being_sent(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batches.callbacks.deliverer.CLOSE_SECONDS", 0.01)
    id_ = await rig.end_batch("https://a.example")
    sender = SlowSender()
    deliverer = rig.deliverer(sender)
    await until(lambda: len(sender.there) == 1)
    await deliverer.close()
    assert (await rig.of(id_)).state is DeliveryState.SENDING
    await rig.store.write(lambda tables: tables.runners.close(rig.epoch))
    assert (await rig.of(id_)).state is DeliveryState.PENDING


async def test_a_delivery_that_fails_for_a_day_is_given_up(rig: Rig) -> None:
    id_ = await rig.end_batch("https://127.0.0.1/")
    deliverer = rig.deliverer(CallbackSender(CallbackAddresses()))
    attempts, row = 0, await rig.of(id_)
    while row.state is not DeliveryState.DEAD:
        attempts += 1
        rig.ahead = max(rig.ahead, row.due - time.time())
        deliverer.wake()
        row = await rig.reach(
            id_, lambda row, attempts=attempts: row.attempts == attempts and row.state is not DeliveryState.SENDING
        )
    assert 25 < attempts < 35
    assert "127.0.0.1 is private" in row.error
    assert await rig.store.write(lambda tables: tables.outbox.redeliver(id_, rig.clock())) == 1
    deliverer.wake()
    again = await rig.reach(id_, lambda row: row.attempts == 1 and row.state is DeliveryState.PENDING)
    assert again.id == row.id
