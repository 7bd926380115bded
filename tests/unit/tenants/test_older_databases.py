"""Databases of every earlier version are opened without losses, and work.

The rows that a version wrote are listed below by its migration, so that a changed old migration fails.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from registry.errors import Unauthorized
from registry.storage.database import Database, url_of
from registry.storage.migration import newest, revision, upgrade
from tenants.caller import Scope, ServiceClass
from tenants.key_settings import FILE
from tenants.keys.accounts import AccountTable
from tenants.keys.keyring import Keyring
from tenants.keys.table import KeyTable, teams_storing_texts
from tenants.ledger.report import UsageFilter, used
from tenants.ledger.table import LedgerTable
from tenants.limits.records import Kind, Mode
from tenants.limits.table import LimitTable
from tenants.storage.opening import MIGRATIONS, open_tables
from tenants.storage.tables import METADATA, VERSION_TABLE
from tests.postgres import create_database
from tests.unit.tenants.conftest import PEPPER

Row = dict[str, Any]
KEY = "rh-uFitsH7D_Yz3z9qiuRneUU6qDwhalwphpTsNKQarWnL21njxCXKv04QVWv"
GONE = "rh-uPFNkAJG_HRFPgnTLTRLz42S3g1QfDnhitcLhyldNMhTGCuFWe7R2NN8yl"
HASHES = (
    "562d30789f772f0804f2ad9d260056f11cdb24d4e48cbe78196a7a9a79708220",
    "9da345d833fbabb21a78cf75554b7d9c423a6f0d33f341398c19873eaad73f5b",
)
OWNER = "e8d0ef5efa2372b1385a3c9df319b0a36cce2c6e5ed67fa8d2872d44b6f66494"

_ALIKE: Row = {
    "hour": 7200, "team": "search", "key": "uFitsH7D", "endpoint": "/v1/chat/completions", "model": "m",
    "adapter": "sql@sha256:1", "service_class": "interactive", "source": "api",
}  # fmt: skip
_COUNTS: Row = {"prompt_tokens": 100, "cached_tokens": 40, "completion_tokens": 7, "audio_ms": 1500, "queue_ms": 10,
                "total_ms": 30}  # fmt: skip
_BEGUN: Row = {**_ALIKE, "request": "req-1", "attempt": 1, "server": "s", "at": 7210.5, "revision": "rev"}
_NONE: Row = dict.fromkeys(_COUNTS, 0)
_KEY: Row = {"team": "search", "name": "index", "scopes": ["infer", "usage"], "models": ["m*"], "adapters": ["*"],
             "created": 6.0}  # fmt: skip

WRITTEN: Mapping[str, Mapping[str, list[Row]]] = {
    "0001": {
        "teams": [{"id": "search", "name": "Search", "created": 5.0}],
        "api_keys": [
            {**_KEY, "id": "uFitsH7D", "hash": bytes.fromhex(HASHES[0]), "replaces": "uPFNkAJG"},
            {**_KEY, "id": "uPFNkAJG", "hash": bytes.fromhex(HASHES[1]), "revoked": 7.0},
        ],
    },
    "0002": {
        "ledger": [
            {**_BEGUN, **_COUNTS, "uid": "ended", "state": "settled", "end": "done", "status": 200, "first_ms": 20},
            {**_BEGUN, **_NONE, "uid": "killed", "state": "interrupted", "end": "interrupted"},
            {**_BEGUN, **_NONE, "uid": "running", "state": "open"},
        ],
        "hours": [{**_ALIKE, **_COUNTS, "requests": 2, "interrupted": 1}],
    },
    "0003": {
        "teams": [{"weight": 2.0}],
        "api_keys": [{"service_class": "batch", "ceiling": "critical", "timeout": 30.0}],
    },
    "0004": {
        "teams": [{"timezone": "Europe/Berlin"}],
        "limits": [
            {"id": "lim_1", "owner": "team", "subject": "search", "kind": "spend_per_month", "model": "",
             "amount": 250, "mode": "warn", "emails": ["a@example.com"], "created": 8.0},
            {"id": "lim_2", "owner": "key", "subject": "uPFNkAJG", "kind": "tokens_per_minute", "model": "m",
             "amount": 60, "mode": "enforce", "emails": [], "created": 9.0},
        ],
        "prices": [{"version": "v1", "currency": "EUR", "input": 1, "cached": 2, "output": 3, "audio_hour": 4,
                    "pairs": 5, "created": 8.0}],
        "ledger": [
            {"pairs": 1, "device_us": 2, "cold_ms": 3, "cost_micro": 4, "own_micro": 5, "price_version": "v1",
             "accepted": True},
            {"reserved_tokens": 6, "reserved_micro": 70, "reserved_audio_ms": 8},
            {"reserved_tokens": 1, "reserved_micro": 2, "reserved_audio_ms": 3},
        ],
        "hours": [{"pairs": 1, "device_us": 2, "cold_ms": 3, "cost_micro": 4, "own_micro": 5, "lost_micro": 70,
                   "accepted": 1, "rejected": 0}],
    },
    "0006": {
        "ledger": [{"asked": "auto", "router": "auto@1", "target": "m:sql", "reason": "intent", "score": 0.5}],
    },
    "0007": {
        "api_keys": [{"account": "svc_1"}],
        "service_accounts": [{"id": "svc_1", "team": "search", "name": "nightly", "role": "member", "created": 6.0}],
    },
    "0008": {"teams": [{"store_texts": True}]},
    "0009": {"prices": [{"written": 6}]},
    "0010": {},
    "0011": {"pruned": [{"id": 1, "hour": 3600}]},
    "0012": {
        "teams": [{"response_hours": 24}],
        "responses": [{"id": "resp_1", "team": "search", "server": "s", "created": 5.0, "expires": 6.0,
                       "running": False, "bytes": 4, "input": b"[]", "answer": b"{}"}],
    },
    "0013": {"response_items": [{"response": "resp_1", "position": 0, "id": "ab", "item": b"{}"}]},
    "0014": {},
    "0015": {},
}  # fmt: skip
"""New tables, and new columns of earlier rows, by the migration that added them."""


def rows(until: str) -> dict[str, list[Row]]:
    """Return all rows that a version wrote."""
    found: dict[str, list[Row]] = {}
    for snapshot, tables in WRITTEN.items():
        for table, more in tables.items() if snapshot <= until else ():
            before = found.setdefault(table, [{} for _ in more])
            for row, new in zip(before, more, strict=False):
                row.update(new)
    return found


def missing(connection: sa.Connection, written: Mapping[str, list[Row]]) -> list[tuple[str, Row]]:
    """Return the rows that are missing or different."""
    found = []
    for name, expected in written.items():
        stored = [row._asdict() for row in connection.execute(sa.select(METADATA.tables[name]))]
        for row in expected:
            if not any(all(other[column] == value for column, value in row.items()) for other in stored):
                found.append((name, row))
    return found


@pytest.fixture(scope="module", params=itertools.product(WRITTEN, ("sqlite", "postgresql")), ids="-".join)
def upgraded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Database]]:
    """Yield a version's last migration, and its database after this version opened it.

    All tests below share it: the first reads every row, and what later ones change is read by none that follows.
    """
    version, kind = request.param
    folder = tmp_path_factory.mktemp("older")
    url = create_database(request.getfixturevalue("postgres_url")) if kind == "postgresql" else None
    old = Database(url_of(url or f"sqlite:///{folder / FILE}"))
    upgrade(old, MIGRATIONS, VERSION_TABLE, version)
    with old.write() as connection:
        connection.execute(
            sa.text("UPDATE keyring SET revision = 4, pepper = :pepper"), {"pepper": bytes.fromhex(OWNER)}
        )
        for name, written in rows(version).items():
            for row in written:
                columns = [sa.column(column, METADATA.tables[name].c[column].type) for column in row]
                connection.execute(sa.insert(sa.table(name, *columns)).values(row))
    old.close()
    database = open_tables(folder, url)
    yield version, database
    database.close()


def test_every_migration_is_listed() -> None:
    names = sorted(file.name[:4] for file in (MIGRATIONS / "versions").glob("[0-9]*.py"))
    assert list(WRITTEN) == names, "add the rows that a version with the new migration writes"


def test_nothing_of_an_older_database_is_lost(upgraded: tuple[str, Database]) -> None:
    left, opened = upgraded
    assert revision(opened, VERSION_TABLE) == newest(MIGRATIONS)
    with opened.read() as connection:
        assert missing(connection, rows(left)) == []


def test_keys_of_an_older_database_work(upgraded: tuple[str, Database]) -> None:
    left, opened = upgraded
    table = KeyTable(opened, PEPPER)
    assert [(team.id, team.weight, team.timezone) for team in table.list_teams()] == [
        ("search", 1.0 if left < "0003" else 2.0, "UTC" if left < "0004" else "Europe/Berlin"),
        ("default", 1.0, "UTC"),
    ]
    assert teams_storing_texts(opened) == ([] if left < "0008" else ["search"])
    reported, snapshot, *_ = table.snapshot()
    ring = Keyring(snapshot, PEPPER, is_open=False)
    caller = ring.identify([KEY])
    assert (reported, caller.team, caller.key, caller.metered) == (4, "search", "uFitsH7D", "uPFNkAJG")
    assert (caller.scopes, caller.models, caller.adapters) == ({Scope.INFER, Scope.USAGE}, ("m*",), ("*",))
    classes = (caller.service_class, caller.ceiling, caller.timeout)
    if left < "0003":
        assert classes == (ServiceClass.INTERACTIVE, ServiceClass.INTERACTIVE, None)
    else:
        assert classes == (ServiceClass.BATCH, ServiceClass.CRITICAL, 30.0)
    with pytest.raises(Unauthorized, match="revoked"):
        ring.identify([GONE])
    if left >= "0007":
        AccountTable(opened).delete("search", "svc_1")
        assert table.list_keys("search")[0].revoked is not None


def test_limits_of_an_older_database_apply(upgraded: tuple[str, Database]) -> None:
    left, opened = upgraded
    limits = [(one.subject, one.kind, one.amount, one.mode, one.model) for one in LimitTable(opened).all()]
    assert limits == ([] if left < "0004" else [
        ("search", Kind.MONTH, 250, Mode.WARN, ""), ("uPFNkAJG", Kind.TOKENS, 60, Mode.ENFORCE, "m"),
    ])  # fmt: skip


def test_the_ledger_of_an_older_database_continues(upgraded: tuple[str, Database]) -> None:
    left, opened = upgraded
    ledger = LedgerTable(opened, "s")
    assert ledger.differences() == []
    (found,) = used(opened, UsageFilter(0, 86_400))
    expected = (0, 0, 0, 0, 0) if left < "0002" else (2, 1, 100, 40, 7)
    assert (found.requests, found.interrupted, found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (
        expected
    )
    assert (found.cost_micro, found.lost_micro, found.accepted) == ((0, 0, 0) if left < "0004" else (4, 70, 1))
    assert ledger.interrupt() == (left >= "0002")
    assert (ledger.differences(), ledger.open_rows()) == ([], 0)
