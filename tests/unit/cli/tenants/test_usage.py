"""`roundhouse usage`, on a data directory without a server."""

import csv
import io
import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

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


def test_a_report_is_printed(run: Run) -> None:
    displayed = run("usage", "report", "--date", "1970-01-01").stdout
    assert [line.split()[:3] for line in displayed.splitlines()[1:]] == [
        ["search", "m", "1"],
        ["speech", "whisper", "1"],
    ]
    days = run("usage", "report", "--from", "0", "--to", "172800", "--by", "day", "--team", "search").stdout
    assert "1970-01-02 00:00" in days
    result = json.loads(run("usage", "report", "--from", "0", "--to", "172800", "--by", "team", "--json").stdout)
    assert [(one["team"], one["requests"], one["input"]) for one in result["data"]] == [
        ("search", 2, 2000),
        ("speech", 1, 1000),
    ]


def test_small_and_large_costs_have_no_exponent(run: Run, database: Database) -> None:
    with database.write() as connection:
        connection.execute(sa.text("UPDATE hours SET cost_micro = 12, own_micro = 12345678901"))
    displayed = run("usage", "report", "--date", "1970-01-01", "--by", "team").stdout
    assert [line.split()[-3:] for line in displayed.splitlines()[1:]] == [["0.000012", "12,345.678901", "0"]] * 2


def test_a_report_is_printed_as_csv(run: Run) -> None:
    text = run("usage", "report", "--date", "1970-01-01", "--by", "model", "--csv").stdout
    assert next(csv.DictReader(io.StringIO(text)))["model"] == "m"


def test_a_teams_day_is_a_page(run: Run) -> None:
    assert run("teams", "create", "search", "--timezone", "Pacific/Auckland").exit_code == 0
    received = ("usage", "daily", "search", "--date", "1970-01-02", "--currency", "EUR")
    result = json.loads(run(*received, "--json").stdout)
    assert (result["total"]["requests"], result["total"]["input_tokens"], result["currency"]) == (1, 1000, "EUR")
    assert (result["timezone"], result["hours"][0]["hour"]) == ("Pacific/Auckland", DAY)
    (row,) = csv.DictReader(io.StringIO(run(*received, "--csv").stdout))
    assert (row["team"], row["model"], row["output_tokens"]) == ("search", "m", "10")
    assert run(*received, "--html").stdout.startswith("<!doctype html>")


def test_the_default_day_is_yesterday_in_the_teams_time_zone(run: Run) -> None:
    run("teams", "create", "search", "--timezone", "Pacific/Auckland")
    before = yesterday("Pacific/Auckland")
    result = json.loads(run("usage", "daily", "search").stdout)["date"]
    assert result in (before, yesterday("Pacific/Auckland"))


def yesterday(zone: str) -> str:
    return (datetime.now(ZoneInfo(zone)).date() - timedelta(days=1)).isoformat()


def test_a_report_of_an_unknown_team_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text("[]")
    for received in (["report"], ["compare", str(tmp_path / "prices.yaml")]):
        mistyped = run("usage", *received, "--team", "serch")
        assert (mistyped.exit_code, "There is no team 'serch'" in mistyped.stderr) == (1, True)


def test_invalid_days_are_refused(run: Run) -> None:
    unknown = run("usage", "daily", "nobody")
    assert (unknown.exit_code, "nobody" in unknown.stderr) == (1, True)
    both = run("usage", "daily", "search", "--csv", "--html")
    assert (both.exit_code, "--html" in both.stderr) == (2, True)


def test_the_same_traffic_is_priced_at_a_provider(run: Run, tmp_path: Path) -> None:
    table = tmp_path / "prices.yaml"
    table.write_text("- {provider: p, model: big, for: [m], from: 1970-01-01, input: 2, output: 100}")
    received = ("usage", "compare", str(table), "--from", "0", "--to", "172800")
    document = json.loads(run(*received, "--team", "search", "--currency", "EUR", "--json").stdout)
    (row,) = document["data"]
    assert (document["currency"], row["own_saving_percent"]) == ("EUR", 100.0), "the fields of /v1/usage/comparison"
    assert (row["provider"], row["model"], row["theirs"], row["ours"]) == ("p", "big", 0.006, 0.0)
    assert (row["saving_percent"], row["own"]) == (100.0, 0.0)
    head, displayed = run(*received).stdout.splitlines()
    assert head.split()[:4] == ["PROVIDER", "MODEL", "THEIRS", "OURS"]
    assert displayed.split()[:3] == ["p", "big", "0.0060"]
    none = run("usage", "compare", str(tmp_path / "none.yaml"))
    assert (none.exit_code, "cannot be read" in none.stderr) == (1, True)


def test_an_unknown_grouping_is_refused(run: Run) -> None:
    done = run("usage", "report", "--by", "planet")
    assert done.exit_code == 1
    assert "team, key, model" in done.stderr


def test_reconcile_reports_sums_that_differ_from_their_rows(run: Run, database: Database) -> None:
    done = run("usage", "reconcile")
    assert (done.exit_code, done.stdout.strip()) == (0, "all sums agree with their rows; 1 requests are running")
    with database.write() as connection:
        connection.execute(sa.text("UPDATE hours SET requests = requests + 1 WHERE team = 'speech'"))
    done = run("usage", "reconcile", "--json")
    assert done.exit_code == 1
    (result,) = json.loads(done.stdout)["differences"]
    assert result["names"][0] == "speech"


def test_old_requests_are_deleted_and_reports_stay(run: Run, database: Database) -> None:
    report = ("usage", "report", "--date", "1970-01-01")
    before = run(*report).stdout
    refused = run("usage", "prune", "--keep", "30")
    assert run("usage", "prune", "--keep", "99999999").exit_code == 2, "it used to print the year 271764 BC"
    assert (refused.exit_code, "35" in refused.output) == (2, True), "monthly budgets need 35 days"
    assert run("usage", "prune").exit_code == 2
    displayed = run("usage", "prune", "--keep", "90", "--force").stdout
    assert displayed.startswith("deleted 3 requests; those since 20"), "a running one stays"
    assert run(*report).stdout == before
    reported = run("usage", "reconcile").stdout
    assert re.fullmatch(r"all sums since 20[-\d]+ \d\d:00 agree with their rows; 1 requests are running\n", reported)
    result = json.loads(run("usage", "prune", "--keep", "90", "--force", "--json").stdout)
    assert (result["object"], result["deleted"], result["kept_since"] % 3600) == ("usage.pruned", 0, 0)
    longer = json.loads(run("usage", "prune", "--keep", "900", "--force", "--json").stdout)
    assert longer["kept_since"] == result["kept_since"], "deleted requests do not come back"


def test_sums_batches_and_keys_are_deleted_on_request(run: Run, database: Database) -> None:
    assert run("keys", "create").exit_code == 0
    prune = ("usage", "prune", "--keep", "90", "--force")
    assert "at least --keep" in run(*prune, "--keep-sums", "89").stderr
    options = ("--keep-sums", "90", "--keep-batches", "90", "--keep-keys", "90")
    result = json.loads(run(*prune, *options, "--json").stdout)
    assert [result[f"deleted{what}"] for what in ("", "_sums", "_batches", "_keys")] == [3, 3, 0, 0]
    assert run("usage", "report", "--date", "1970-01-01").stdout.count("search") == 0
    assert run("usage", "reconcile").exit_code == 0
    assert "deleted 0 keys" in run(*prune, "--keep-keys", "90").stdout


def test_a_clock_far_ahead_deletes_nothing(run: Run, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """To such a clock, all requests are older than the time to keep."""
    received = ("usage", "prune", "--keep", "90")
    with database.read() as connection:
        before = connection.execute(sa.text("SELECT count(*) FROM ledger")).scalar()
    refused = run(*received)
    assert (refused.exit_code, "is of 1970-01-02 00:00" in refused.output, "--force" in refused.output) == (
        1,
        True,
        True,
    )
    with database.read() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM ledger")).scalar() == before
    reported = json.loads(run("usage", "reconcile", "--json").stdout)
    assert reported["kept_since"] == 0
    monkeypatch.setattr("time.time", lambda: 32.0 * DAY)
    assert run(*received).exit_code == 0, "a month without requests does not mean a wrong clock"
