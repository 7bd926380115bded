"""Items of stored answers in both databases are found by id, counted, and removed with their response."""

import time
from typing import Any

import pytest
import sqlalchemy as sa

from registry.errors import BadRequest, QueueFull, TooLarge
from registry.storage.database import PAUSE, Database
from tenants.keys import table as key_table
from tenants.keys.table import KeyTable
from tenants.responses import table as responses_table
from tenants.responses.table import ResponseTable
from tests.fakes.clocks import Clock

ITEM = b'{"id":"msg_1","type":"message"}'
ANSWER = b'{"status":"completed","output":[%s]}'


def test_items_are_found_until_their_response_is_removed(database: Database, table: KeyTable, clock: Clock) -> None:
    for team in ("search", "speech"):
        table.create_team(team)
    most = 2 * len(ANSWER % ITEM) + 2 * len(ITEM)
    responses = ResponseTable(database, "server", most, clock)
    responses.put("first", "search", 1, b"", ANSWER % ITEM)
    responses.put("other", "speech", 1, b"", ANSWER % ITEM)
    assert responses.items("search", ["msg_1", "msg_\0"], 100) == {"msg_1": ITEM}
    with pytest.raises(TooLarge):
        responses.items("search", ["msg_1"], len(ITEM) - 1)

    responses.put("second", "search", 1, b"", b"{}", running=True)
    assert responses.end("second", ANSWER % ITEM)
    with pytest.raises(BadRequest, match="2 stored items have the id 'msg_1'"):
        responses.items("search", ["msg_1"], 100)
    responses.put("third", "search", 1, b"", ANSWER % b"")
    assert responses.get("search", "first") is None, "it was removed for room, as items count"
    assert responses.items("search", ["msg_1"], 100) == {"msg_1": ITEM}

    clock.now += 3600
    assert responses.items("search", ["msg_1"], 100) == {}
    assert responses.sweep() == 3
    responses.put("first", "search", 1, b"", ANSWER % ITEM)
    table.archive("search", True)
    assert responses.items("search", ["msg_1"], 100) == {}


def test_an_item_without_an_id_hides_no_later_one(database: Database, table: KeyTable, clock: Clock) -> None:
    """Another server's answer may have such an item, for example a call of a function."""
    table.create_team("search")
    responses = ResponseTable(database, "server", 1 << 20, clock)
    responses.put("first", "search", 1, b"", ANSWER % (b'{"type":"function_call","call_id":"call_1"},' + ITEM))
    assert responses.items("search", ["msg_1"], 100) == {"msg_1": ITEM}


def test_expired_responses_are_deleted_in_several_transactions(
    database: Database, table: KeyTable, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single one would block the ledger of every other team until all are deleted."""
    monkeypatch.setattr(responses_table, "EXPIRED_AT_ONCE", 2)
    table.create_team("search")
    responses = ResponseTable(database, "server", 1 << 20, clock)
    for number in range(8):
        responses.put(f"{number}", "search", 1, b"", ANSWER % ITEM)
    clock.now += 3600
    deleted: list[int] = []
    pauses: list[float] = []

    def watch(_connection: object, cursor: Any, statement: str, *_: object) -> None:
        if statement.startswith("DELETE"):
            deleted.append(cursor.rowcount)

    def sleep(seconds: float) -> None:
        table.create_team(f"meanwhile-{len(pauses)}")
        pauses.append(seconds)

    sa.event.listen(database.engine, "after_cursor_execute", watch)
    monkeypatch.setattr(time, "sleep", sleep)
    responses.put("new", "search", 1, b"", ANSWER % ITEM)
    assert responses.sweep() == 6
    assert deleted == [2, 2, 2, 2, 0]
    assert pauses == [PAUSE] * 3, "others may write in between"
    assert responses.get("search", "new") is not None


def test_room_is_made_without_reading_all_of_a_teams_rows(
    database: Database, table: KeyTable, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses_table, "EVICTED_AT_ONCE", 2)
    table.create_team("search")
    size = len(ANSWER % ITEM) + len(ITEM)
    responses = ResponseTable(database, "server", 7 * size, clock)
    responses.put("running", "search", 1, b"", b"{}", running=True)
    for number in range(6):
        clock.now += 1
        responses.put(f"{number}", "search", 1, b"", ANSWER % ITEM)
    queries: list[str] = []

    def watch(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "responses.bytes" in statement and "ORDER BY" in statement:
            queries.append(statement)

    sa.event.listen(database.engine, "before_cursor_execute", watch)
    clock.now += 1
    assert responses.put("large", "search", 1, b"x" * (4 * size), ANSWER % ITEM)
    assert len(queries) == 3, "five were removed, two at a time"
    assert [id_ for id_ in map(str, range(6)) if responses.get("search", id_)] == ["5"]
    with pytest.raises(QueueFull, match="running responses leave no room"):
        responses.put("too large", "search", 1, b"x" * 7 * size, b"{}")
    assert responses.get("search", "large") is not None, "nothing is removed if that is not enough"


@pytest.mark.parametrize("change", ["archive", "edit"])
def test_all_responses_of_a_team_are_deleted_in_several_transactions(
    change: str, database: Database, table: KeyTable, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_table, "RESPONSES_AT_ONCE", 2)
    table.create_team("search")
    table.create_team("other")
    responses = ResponseTable(database, "server", 1 << 20, clock)
    for number in range(5):
        responses.put(f"{number}", "search", 1, b"", ANSWER % ITEM)
    responses.put("theirs", "other", 1, b"", b"{}")
    deleted: list[int] = []

    def watch(_connection: object, cursor: Any, statement: str, *_: object) -> None:
        if statement.startswith("DELETE FROM responses"):
            deleted.append(cursor.rowcount)

    sa.event.listen(database.engine, "after_cursor_execute", watch)
    with pytest.raises(BadRequest):
        table.edit_team("search", weight=-1.0, response_hours=0)
    assert deleted == [], "a change that is refused deletes nothing"
    if change == "archive":
        table.archive("search", True)
    else:
        table.edit_team("search", response_hours=0)
    assert deleted == [2, 2, 1, 0]
    assert responses.get("search", "0") is None
    assert responses.get("other", "theirs") is not None
