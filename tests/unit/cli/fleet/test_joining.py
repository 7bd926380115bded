"""A server that cannot join its fleet does not start: it exits with 2 and says what to do."""

from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from fleet.certificates import issue, make_authority
from fleet.membership.members import NewMember, open_members
from fleet.membership.tables import VERSION_TABLE
from runtime.cli.failures import UsageError
from runtime.cli.local.data_dir import DataDir
from runtime.cli.local.fleet import check_joining, check_settings
from runtime.config.settings import Settings
from tests.unit.cli.conftest import Run

NODE = {"fleet_listen": "127.0.0.1:8443", "fleet_address": "https://127.0.0.1:8443"}
DATABASE = "postgresql+psycopg://user@host/name"
FLEET = {"fleet": "tests", "database": DATABASE}
PLAIN = {"fleet_listen": "127.0.0.1:8443", "fleet_address": "http://127.0.0.1:8443"}
PEPPER = "a pepper of 32 characters or more"


def settings(folder: Path, **given: object) -> Settings:
    return Settings.model_validate({"run_dir": folder / "run", "data_dir": folder / "data", **given})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"front": True}, "--front has no effect without a fleet"),
        ({"fleet_listen": "127.0.0.1:8443"}, "--fleet-listen has no effect without a fleet"),
        ({"fleet": "tests", **NODE}, "Add --database postgresql"),
        ({"fleet": "tests", **NODE, "database": "sqlite:///x.db"}, "Add --database postgresql"),
        ({"fleet": "tests", "database": DATABASE}, "needs --fleet-listen HOST:PORT"),
        ({"fleet": "tests", "database": DATABASE, "front": True, **NODE}, "Leave out --fleet-listen"),
        ({"fleet": "tests", "database": DATABASE, "shared_port": True, **NODE}, "Only fronts can share a port"),
        ({"fleet_key": "fleet.key"}, "--fleet-key has no effect without a fleet"),
        ({**FLEET, **PLAIN, "fleet_key": "k", "fleet_certificates": "c"}, "out --fleet-certificates or --fleet-key"),
        ({**FLEET, **NODE, "fleet_key": "k"}, "--fleet-key a node's address begins with http:"),
        ({**FLEET, **PLAIN, "fleet_certificates": "c"}, "a certificate a node's address begins with https:"),
        ({**FLEET, **NODE, "fleet_name": "node-1"}, "Leave out --fleet-name, or add --fleet-key"),
        ({**FLEET, **PLAIN, "fleet_address": "http://10.0.0.5:8443"}, "need certificates .*, or --fleet-key"),
        ({**FLEET, **PLAIN, "fleet_listen": "0.0.0.0:8443"}, "need certificates .*, or --fleet-key"),
        ({**FLEET, "front": True, "host": "0.0.0.0"}, "need certificates .*, or --fleet-key"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(tmp_path: Path, given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_settings(settings(tmp_path, **given))


def test_complete_settings_of_fronts_and_nodes_are_accepted(tmp_path: Path) -> None:
    check_settings(settings(tmp_path))
    check_settings(settings(tmp_path, fleet="tests", database=DATABASE, **NODE))
    check_settings(settings(tmp_path, fleet="tests", database=DATABASE, front=True))
    check_settings(settings(tmp_path, **FLEET, **PLAIN))  # on loopback without certificates and key
    for name in ("fleet_listen", "fleet_address"):
        check_settings(settings(tmp_path, **FLEET, **{**PLAIN, name: PLAIN[name].replace("127", "10")}, fleet_key="k"))
    check_settings(settings(tmp_path, **FLEET, front=True, host="0.0.0.0", fleet_key="k", fleet_name="front-1"))


@pytest.fixture
def url(database_url: str) -> str:
    return database_url


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    make_authority(tmp_path / "authority")
    return tmp_path / "authority"


def joining(tmp_path: Path, url: str, fleet: str, pepper: str = PEPPER) -> Settings:
    (tmp_path / "data").mkdir(exist_ok=True)
    return settings(tmp_path, fleet=fleet, database=url, pepper=pepper, **NODE)


def test_a_valid_certificate_is_needed(tmp_path: Path, url: str, authority: Path) -> None:
    with pytest.raises(UsageError, match="roundhouse fleet ca issue"):
        check_joining(joining(tmp_path, url, "certificates"))
    issue(authority, "node-1", tmp_path / "data" / "fleet", days=0)
    with pytest.raises(UsageError, match=r"it expired at .* roundhouse fleet ca renew"):
        check_joining(joining(tmp_path, url, "certificates"))
    issue(authority, "node-1", tmp_path / "data" / "fleet")
    check_joining(joining(tmp_path, url, "certificates"))


def test_another_pepper_is_refused(tmp_path: Path, url: str, authority: Path) -> None:
    issue(authority, "node-1", tmp_path / "data" / "fleet")
    check_joining(joining(tmp_path, url, "peppers"))
    with pytest.raises(UsageError, match="made with another pepper"):
        check_joining(joining(tmp_path, url, "peppers", pepper="another pepper of 32 characters !"))


def test_a_name_that_a_living_server_has_is_refused(tmp_path: Path, url: str, authority: Path) -> None:
    issue(authority, "node-1", tmp_path / "data" / "fleet")
    with closing(open_members(url, "names")) as members:
        members.join(NewMember("node-1", "another data directory", "node", "https://10.0.0.9:8443", "1.0"))
    with pytest.raises(UsageError, match=r"has a server 'node-1' already at https://10.0.0.9:8443"):
        check_joining(joining(tmp_path, url, "names"))


def test_a_key_is_read_and_a_name_is_needed(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "fleet.key"
    given = joining(tmp_path, url, "keys").model_copy(update={**PLAIN, "fleet_key": key})
    with pytest.raises(UsageError, match=r"fleet\.key cannot be read"):
        check_joining(given)
    key.write_text("short")
    with pytest.raises(UsageError, match="needs 32 to 4,096"):
        check_joining(given)
    key.write_text("a key of a fleet, 32 or longer...")
    monkeypatch.setattr("socket.gethostname", lambda: "gpu_1")
    with pytest.raises(UsageError, match="'gpu_1' is not a valid server name: add --fleet-name"):
        check_joining(given)
    check_joining(given.model_copy(update={"fleet_name": "node-1"}))
    with closing(open_members(url, "keys")) as members:
        members.join(NewMember("gpu-1", "another data directory", "node", "http://10.0.0.9:8443", "1.0"))
    monkeypatch.setattr("socket.gethostname", lambda: "GPU-1")
    with pytest.raises(UsageError, match=r"has a server 'gpu-1' already.*or --fleet-name"):
        check_joining(given)


def test_a_fleet_on_loopback_needs_only_the_pepper(tmp_path: Path, url: str) -> None:
    check_joining(joining(tmp_path, url, "loopback").model_copy(update={**PLAIN, "fleet_name": "node-1"}))


def test_a_fleet_of_a_newer_version_is_refused(tmp_path: Path, url: str, authority: Path) -> None:
    issue(authority, "node-1", tmp_path / "data" / "fleet")
    with closing(open_members(url, "newer")) as members, members.database.write() as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999', least = '9999'"))
    with pytest.raises(UsageError, match="written by a newer Roundhouse"):
        check_joining(joining(tmp_path, url, "newer"))


def test_a_copied_data_directory_is_wrong_usage(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.cli.commands.server.serve.own_id", lambda: "1-test")
    words = ["serve", "--front", "--fleet=tests", f"--database={DATABASE}", f"--data-dir={tmp_path}", "--fleet-name=a"]
    with DataDir(tmp_path, "http://x"):
        refused = run(*words)
    assert refused.exit_code == 2
    assert "give this one its own --data-dir" in " ".join(refused.stderr.split())
