"""`roundhouse teams apply`: teams and limits declared in a file."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run

FILE = """
teams:
  - id: search
    name: Search and ranking
    weight: 2
    limits:
      - {kind: tokens_per_minute, amount: 60000}
      - {kind: spend_per_month, amount: 12.5, mode: warn}
  - id: speech
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROUNDHOUSE_DATA_DIR", str(tmp_path / "data"))
    found = tmp_path / "teams.yaml"
    found.write_text(FILE)
    return found


def state(run: Run) -> tuple[dict[str, tuple[str, float]], set[tuple[str, str, float, str]]]:
    teams = json.loads(run("teams", "list", "--json").stdout)["data"]
    limits = json.loads(run("limits", "list", "--json").stdout)["data"]
    return (
        {team["id"]: (team["name"], team["weight"]) for team in teams},
        {(limit["subject"], limit["kind"], limit["amount"], limit["mode"]) for limit in limits},
    )


def test_apply_makes_what_is_declared_and_a_second_time_nothing(run: Run, file: Path) -> None:
    assert run("teams", "apply", str(file)).stdout.splitlines() == [
        "search: new",
        "search: tokens per minute of team 'search': none -> 60000 (enforce)",
        "search: spend per month of team 'search': none -> 12.5 (warn)",
        "speech: new",
    ]
    teams, limits = before = state(run)
    assert (teams["search"], teams["speech"]) == (("Search and ranking", 2.0), ("speech", 1.0))
    assert limits == {
        ("search", "tokens_per_minute", 60000, "enforce"), ("search", "spend_per_month", 12.5, "warn")
    }  # fmt: skip
    again = run("teams", "apply", str(file))
    assert (again.stdout, "Created" in again.stderr) == ("nothing to change\n", False)
    assert state(run) == before


def test_only_differences_are_applied_and_a_dry_run_changes_nothing(run: Run, file: Path) -> None:
    run("teams", "apply", str(file))
    run("limits", "set", "requests_at_once", "4", "--team", "search")
    run("limits", "set", "requests_at_once", "9", "--team", "speech")
    run("teams", "create", "other")
    run("teams", "archive", "speech")
    before = state(run)
    file.write_text(FILE.replace("weight: 2", "weight: 3").replace("60000", "50000"))
    reported = [
        "search: weight 2 -> 3",
        "search: tokens per minute of team 'search': 60000 (enforce) -> 50000 (enforce)",
        "search: requests at once of team 'search': 4 (enforce) -> none",
        "speech: restored",
    ]
    assert run("teams", "apply", str(file), "--dry-run").stdout.splitlines() == reported
    assert state(run) == before
    done = json.loads(run("teams", "apply", str(file), "--json").stdout)
    assert (done["made"], done["data"]) == (True, reported)
    teams, limits = state(run)
    assert teams == {**before[0], "search": ("Search and ranking", 3.0)}
    assert limits == {
        ("search", "tokens_per_minute", 50000, "enforce"), ("search", "spend_per_month", 12.5, "warn"),
        ("speech", "requests_at_once", 9, "enforce"),
    }  # fmt: skip
    assert run("teams", "apply", str(file), "--dry-run").stdout == "nothing to change\n"


@pytest.mark.parametrize(
    "text",
    [
        "", "teams: 5", "teams: [{id: search, key: rh-x}]", "keys: []\nteams: []", "teams: [{id: a}, {id: a}]",
        "teams: [{id: a}, {id: 'A b'}]", "teams: [{id: a, weight: -1}]", "teams: [{id: a, timezone: Nowhere/At}]",
        "teams: [{id: a, limits: [{kind: tokens_per_minute, amount: x}]}]", "teams: [{id: a, limits: [{kind: zz}]}]",
        "teams: [{id: a, limits: [{kind: requests_at_once, amount: 1}, {kind: requests_at_once, amount: 2}]}]",
        "teams: [{id: there, weight: 5, timezone: ''}]", "teams: [", "\xff\x00",
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_applied_whole_changes_nothing(run: Run, file: Path, text: str) -> None:
    run("teams", "create", "there")
    before = state(run)
    file.write_text(text, encoding="latin-1")
    done = run("teams", "apply", str(file))
    assert done.exit_code == 1
    assert done.stderr
    assert "Traceback" not in done.stderr
    assert state(run) == before


def test_a_missing_file_is_refused(run: Run, file: Path) -> None:
    file.unlink()
    assert run("teams", "apply", str(file)).exit_code == 1


def test_a_dry_run_works_before_any_database_exists(run: Run, file: Path, tmp_path: Path) -> None:
    result = run("teams", "apply", str(file), "--dry-run")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "search" in result.stdout
    assert not (tmp_path / "data").exists()
