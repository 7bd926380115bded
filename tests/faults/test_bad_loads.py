"""Loads that fail, or that no client waits for any more, do not affect other requests."""

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.eventually import PATIENCE, eventually
from tests.faults.traffic import ask
from tests.system.serving import PACK, STARTER, Server

pytestmark = pytest.mark.real
COPY = """
id: copy
version: 1
task: transcribe
source: {{path: {path}}}
engine: {{name: faster-whisper}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the server's data, with a disk of 16 MiB if this user may mount one."""
    folder = tmp_path_factory.mktemp("bad")
    (folder / "data").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(folder / "data")]
    mounted = os.geteuid() == 0 and subprocess.run(mount, check=False, capture_output=True).returncode == 0
    yield folder
    if mounted:
        subprocess.run(["umount", "-l", str(folder / "data")], check=False)


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Server]:
    shutil.copytree(PACK / "starter-speech", place / "copy")
    (place / "copy.yaml").write_text(COPY.format(path=place / "copy"))
    recipes = [place / "copy.yaml", STARTER / "starter-embed.yaml", STARTER / "starter-speech.yaml"]
    server = Server(place / "data", recipes, "--slots", "3")
    try:
        yield server.wait_ready()
    finally:
        server.close()


def test_a_load_that_fails_half_way_is_reported_and_the_next_one_works(server: Server, place: Path) -> None:
    """The weights were complete at the start of the server, and are now cut off in the middle."""
    assert ask(server.http, "starter-speech").status_code == 200
    weights = place / "copy" / "model.bin"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    refused = ask(server.http, "copy", "starter-speech")
    assert refused.status_code == 503, refused.text
    assert "could not be loaded" in refused.text
    assert int(refused.headers["retry-after"]) >= 1
    displayed = server.model("copy")
    assert (displayed["state"], displayed["bytes"], displayed["pid"]) == ("failed", 0, None)
    assert displayed["failure"]["message"] in refused.text
    assert server.metric("roundhouse_load_failures_total", model="copy") == 1
    assert ask(server.http, "starter-speech").status_code == 200, "nobody else notices"
    weights.write_bytes(whole)
    assert server.http.post("/v1/models/copy/load").status_code == 200, "by hand there is no back-off"
    assert ask(server.http, "copy", "starter-speech").status_code == 200
    assert server.http.post("/v1/models/copy/unload").status_code == 200


def ask_and_leave(server: Server) -> None:
    """Send a request, and close its connection once the server shows that it waits for the load."""
    body = b'{"model": "starter-embed", "input": "steam"}'
    head = "POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}"
    with socket.create_connection(("127.0.0.1", server.port)) as leaver:
        leaver.sendall(head.encode() + b"\r\n\r\n" + body)
        eventually(lambda: server.model("starter-embed")["state"] != "absent")


def test_a_waiter_that_disconnects_does_not_stop_the_load_for_the_others(server: Server) -> None:
    server.http.post("/v1/models/starter-embed/unload")
    before = server.model("starter-embed")["loads"]
    answers: list[int] = []

    def stay() -> None:
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
            answers.append(ask(http, "starter-embed").status_code)

    ask_and_leave(server)
    stayer = threading.Thread(target=stay)
    stayer.start()
    stayer.join(PATIENCE)
    assert answers == [200]
    assert server.model("starter-embed")["loads"] == before + 1
    assert server.http.get("/v1/status").json()["waiting"] == 0


def test_a_load_whose_only_waiter_left_is_finished_and_serves_the_next(server: Server) -> None:
    server.http.post("/v1/models/starter-embed/unload")
    before = server.model("starter-embed")["loads"]
    ask_and_leave(server)
    server.wait_state("starter-embed", "ready")
    assert server.model("starter-embed")["loads"] == before + 1


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as stream:
        while True:
            stream.write(b"\0" * 4096)


def test_models_load_and_answer_while_the_disk_is_full(server: Server, place: Path) -> None:
    if not os.path.ismount(place / "data"):
        pytest.skip("this user may not mount a small disk to fill")
    server.http.post("/v1/models/starter-speech/unload")
    filler = place / "data" / "filler"
    with pytest.raises(OSError, match="No space"):
        fill(filler)
    try:
        assert ask(server.http, "starter-speech").status_code == 200
        assert server.model("starter-speech")["state"] == "ready"
    finally:
        filler.unlink()
    assert server.http.put("/v1/models/starter-speech/pin").status_code == 200, "the state can be written again"
    assert server.http.delete("/v1/models/starter-speech/pin").status_code == 200
