"""`roundhouse usage`, on a data directory without a server."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from registry.storage.database import Database
from tenants.ledger.table import LedgerTable
from tenants.storage.opening import open_tables
from tests.unit.cli.conftest import Run
from tests.unit.tenants.test_ledger import DAY, done, entry


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setenv("ROUNDHOUSE_DATA_DIR", str(tmp_path))
    database = open_tables(tmp_path)
    entries = [entry(5.0, team="search"), entry(DAY + 5.0, team="search"), entry(5.0, team="speech", model="whisper")]
    LedgerTable(database, "s").write([*entries, entry()], [done(one, 1000, 10) for one in entries])
    yield database
    database.close()


def test_a_report(run: Run) -> None:
    shown = run("usage", "report", "--date", "1970-01-01").stdout
    assert [line.split()[:3] for line in shown.splitlines()[1:]] == [["search", "m", "1"], ["speech", "whisper", "1"]]
    days = run("usage", "report", "--from", "0", "--to", "172800", "--by", "day", "--team", "search").stdout
    assert "1970-01-02 00:00" in days
    found = json.loads(run("usage", "report", "--from", "0", "--to", "172800", "--by", "team", "--json").stdout)
    assert [(one["team"], one["requests"], one["input"]) for one in found["data"]] == [
        ("search", 2, 2000),
        ("speech", 1, 1000),
    ]


def test_csv(run: Run) -> None:
    text = run("usage", "report", "--date", "1970-01-01", "--by", "model", "--csv").stdout
    assert next(csv.DictReader(io.StringIO(text)))["model"] == "m"


def test_a_wrong_question(run: Run) -> None:
    done = run("usage", "report", "--by", "planet")
    assert done.exit_code == 1
    assert "team, key, model" in done.stderr


def test_reconcile(run: Run, database: Database) -> None:
    done = run("usage", "reconcile")
    assert (done.exit_code, done.stdout.strip()) == (0, "all sums agree with their rows; 1 requests are under way")
    with database.write() as connection:
        connection.execute(sa.text("UPDATE hours SET requests = requests + 1 WHERE team = 'speech'"))
    done = run("usage", "reconcile", "--json")
    assert done.exit_code == 1
    (found,) = json.loads(done.stdout.splitlines()[0])["differences"]
    assert found["names"][0] == "speech"
