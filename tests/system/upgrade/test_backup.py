"""Backups of a running server are complete, and an older version's data directory can be used here."""

import json
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adapters.store import Store
from registry.state.database import State
from runtime.cli.main import app
from tests.system.serving import PACK, ROOT, STARTER, Server

pytestmark = pytest.mark.real
OLD = Path(__file__).with_name("state-3.sql")
DIGESTS = {
    "v1": "sha256:36d7db26f1f4fd8f02a1c7cb909d2d73f44809ce0acbc11af4dd739593af489e",
    "v2": "sha256:cdd8b4f10edd388a6fbdd3c9cfde6ec2e9639bf2b15742765e16c0cddd9aa751",
}


def roundhouse(*arguments: object, code: int = 0) -> str:
    """Run the command in this process, which saves most of a second of imports; return its messages."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == code, done.output
    return done.stderr


def test_a_backup_of_a_server_that_writes_is_complete(server: Server, tmp_path: Path) -> None:
    """Adapters are added and removed while it is taken. It has the earlier ones, and the files of all it names."""
    path = {"path": str(PACK / "adapters" / "uppercase")}
    body = {"name": "backed-up", "base": "starter-chat", "source": path}
    assert server.http.post("/v1/adapters", json=body).status_code == 201
    assert server.http.put("/v1/adapters/backed-up/aliases/prod", json={"version": "v1"}).status_code == 200
    stop, rounds = threading.Event(), []

    def churn() -> None:
        while not stop.is_set():
            server.http.post("/v1/adapters", json={**body, "name": "passing"}).raise_for_status()
            server.http.delete("/v1/adapters/passing?force=true").raise_for_status()
            rounds.append(1)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        command = [sys.executable, "-m", "runtime.cli.main", "backup", tmp_path / "copy", "--data-dir", server.data]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    finally:
        stop.set()
        thread.join()
        server.http.delete("/v1/adapters/backed-up?force=true")
    assert rounds
    names = {one.name for one in (tmp_path / "copy").iterdir()}
    needed = {"backup.json", "SHA256SUMS", "state.db", "store"}
    assert needed <= names <= {*needed, "notes", "routers", "recipes", "merged", "providers", "tenants.db", "pepper"}
    assert (tmp_path / "copy").stat().st_mode & 0o077 == 0
    roundhouse("restore", tmp_path / "copy", "--data-dir", tmp_path / "data")
    with State(tmp_path / "data", read_only=True) as state:
        adapters = {one.key.name: one for one in state.adapters.all() if one.key.base == "starter-chat"}
    assert {"backed-up", "uppercase", "rot13"} <= set(adapters)
    store = Store(tmp_path / "data" / "store")
    for adapter in adapters.values():
        for version in adapter.versions:
            store.verify(version.digest)


def test_nothing_is_overwritten_and_an_incomplete_backup_is_refused(server: Server, tmp_path: Path) -> None:
    roundhouse("backup", tmp_path / "copy", "--data-dir", server.data)
    assert "is not empty" in roundhouse("backup", tmp_path / "copy", "--data-dir", server.data, code=1)
    assert "is not empty" in roundhouse("restore", tmp_path / "copy", "--data-dir", server.data, code=1)
    assert "is not a backup" in roundhouse("restore", tmp_path, "--data-dir", tmp_path / "data", code=1)
    assert "No server has used" in roundhouse("backup", tmp_path / "x", "--data-dir", tmp_path / "none", code=1)
    shutil.rmtree(next((tmp_path / "copy" / "store").iterdir()))
    assert "are missing" in roundhouse("restore", tmp_path / "copy", "--data-dir", tmp_path / "d", code=1)
    assert not (tmp_path / "d").exists()


def test_an_older_versions_directory_is_backed_up_restored_and_served(server: Server, tmp_path: Path) -> None:
    old, new = tmp_path / "a" / "old", tmp_path / "a" / "new"
    old.mkdir(parents=True)
    with closing(sqlite3.connect(old / "state.db")) as database:
        database.executescript(OLD.read_text())
    for digest in DIGESTS.values():
        name = digest.removeprefix("sha256:")
        shutil.copytree(server.data / "store" / name, old / "store" / name)
    roundhouse("backup", tmp_path / "copy", "--data-dir", old)
    roundhouse("restore", tmp_path / "copy", "--data-dir", new)
    later = Server(new, [STARTER / "starter-chat.yaml"], "--slots", "1")
    try:
        later.wait_ready()
        adapter = later.http.get("/v1/adapters/kept").json()
        assert {one["version"]: one["digest"] for one in adapter["versions"]} == DIGESTS
        assert (adapter["version"], adapter["aliases"]) == ("v2", {"prod": "v1"})
        for name, text in (("kept@prod", "HELLO WORLD"), ("kept", "uryyb jbeyq"), ("support:kept@v1", "HELLO WORLD")):
            body = {"model": name, "temperature": 0, "messages": [{"role": "user", "content": "hello world"}]}
            answer = later.http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["message"]["content"] == text, json.dumps(answer.json())
    finally:
        later.close()
