"""`roundhouse limits`, on a data directory without a server."""

import json
from pathlib import Path
from typing import Any

import pytest

from tenants.ledger.table import LedgerTable
from tenants.storage.opening import open_tables
from tests.unit.cli.conftest import Run
from tests.unit.tenants.test_ledger import DAY, done, entry


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> Path:
    monkeypatch.setenv("ROUNDHOUSE_DATA_DIR", str(tmp_path))
    assert run("teams", "create", "search").exit_code == 0
    return tmp_path


def rows(run: Run, *arguments: str) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_a_limit_is_set_changed_and_removed(run: Run) -> None:
    key = rows(run, "keys", "create", "--team", "search")["id"]
    first = rows(run, "limits", "set", "tokens-per-minute", "60000", "--team", "search")
    cap = rows(run, "limits", "set", "spend_per_month", "12.50", "--team", "search", "--mode", "warn", "--model", "m")
    rows(run, "limits", "set", "audio_seconds_per_minute", "0.5", "--key", key)
    changed = rows(run, "limits", "set", "tokens_per_minute", "30000", "--team", "search", "--mode", "shadow")
    assert changed["id"] == first["id"]
    assert {(one["subject"], one["kind"], one["amount"], one["mode"], one["model"]) for one in listed(run)} == {
        ("search", "tokens_per_minute", 30000, "shadow", None),
        ("search", "spend_per_month", 12.5, "warn", "m"),
        (key, "audio_seconds_per_minute", 0.5, "enforce", None),
    }
    assert [one["owner"] for one in listed(run, "--team", "search")] == ["team", "team"]
    assert [one["subject"] for one in listed(run, "--key", key)] == [key]
    displayed = run("limits", "list").stdout
    assert [line.split()[3:] for line in displayed.splitlines() if cap["id"] in line] == [
        ["spend_per_month", "12.5", "warn", "m"]
    ]
    assert "not an alias" in run("limits", "set", "spend_per_month", "12.50", "--team", "search", "--model", "m").stderr
    assert not run("limits", "set", "spend_per_month", "12.50", "--team", "search").stderr
    done = run("limits", "remove", cap["id"])
    assert done.stdout.strip() == f"{cap['id']}: removed (spend per month of team 'search' on 'm')"
    assert cap["id"] not in {one["id"] for one in listed(run)}


def test_limits_on_stored_data(run: Run) -> None:
    stored = rows(run, "limits", "set", "adapters_stored", "20", "--team", "search")
    assert (stored["kind"], stored["amount"]) == ("adapters_stored", 20)
    rows(run, "limits", "set", "adapter_bytes_stored", "0", "--team", "search", "--model", "m")
    key = rows(run, "keys", "create", "--team", "search")["id"]
    refused = run("limits", "set", "adapters_stored", "20", "--key", key)
    assert refused.exit_code == 2
    assert "adapters belong to teams" in refused.stderr
    refused = run("limits", "simulate", "adapters_stored", "20", "--team", "search")
    assert refused.exit_code == 1
    assert "counts stored adapters" in refused.stderr


def test_limits_on_queued_tokens_of_batches(run: Run) -> None:
    stored = rows(run, "limits", "set", "batch_tokens_queued", "0", "--team", "search", "--model", "m")
    assert (stored["kind"], stored["amount"]) == ("batch_tokens_queued", 0)
    key = rows(run, "keys", "create", "--team", "search")["id"]
    refused = run("limits", "set", "batch_tokens_queued", "20", "--key", key)
    assert refused.exit_code == 2
    assert "batches belong to teams" in refused.stderr
    refused = run("limits", "simulate", "batch_tokens_queued", "20", "--team", "search")
    assert refused.exit_code == 1
    assert "--mode shadow" in refused.stderr


def test_large_amounts_are_printed_in_full(run: Run) -> None:
    assert "1,234,567 " in run("limits", "set", "tokens_per_minute", "1234567", "--team", "search").stdout
    assert "1,234.567891 " in run("limits", "set", "spend_per_day", "1234.567891", "--team", "search").stdout
    done = run("limits", "simulate", "tokens_per_minute", "1234567", "--team", "search")
    assert done.stdout.startswith("tokens per minute of team 'search' of 1234567 would")


def listed(run: Run, *arguments: str) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = rows(run, "limits", "list", *arguments)["data"]
    return result


def test_a_limit_can_be_simulated_on_past_requests(run: Run, data_dir: Path) -> None:
    """The ledger has ten requests of 100 tokens, one a second, on the first day."""
    database = open_tables(data_dir)
    entries = [entry(float(second)) for second in range(10)]
    LedgerTable(database, "s").write([*entries, entry(5.0, team="default")], [done(one, 60, 40) for one in entries])
    database.close()
    arguments = ("limits", "simulate", "tokens_per_minute", "300", "--team", "search", "--from", "1970-01-01")
    assert rows(run, *arguments, "--to", str(DAY)) == {
        "object": "simulation", "requests": 10, "refused": 7, "first_refused": 3.0, "last_refused": 9.0,
    }  # fmt: skip
    assert run(*arguments, "--to", str(DAY)).stdout.splitlines() == [
        "tokens per minute of team 'search' of 300 would have refused 7 of 10 requests",
        "from 1970-01-01 00:00:03 to 1970-01-01 00:00:09",
    ]
    assert rows(run, *arguments, "--to", "4")["requests"] == 4
    assert rows(run, *arguments[:6])["requests"] == 0, "in the last 7 days"
    assert listed(run) == []


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (("set", "tokens_per_minute", "5"), 2, "--team or --key"),
        (("set", "tokens_per_minute", "5", "--team", "search", "--key", "Ab3dE6gH"), 2, "--team or --key"),
        (("set", "tokens_per_hour", "5", "--team", "search"), 2, "spend_per_month"),
        (("set", "tokens_per_minute", "5", "--team", "search", "--mode", "never"), 2, "enforce, warn or shadow"),
        (("set", "tokens_per_minute", "0", "--team", "search"), 2, "1 or more"),
        (("set", "requests_at_once", "1.5", "--team", "search"), 2, "not an amount"),
        (("set", "tokens_per_minute", "5", "--team", "nobody"), 1, "roundhouse teams list"),
        (("set", "tokens_per_minute", "5", "--key", "nobody00"), 1, "roundhouse keys list"),
        (("remove", "lim_0"), 1, "roundhouse limits list"),
        (("simulate", "tokens_per_minute", "5", "--team", "search", "--from", "soon"), 1, "soon"),
        (("simulate", "tokens_per_minute", "5", "--team", "serach"), 1, "roundhouse teams list"),
        (("simulate", "tokens_per_minute", "5", "--key", "nobody00"), 1, "roundhouse keys list"),
        (("simulate", "tokens_per_minute", "5", "--team", "search", "--from", "9", "--to", "9"), 2, "after --from"),
    ],
)
def test_errors_name_what_is_wrong(run: Run, arguments: tuple[str, ...], code: int, what: str) -> None:
    done = run("limits", *arguments)
    assert done.exit_code == code, done.stderr
    assert what in done.stderr
    assert listed(run) == []


@pytest.mark.parametrize(("owner", "name"), [("team", "serach"), ("key", "Ab3dE6gH")])
def test_limits_of_an_unknown_owner_are_refused(owner: str, name: str, run: Run) -> None:
    """An empty table would mean that it has no limits."""
    done = run("limits", "list", f"--{owner}", name)
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"no {owner} '{name}'" in done.stderr


def test_litellms_words_of_a_limit_get_ours(run: Run) -> None:
    for word, ours in (("rpm_limit", "requests_per_minute"), ("max-budget", "spend_per_day or spend_per_month")):
        result = run("limits", "set", word, "5", "--team", "search")
        assert result.exit_code == 2
        assert f"There is no limit {word}. Write {ours}." in " ".join(result.stderr.split())
