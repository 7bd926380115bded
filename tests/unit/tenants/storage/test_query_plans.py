"""Queries on tables that grow for years use an index that fits them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.storage.database import Database
from tenants.ledger.lookup import routed_requests
from tenants.limits.history import history_of
from tenants.limits.records import Kind, Limit
from tenants.responses.table import ResponseTable
from tenants.storage.opening import open_tables
from tests.query_plans import plans


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    database = open_tables(tmp_path)
    yield database
    database.close()


def test_a_keys_budget_reads_only_the_keys_sums(sqlite: Database) -> None:
    """With 2,000 of them, each would read the sums of all keys in its month when the server starts."""
    budget = Limit("", "key", "key00001", Kind.MONTH, 1)
    none, one = (plans(sqlite, lambda limits=limits: history_of(sqlite, limits, {}, 1e9)) for limits in ([], [budget]))
    assert [plan for plan in one if plan not in none] == [
        "SEARCH hours USING INDEX ix_hours_key (key=? AND hour>? AND hour<?)"
    ]
    assert len(one) == len(none) + 1, "a month of whole hours needs no single rows"


def test_a_start_reads_only_running_responses(sqlite: Database) -> None:
    [plan] = plans(sqlite, ResponseTable(sqlite, "server", 1).interrupt)
    assert plan == "SEARCH responses USING INDEX ix_responses_running (server=?)"


def test_a_routers_report_reads_only_the_routers_requests(sqlite: Database) -> None:
    [plan] = plans(sqlite, lambda: routed_requests(sqlite, "auto", 5.0))
    assert "SEARCH ledger USING INDEX ix_ledger_router (router>? AND router<?)" in plan
