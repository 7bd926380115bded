"""The outbox: rows are written with a batch's end, claimed by one server, and released at its end. On each database."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
import sqlalchemy as sa

from batches.callbacks.outbox import ClaimedDelivery
from batches.callbacks.policy import decide
from batches.callbacks.records import DELETED_WORDS, DeliveryOutcome, DeliveryState, Webhook
from batches.callbacks.webhooks import MOST, WebhookTable, new_seed
from batches.records import BatchFault, BatchRecord, LineEnd, LineState
from batches.runners import RunnerTable
from batches.storage.tables import RUNNERS, WEBHOOKS
from batches.store import BatchTables
from batches.work.ends import decide as decide_line
from registry.storage.database import Database
from tests.unit.batches.conftest import BATCH, FILE

CALLED = replace(BATCH, callback="https://a.example/hook")
FAILED = DeliveryOutcome(500, "It answered with status 500.")
Start = Callable[..., BatchRecord]


def hook(number: int, *events: str, team: str = "search") -> Webhook:
    url = f"https://hook-{number}.example"
    return Webhook(f"webhook_{number}", team, 1.0 + number, 1.0, new_seed(), "name", url, events)


def end_all(tables: BatchTables, epoch: int, now: float = 20.0) -> None:
    for line in tables.lines.claim(epoch, BATCH.id, "m", 10, now):
        assert tables.lines.end(epoch, line, decide_line(line, LineEnd(200), now), now)


def claim(tables: BatchTables, epoch: int, now: float = 30.0, **more: int) -> list[ClaimedDelivery]:
    return list(tables.outbox.claim(epoch, now, more.get("most", 10), more.get("per_team", 10), {}))


def test_the_last_line_writes_a_row(tables: BatchTables, start: Start) -> None:
    start("m", "m", batch=CALLED)
    epoch, _ = tables.runners.open()
    first, second = tables.lines.claim(epoch, BATCH.id, "m", 2, 12.0)
    assert tables.lines.end(epoch, first, decide_line(first, LineEnd(200), 13.0), 13.0)
    assert tables.outbox.of(BATCH.id) == []
    assert tables.lines.end(epoch, second, decide_line(second, LineEnd(200), 14.0), 14.0)
    [row] = tables.outbox.of(BATCH.id)
    assert (row.event, row.url, row.created, row.due) == ("batch.completed", "https://a.example/hook", 14.0, 14.0)
    assert (row.state, row.team) == (DeliveryState.PENDING, "search")
    assert not tables.outbox.is_due(13.0)
    assert tables.outbox.is_due(14.0)


def test_each_end_has_its_event(tables: BatchTables, start: Start) -> None:
    tables.files.create(FILE)
    tables.batches.create(replace(CALLED, id="batch_failed"))
    assert tables.batches.fail("batch_failed", 12.0, [BatchFault("x", "y")])
    assert not tables.batches.fail("batch_failed", 13.0, [])
    for id_, to in (("batch_cancelled", LineState.CANCELLED), ("batch_expired", LineState.EXPIRED)):
        start("m", batch=replace(CALLED, id=id_))
        if to is LineState.CANCELLED:
            assert tables.batches.cancel(id_, 15.0)
        assert tables.lines.drop(id_, to, 16.0) == 1
    for word in ("failed", "cancelled", "expired"):
        [row] = tables.outbox.of(f"batch_{word}")
        assert row.event == f"batch.{word}"
    start(batch=replace(CALLED, id="batch_empty"))
    assert tables.batches.cancel("batch_empty", 17.0), "without lines it is cancelled at once"
    assert [row.event for row in tables.outbox.of("batch_empty")] == ["batch.cancelled"]


def test_webhooks_of_the_team_get_their_events(tables: BatchTables, start: Start) -> None:
    assert tables.webhooks.create(hook(1, "batch.completed", "batch.failed"))
    assert tables.webhooks.create(hook(2, "batch.failed"))
    assert tables.webhooks.create(hook(3, "batch.completed", team="other"))
    start("m", batch=CALLED)
    epoch, _ = tables.runners.open()
    end_all(tables, epoch)
    rows = tables.outbox.of(BATCH.id)
    assert sorted(row.url for row in rows) == ["https://a.example/hook", "https://hook-1.example"]
    assert len({row.id for row in rows}) == 2
    secrets = {one.delivery.url: one.secrets for one in claim(tables, epoch)}
    signer = tables.webhooks.signer("search")
    assert signer is not None
    assert secrets["https://a.example/hook"] == (signer.secret,)
    assert len(secrets["https://hook-1.example"]) == 1


def test_without_a_url_nothing_is_written(tables: BatchTables, start: Start) -> None:
    start("m")
    epoch, _ = tables.runners.open()
    end_all(tables, epoch)
    assert tables.outbox.of(BATCH.id) == []
    assert tables.webhooks.signer("search") is None
    anthropic = replace(CALLED, id="msgbatch_1", surface="anthropic", callback="")
    assert tables.webhooks.create(hook(1, "batch.failed"))
    tables.batches.create(anthropic)
    assert tables.batches.fail(anthropic.id, 12.0, [])
    assert tables.outbox.of(anthropic.id) == [], "Anthropic's clients have no such events"


def test_a_row_is_claimed_by_one_server_and_after_its_end_by_the_next(
    database: Database, tables: BatchTables, start: Start
) -> None:
    start("m", batch=CALLED)
    mine, _ = tables.runners.open()
    other = RunnerTable(database, "server-b")
    theirs, _ = other.open()
    end_all(tables, mine)
    assert claim(tables, theirs, now=19.0) == [], "not due yet"
    [one] = claim(tables, theirs)
    assert claim(tables, mine) == []
    with database.write() as connection:
        connection.execute(sa.update(RUNNERS).where(RUNNERS.c.epoch == theirs).values(seen=RUNNERS.c.seen - 31.0))
    assert tables.runners.close_silent() == ["server-b"]
    assert not tables.outbox.end(theirs, one.delivery, decide(one.delivery, DeliveryOutcome(200), 31.0), 31.0)
    assert claim(tables, theirs) == [], "the epoch is closed"
    [again] = claim(tables, mine)
    assert again.delivery.id == one.delivery.id
    assert tables.outbox.end(mine, again.delivery, decide(again.delivery, DeliveryOutcome(200), 32.0), 32.0)
    [row] = tables.outbox.of(BATCH.id)
    assert (row.state, row.attempts, row.status, row.ended) == (DeliveryState.DELIVERED, 1, 200, 32.0)
    tables.runners.close(mine)


def test_a_delivery_does_not_wait_for_a_clock_that_was_set_back(tables: BatchTables, start: Start) -> None:
    start("m", batch=CALLED)
    epoch, _ = tables.runners.open()
    end_all(tables, epoch)
    assert not tables.outbox.is_due(20.0 - 3600.0)
    assert tables.outbox.is_due(20.0 - 86_400.0)
    assert len(claim(tables, epoch, now=20.0 - 86_400.0)) == 1


def test_a_claim_is_bounded_in_all_and_for_each_team(tables: BatchTables, start: Start) -> None:
    epoch, _ = tables.runners.open()
    for number in range(5):
        assert tables.webhooks.create(hook(number, "batch.completed"))
    start("m")
    end_all(tables, epoch)
    assert tables.outbox.claim(epoch, 30.0, 10, 3, {"search": 3}) == []
    assert len(claim(tables, epoch, per_team=2)) == 2
    assert len(claim(tables, epoch, most=1)) == 1
    assert len(claim(tables, epoch)) == 2


def test_a_failed_delivery_waits_and_a_dead_one_can_be_sent_again(tables: BatchTables, start: Start) -> None:
    start("m", batch=CALLED)
    epoch, _ = tables.runners.open()
    end_all(tables, epoch)
    [one] = claim(tables, epoch)
    assert tables.outbox.end(epoch, one.delivery, decide(one.delivery, FAILED, 30.0), 30.0)
    assert claim(tables, epoch, now=34.9) == []
    [one] = claim(tables, epoch, now=35.0)
    assert (one.delivery.attempts, one.delivery.error) == (1, FAILED.error)
    assert tables.outbox.redeliver(BATCH.id, 36.0) == 0, "it is already being sent"
    late = 20.0 + 86_400.0
    assert tables.outbox.end(epoch, one.delivery, decide(one.delivery, FAILED, late), late)
    [dead] = tables.outbox.of(BATCH.id)
    assert (dead.state, dead.ended) == (DeliveryState.DEAD, late)
    assert tables.outbox.redeliver(BATCH.id, late + 1) == 1
    [one] = claim(tables, epoch, now=late + 1)
    assert (one.delivery.id, one.delivery.attempts, one.delivery.created) == (dead.id, 0, dead.created)
    assert tables.outbox.end(epoch, one.delivery, decide(one.delivery, DeliveryOutcome(200), late + 2), late + 2)
    assert tables.outbox.forget(late + 2) == 0
    assert tables.outbox.forget(late + 3) == 1
    assert tables.outbox.redeliver(BATCH.id, late + 4) == 0


def test_a_rotated_secret_is_valid_beside_the_new_one_for_a_while(tables: BatchTables) -> None:
    made = tables.webhooks.create(hook(1, "batch.failed"))
    assert made is not None
    kept = tables.webhooks.rotate(made.id, made.team, 100.0, keeps_previous=True)
    assert kept is not None
    assert kept.secrets(100.0 + 86_399) == (kept.secret, made.secret)
    assert kept.secrets(100.0 + 86_400) == (kept.secret,)
    alone = tables.webhooks.rotate(made.id, made.team, 101.0, keeps_previous=False)
    assert alone is not None
    assert alone.secrets(102.0) == (alone.secret,)
    assert tables.webhooks.rotate(made.id, "other", 103.0, keeps_previous=True) is None
    assert made.secret not in repr(kept)
    assert kept.secret not in repr(kept)


def test_the_database_has_no_secret(database: Database, tables: BatchTables) -> None:
    """A reader of the database, or of a backup without the pepper, cannot sign events."""
    made = tables.webhooks.create(hook(1, "batch.failed"))
    assert made is not None
    rotated = tables.webhooks.rotate(made.id, made.team, 100.0, keeps_previous=True)
    signer = tables.webhooks.ensure_signer("search", 100.0)
    assert rotated is not None
    assert rotated.previous == made.secret
    assert tables.webhooks.get(made.id, made.team) == rotated
    assert WebhookTable(database, b"another").get(made.id, made.team) != rotated
    with database.read() as connection:
        stored = str(connection.execute(sa.select(WEBHOOKS)).all())
    secrets = {made.secret, rotated.secret, signer.secret}
    assert len(secrets) == 3
    assert all(secret.startswith("whsec_") and secret not in stored for secret in secrets)


def test_deliveries_follow_a_webhooks_new_url_and_end_with_its_deletion(tables: BatchTables, start: Start) -> None:
    made = hook(1, "batch.completed")
    assert tables.webhooks.create(made)
    start("m")
    epoch, _ = tables.runners.open()
    end_all(tables, epoch)
    moved = tables.webhooks.update(made.id, made.team, 25.0, name=None, url="https://new.example", events=None)
    assert moved is not None
    assert (moved.url, moved.updated, moved.events) == ("https://new.example", 25.0, made.events)
    same = tables.webhooks.update(made.id, made.team, 26.0, name=made.name, url=None, events=None)
    assert same is not None
    assert same.updated == 25.0
    [one] = claim(tables, epoch)
    assert one.delivery.url == "https://new.example"
    assert not tables.webhooks.delete(made.id, "other", 27.0)
    assert tables.webhooks.delete(made.id, made.team, 28.0)
    [row] = tables.outbox.of(BATCH.id)
    assert (row.state, row.error, row.ended) == (DeliveryState.DEAD, DELETED_WORDS, 28.0)
    assert not tables.outbox.end(epoch, one.delivery, decide(one.delivery, DeliveryOutcome(200), 29.0), 29.0)
    assert tables.outbox.redeliver(BATCH.id, 30.0) == 0


def test_the_secret_of_callbacks_is_not_listed_as_a_webhook(tables: BatchTables, start: Start) -> None:
    start("m", batch=CALLED)
    signer = tables.webhooks.signer("search")
    assert signer == tables.webhooks.ensure_signer("search", 50.0)
    assert signer is not None
    assert tables.webhooks.list("search") == []
    assert tables.webhooks.get(signer.id, "search") is None
    assert not tables.webhooks.delete(signer.id, "search", 60.0)


@pytest.mark.parametrize("after", [None, "webhook_8"])
def test_webhooks_are_bounded_and_paged(tables: BatchTables, after: str | None) -> None:
    made = [tables.webhooks.create(hook(number, "batch.failed")) for number in range(11)]
    assert [one is not None for one in made] == [True] * 10 + [False]
    page = tables.webhooks.list("search", after, 3)
    assert page is not None
    first = 9 if after is None else 7
    assert [one.id for one in page] == [f"webhook_{first - place}" for place in range(3)]
    assert tables.webhooks.list("search", "webhook_none") is None


def test_deliveries_that_are_sent_again_go_to_their_webhooks_url_of_now(tables: BatchTables, start: Start) -> None:
    """They went to the former URL, whose receiver had moved, though its correction is why they are sent again."""
    made = hook(1, "batch.completed")
    assert tables.webhooks.create(made)
    start("m", batch=CALLED)
    epoch, _ = tables.runners.open()
    end_all(tables, epoch)
    former = {one.delivery.url for one in claim(tables, epoch)}
    for delivery in tables.outbox.of(BATCH.id):
        assert tables.outbox.end(epoch, delivery, decide(delivery, DeliveryOutcome(410, "It is gone."), 30.0), 30.0)
    assert tables.webhooks.update(made.id, made.team, 40.0, name=None, url="https://new.example", events=None)
    assert tables.outbox.redeliver(BATCH.id, 50.0) == 2
    assert {one.delivery.url for one in claim(tables, epoch, now=50.0)} == {"https://new.example", *former - {made.url}}


def test_two_creations_at_once_do_not_pass_the_limit(tables: BatchTables, database: Database) -> None:
    for number in range(MOST - 1):
        assert tables.webhooks.create(hook(number, "batch.failed"))
    both_counted = threading.Barrier(2)

    def wait_for_the_other(_1: object, _2: object, statement: str, *_: object) -> None:
        if "count(*)" in statement:
            with suppress(threading.BrokenBarrierError):  # the other waits until this one has ended
                both_counted.wait(0.5)

    sa.event.listen(database.engine, "after_cursor_execute", wait_for_the_other)
    with ThreadPoolExecutor(2) as threads:
        created = list(threads.map(tables.webhooks.create, [hook(100, "batch.failed"), hook(101, "batch.failed")]))
    assert created.count(None) == 1
