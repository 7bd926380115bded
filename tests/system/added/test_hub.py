"""Models added by their name on a hub: pinned to a commit, fetched with progress, and fetched only once."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest

from tests.eventually import eventually
from tests.faults.traffic import ask
from tests.system.serving import PACK, Server
from tests.unit.adapters.fake_hub import TOKEN, FakeHub, serve

pytestmark = pytest.mark.real
REPOSITORY = "team/listener"
FILES = PACK / "starter-speech"
"""The speech model, because its library imports ten times faster than the others'."""
WEIGHTS = "model.bin"
LARGE = {"beside.model": bytes(24 * 2**20)}
"""A large file that slows the download down. The model does not need it."""
CHUNK = 10**7
"""More bytes than the other files have, and fewer than the hub sends of a large file before the gate."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeHub, Server, Path]]:
    folder = tmp_path_factory.mktemp("hub")
    with serve() as hub:
        server = started(folder, hub)
        try:
            yield hub, server, folder
        finally:
            server.close()


@pytest.fixture
def hub(running: tuple[FakeHub, Server, Path]) -> Iterator[FakeHub]:
    """A hub without repositories. The server has no models and no files of the hub."""
    hub, server, folder = running
    yield hub
    if hub.gate is not None:
        hub.gate.set()
    for model in server.http.get("/v1/models").json()["data"]:
        assert server.http.delete(f"/v1/models/{model['id']}").status_code == 200, server.tail()
    shutil.rmtree(folder / "hf", ignore_errors=True)
    hub.forget()


@pytest.fixture
def server(running: tuple[FakeHub, Server, Path], hub: FakeHub) -> Server:
    return running[1]


@pytest.fixture
def cache(running: tuple[FakeHub, Server, Path]) -> Path:
    """The folder in which the server stores what it downloads."""
    return running[2] / "hf"


def started(folder: Path, hub: FakeHub) -> Server:
    (folder / "recipes").mkdir(exist_ok=True)
    options = ("--slots", "2")
    return Server(folder / "data", [folder / "recipes"], *options, env=hub.environment(folder / "hf")).wait_ready()


def add(server: Server, status: int = 201, source: str = REPOSITORY, **more: object) -> Any:
    answer = server.http.post("/v1/models", json={"source": source, **more})
    assert answer.status_code == status, f"{answer.text}\n{server.tail()}"
    return answer.json()


def check_answers(server: Server, model: str) -> None:
    answer = ask(server.http, model, "starter-speech")
    assert answer.status_code == 200, f"{answer.text}\n{server.tail()}"


def test_a_model_is_served_at_its_commit_and_two_adds_share_one_download(server: Server, hub: FakeHub) -> None:
    commit = hub.push(REPOSITORY, FILES, more=LARGE)
    hub.gate = threading.Event()
    proposed = add(server, 200, dry_run=True)
    size = (FILES / WEIGHTS).stat().st_size
    assert proposed["fetch_bytes"] >= size
    assert proposed["task"] == "transcribe"
    assert not [one for one in hub.requested if one.startswith("GET") and one.endswith(WEIGHTS)], (
        "a dry run fetches none"
    )
    first = add(server)
    assert (first["id"], first["new"]) == ("listener", True)
    again = add(server, 200)
    assert again["new"] is False
    other = add(server, id="other")
    assert other["new"] is True

    def is_fetching() -> bool:
        progress = server.model("listener")["progress"]
        return bool(progress and progress["phase"] == "fetching" and progress["percent"] > 0)

    eventually(is_fetching, server.tail)
    hub.gate.set()
    for model in ("listener", "other"):
        check_answers(server, model)
        assert server.model(model)["revision"] == commit
    assert len([one for one in hub.requested if one == f"GET /{REPOSITORY}/resolve/{commit}/{WEIGHTS}"]) == 1
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert f"revision: {commit}" in server.http.get("/v1/models/listener/recipe").text


def test_the_progress_of_an_add_is_streamed(server: Server, hub: FakeHub) -> None:
    hub.push(REPOSITORY, FILES, "v2")
    with server.http.stream("POST", "/v1/models", json={"source": f"{REPOSITORY}@v2", "stream": True}) as stream:
        lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    phases = [json.loads(line)["phase"] for line in lines[:-1]]
    assert (phases[0], phases[1], phases[-1]) == ("looking", "added", "done")
    check_answers(server, "listener")


def test_ollamas_client_pulls_it_and_deletes_it(server: Server, hub: FakeHub) -> None:
    hub.push(REPOSITORY, FILES, more=LARGE)
    client = ollama.Client(host=server.url, timeout=600)
    lines = list(client.pull(f"hf.co/{REPOSITORY}:latest", stream=True))
    assert (lines[0].status, lines[-1].status) == ("pulling manifest", "success")
    check_answers(server, "listener")
    assert client.pull("listener").status == client.pull(REPOSITORY).status == "success"
    assert client.delete("listener:latest").status == "success"
    assert server.http.get("/v1/models/listener").status_code == 404
    with pytest.raises(ollama.ResponseError, match="nowhere"):
        list(client.pull("team/nowhere", stream=True))
    with pytest.raises(ollama.ResponseError) as missing:
        client.pull("team/nowhere")
    assert missing.value.status_code == 404


def test_a_cancelled_download_is_resumed(server: Server, hub: FakeHub, cache: Path) -> None:
    hub.push(REPOSITORY, FILES, more=LARGE)
    hub.gate = threading.Event()
    add(server)
    blobs = cache / "hub"

    def has_begun() -> bool:
        return any(file.stat().st_size >= CHUNK for file in blobs.rglob("*.part"))

    eventually(has_begun, server.tail)
    assert server.http.delete("/v1/models/listener/download").status_code == 200
    state = server.wait_state("listener", "failed")
    assert state["failure"]["code"] == "download_cancelled"
    hub.gate.set()
    assert server.http.post("/v1/models/listener/load").status_code == 200, server.tail()
    check_answers(server, "listener")
    assert any(one.startswith("from ") for one in hub.requested), "it was resumed"


def test_after_a_kill_added_and_removed_models_stay_so_and_a_download_is_resumed(hub: FakeHub, tmp_path: Path) -> None:
    hub.push(REPOSITORY, FILES, more=LARGE)
    hub.gate = threading.Event()
    first = started(tmp_path, hub)
    try:
        add(first, source=str(FILES), id="kept")
        add(first, source=str(FILES), id="gone")
        assert first.http.delete("/v1/models/gone").status_code == 200
        exported = first.http.get("/v1/models/kept/recipe").text
        add(first)
    finally:
        first.process.kill()
        first.close()
    assert "id: kept" in exported
    hub.gate.set()
    second = started(tmp_path, hub)
    try:
        listed = sorted(one["id"] for one in second.http.get("/v1/models").json()["data"])
        assert listed == ["kept", "listener"]
        for model in listed:
            check_answers(second, model)
    finally:
        second.close()


def test_files_that_differ_from_the_hubs_digests_are_not_served(server: Server, hub: FakeHub) -> None:
    hub.push(REPOSITORY, FILES)
    hub.spoil = True
    add(server)
    state = server.wait_state("listener", "failed")
    assert state["failure"]["code"] == "bad_download"
    hub.spoil = False
    assert server.http.post("/v1/models/listener/load").status_code == 200, server.tail()
    check_answers(server, "listener")


@pytest.mark.parametrize(
    ("source", "status", "code"),
    [("team/nobody", 404, "hub_not_found"), (f"{REPOSITORY}@no-such", 404, "hub_not_found"),
     ("team/adapter", 422, "is_adapter")],
)  # fmt: skip
def test_a_refused_add_downloads_nothing(server: Server, hub: FakeHub, source: str, status: int, code: str) -> None:
    hub.push(REPOSITORY, FILES)
    hub.push("team/adapter", PACK / "adapters" / "rot13")
    assert add(server, status, source)["error"]["code"] == code
    assert server.http.get("/v1/models").json()["data"] == []
    assert not [one for one in hub.requested if one.endswith((".safetensors", WEIGHTS))]


def test_files_stay_until_the_last_model_that_uses_them_is_purged(server: Server, hub: FakeHub, cache: Path) -> None:
    hub.push(REPOSITORY, FILES)
    add(server)
    add(server, id="other")
    for model in ("listener", "other"):
        check_answers(server, model)

    def stored_bytes() -> int:
        return sum(file.stat().st_size for file in cache.rglob("blobs/*"))

    before = stored_bytes()
    assert before > (FILES / WEIGHTS).stat().st_size
    assert server.http.delete("/v1/models/listener?purge=true").json()["freed_bytes"] == 0
    assert stored_bytes() == before
    check_answers(server, "other")
    assert server.http.delete("/v1/models/other?purge=true").json()["freed_bytes"] == before
    assert stored_bytes() == 0
    add(server)
    check_answers(server, "listener")
