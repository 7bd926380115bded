"""`roundhouse teams` and `roundhouse keys`, on a data directory without a server."""

import json
from pathlib import Path
from typing import Any

import pytest

from tenants.keys import secret
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_server import FakeServer


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROUNDHOUSE_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def listed(run: Run, what: str) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(run(what, "list", "--json").stdout)["data"]
    return result


def test_only_the_key_is_on_standard_output(run: Run) -> None:
    assert run("teams", "create", "search", "--name", "Search and ranking").exit_code == 0
    done = run("keys", "create", "--team", "search", "--models", "a*", "--models", "b", "--expires", "90d")
    text = done.stdout.strip()
    assert secret.id_of(text)
    assert "Store it" in done.stderr
    assert text not in done.stderr
    (key,) = listed(run, "keys")
    assert (key["team"], key["scopes"], key["models"], key["state"]) == ("search", ["infer"], ["a*", "b"], "active")
    assert key["expires"] == pytest.approx(key["created"] + 90 * 86_400)
    displayed = run("keys", "list").stdout
    assert key["id"] in displayed
    assert text[12:30] not in displayed
    assert {team["id"]: team["active_keys"] for team in listed(run, "teams")} == {"default": 0, "search": 1}


def test_keys_are_rotated_and_revoked(run: Run) -> None:
    old = json.loads(run("keys", "create", "--scopes", "all", "--json").stdout)
    assert sorted(old["scopes"]) == ["adapters", "admin", "infer", "models", "paths", "usage"]
    new = json.loads(run("keys", "rotate", old["id"], "--grace", "7d", "--json").stdout)
    assert (new["replaces"], new["scopes"]) == (old["id"], old["scopes"])
    assert new["value"] != old["value"]
    assert run("keys", "revoke", old["id"]).stdout.strip() == f"{old['id']}: revoked"
    assert {key["id"]: key["state"] for key in listed(run, "keys")} == {old["id"]: "revoked", new["id"]: "active"}
    assert all("value" not in key for key in listed(run, "keys"))


def test_teams_are_archived_and_restored(run: Run) -> None:
    run("teams", "create", "search")
    assert run("teams", "archive", "search").stdout.strip() == "search: archived"
    done = run("keys", "create", "--team", "search")
    assert done.exit_code == 1
    assert "archived" in done.stderr
    assert run("teams", "restore", "search").stdout.strip() == "search: active"


def test_weights_texts_and_classes_are_changed(run: Run) -> None:
    assert run("teams", "create", "search", "--weight", "2").exit_code == 0
    assert run("teams", "edit", "search", "--weight", "4").stdout.strip() == "search: active"
    assert {team["id"]: team["weight"] for team in listed(run, "teams")} == {"default": 1.0, "search": 4.0}
    assert run("teams", "edit", "search", "--store-texts").exit_code == 0
    assert [team["id"] for team in listed(run, "teams") if team["store_texts"]] == ["search"]
    made = json.loads(
        run("keys", "create", "--class", "batch", "--ceiling", "critical", "--timeout", "5m", "--json").stdout
    )
    assert (made["service_class"], made["ceiling"], made["timeout"]) == ("batch", "critical", 300.0)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("keys", "create", "--team", "nobody"), 1, "There are: default"),
        (("keys", "create", "--scopes", "infer,root"), 2, "--scopes"),
        (("keys", "create", "--expires", "soon"), 2, "90d"),
        (("keys", "create", "--scopes", "all", "--models", "a"), 1, "reaches every model"),
        (("keys", "create", "--database", "mysql://u@h/d"), 2, "cannot be 'mysql'"),
        (("teams", "create", "Two Words"), 1, "a-z"),
        (("teams", "create", "default"), 1, "already"),
        (("teams", "edit", "default"), 2, "--weight"),
        (("teams", "create", "other", "--weight", "0"), 1, "0.001"),
        (("keys", "create", "--class", "urgent"), 2, "critical, interactive, batch"),
        (("keys", "create", "--class", "critical", "--ceiling", "batch"), 1, "ceiling"),
        (("keys", "create", "--timeout", "2w"), 1, "86400"),
    ],
)
def test_errors_name_what_is_wrong(run: Run, arguments: tuple[str, ...], code: int, message: str) -> None:
    done = run(*arguments)
    assert done.exit_code == code, done.stderr
    assert message in done.stderr


def test_listing_makes_no_database(run: Run, data_dir: Path) -> None:
    done = run("keys", "list")
    assert done.exit_code == 1
    assert "roundhouse keys create" in done.stderr
    assert not data_dir.exists()


def test_the_first_key_without_a_server_says_where_it_is_stored(run: Run, data_dir: Path) -> None:
    for command in (("teams", "create", "search"), ("keys", "create")):
        message = run(*command).stderr
        assert f"{data_dir}, but no server has been started" in message
        assert "--data-dir" in message
    assert "no server" not in run("keys", "create", "--team", "nobody").stderr, "because no key was made"
    (data_dir / "state.db").touch()
    assert "no server" not in run("keys", "create").stderr


def test_a_data_directory_of_another_user_is_refused(run: Run, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(data_dir))

    monkeypatch.setattr("tenants.key_settings.KeySettings.has_tables", refused)
    done = run("keys", "list")
    assert done.exit_code == 1
    assert "as the server's user" in done.stderr
    monkeypatch.setattr("tenants.key_settings.KeySettings.has_tables", lambda _: True)
    monkeypatch.setattr("registry.storage.database.make_private", refused)
    done = run("keys", "create")
    assert done.exit_code == 4
    assert "tenants.db cannot be read or created: Permission denied" in done.stderr
    assert "run commands as that user" in done.stderr


def test_commands_send_the_key_of_their_variable(run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.on("GET", "/v1/models", {"data": []})
    run("models", "list")
    monkeypatch.setenv("ROUNDHOUSE_API_KEY", "rh-some")
    run("models", "list")
    assert [received.headers.get("Authorization") for received in server.received] == [None, "Bearer rh-some"]


@pytest.mark.parametrize(
    "refused",
    [("keys", "create", "--team", "nosuch"), ("keys", "create", "--models", "no pattern"), ("teams", "create", "No!")],
    ids=" ".join,
)
def test_a_refused_first_command_makes_no_database(
    refused: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """With the tables, a server would keep a ledger from then on."""
    data = tmp_path / "new"
    monkeypatch.setenv("ROUNDHOUSE_DATA_DIR", str(data))
    done = run(*refused)
    assert done.exit_code == 1, done.stderr
    assert not data.exists()
    assert run("keys", "create").exit_code == 0
    assert sorted(file.name for file in data.iterdir()) == ["pepper", "tenants.db"]
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in data.iterdir())
    assert json.loads(run("keys", "list", "--json").stdout)["data"][0]["team"] == "default"
