"""The items of stored answers on both databases: found by id, counted, gone with their response."""

import pytest

from registry.errors import BadRequest, TooLarge
from registry.storage.database import Database
from tenants.keys.table import KeyTable
from tenants.responses.table import ResponseTable
from tests.unit.tenants.conftest import Clock

ITEM = b'{"id":"msg_1","type":"message"}'
ANSWER = b'{"status":"completed","output":[%s]}'


def test_items_are_found_until_their_response_goes(database: Database, table: KeyTable, clock: Clock) -> None:
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
    assert responses.get("search", "first") is None, "it made room: items count"
    assert responses.items("search", ["msg_1"], 100) == {"msg_1": ITEM}

    clock.now += 3600
    assert responses.items("search", ["msg_1"], 100) == {}
    assert responses.sweep() == 3
    responses.put("first", "search", 1, b"", ANSWER % ITEM)
    table.archive("search", True)
    assert responses.items("search", ["msg_1"], 100) == {}
