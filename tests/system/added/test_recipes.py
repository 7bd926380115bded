"""The operator's recipe files: reloaded by SIGHUP, by a call, or when they change; and what they forbid."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import eventually
from tests.faults import traffic
from tests.system.serving import PACK, Server
from tests.unit.launch.whisper import save_whisper

pytestmark = pytest.mark.real
RECIPE = """
id: {id}
version: {version}
task: transcribe
source: {{package: models.starter, inside: pack/starter-speech}}
engine: {{name: faster-whisper}}
batching: {{max_requests: {requests}}}
"""


class RecipeFolder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "recipes"
        self.folder.mkdir()

    def write(self, id_: str, version: int = 1, requests: int = 8) -> None:
        text = RECIPE.format(id=id_, version=version, requests=requests)
        (self.folder / f"{id_}.yaml").write_text(text)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> RecipeFolder:
    files = RecipeFolder(tmp_path_factory.mktemp("files"))
    files.write("one")
    return files


@pytest.fixture(scope="module")
def server(files: RecipeFolder) -> Iterator[Server]:
    with Server(files.folder.parent / "data", [files.folder], "--slots", "2", "--watch") as server:
        yield server.wait_ready()


def ids(server: Server) -> list[str]:
    return sorted(one["id"] for one in server.http.get("/v1/models").json()["data"])


def ask(server: Server, model: str) -> Any:
    return traffic.ask(server.http, model, "starter-speech")


def test_sighup_and_a_call_reload_the_files_while_models_go_on(tmp_path: Path) -> None:
    files = RecipeFolder(tmp_path)
    files.write("one")
    server = Server(tmp_path / "data", [files.folder], "--slots", "2")
    try:
        eventually(lambda: "starting on" in server.log.read_text(), server.tail)  # it has read the files
        files.write("early")
        server.process.send_signal(signal.SIGHUP)
        server.wait_ready()
        eventually(lambda: ids(server) == ["early", "one"], server.tail)
        (files.folder / "early.yaml").unlink()
        assert ask(server, "one").status_code == 200
        files.write("two")
        files.write("one", version=2, requests=4)
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: "two" in ids(server), server.tail)
        eventually(lambda: server.model("one")["recipe_version"] == 2, server.tail)
        assert ask(server, "two").status_code == 200
        assert ask(server, "one").status_code == 200
        (files.folder / "broken.yaml").write_text("id: broken\nversion: none\n")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: bool(server.http.get("/v1/status").json()["recipe_faults"]), server.tail)
        assert "broken.yaml:2" in "".join(server.http.get("/v1/status").json()["recipe_faults"])
        eventually(lambda: "broken.yaml:2" in server.log.read_text(), server.tail)
        assert ids(server) == ["one", "two"]
        (files.folder / "broken.yaml").unlink()
        (files.folder / "one.yaml").unlink()
        answer = server.http.post("/v1/recipes/reload").json()
        assert (answer["changed"], answer["models"], answer["faults"]) == (True, ["two"], [])
        assert ask(server, "one").status_code == 404
        assert server.stop() == 0
    finally:
        server.close()


def test_watched_files_are_reloaded_when_they_change(server: Server, files: RecipeFolder) -> None:
    assert ids(server) == ["one"]
    files.write("three")
    eventually(lambda: ids(server) == ["one", "three"], server.tail)
    assert ask(server, "three").status_code == 200
    (files.folder / "three.yaml").unlink()
    eventually(lambda: ids(server) == ["one"], server.tail)


def test_a_model_of_the_operators_files_cannot_be_removed_but_its_edits_can(server: Server) -> None:
    refused = server.http.delete("/v1/models/one")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "recipe_given")
    edited = server.http.patch("/v1/models/one", json={"changes": {"batching.max_requests": 5}})
    assert edited.json()["version"] == 2, edited.text
    removed = server.http.delete("/v1/models/one").json()
    assert (removed["versions"], removed["still"]) == ([2], 1)
    assert server.model("one")["recipe_version"] == 1
    assert ask(server, "one").status_code == 200


def test_a_base_of_adapters_is_removed_only_by_force(server: Server) -> None:
    body = {"source": "package:models.starter/pack/starter-chat", "id": "base"}
    assert server.http.post("/v1/models", json=body).status_code == 201, server.tail()
    adapter = {"name": "rot13", "base": "base", "source": {"path": str(PACK / "adapters" / "rot13")}}
    assert server.http.post("/v1/adapters", json=adapter).status_code == 201
    refused = server.http.delete("/v1/models/base")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "model_in_use")
    message = refused.json()["error"]["message"]
    assert "is the base of an adapter (" in message
    assert "force=true, --force" in message
    assert "rot13" in message
    assert server.http.delete("/v1/models/base?force=true").status_code == 200
    assert "base" not in ids(server)


def test_a_whisper_of_transformers_is_converted_and_transcribes(server: Server, tmp_path: Path) -> None:
    folder = save_whisper(tmp_path / "whisper")
    answer = server.http.post("/v1/models", json={"source": str(folder), "id": "heard"})
    assert answer.status_code == 201, answer.text
    server.http.post("/v1/models/heard/load")  # the conversion may take longer than a request waits
    server.wait_state("heard", "ready")
    sound = (PACK / "samples" / "timer.wav").open("rb")
    received = server.http.post("/v1/audio/transcriptions", data={"model": "heard"}, files={"file": sound})
    assert received.status_code == 200, f"{received.text}\n{server.tail()}"
    assert "text" in received.json()
    assert list((server.data / "converted").iterdir())
    removed = server.http.delete("/v1/models/heard?purge=true").json()
    assert removed["freed_bytes"] > 0
    assert not list((server.data / "converted").iterdir())
    assert folder.is_dir(), "the operator's own folder stays"
