"""What lists, metrics and names tell about adapters, and how they are removed, on the starter base over HTTP."""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from safetensors.torch import load_file, save_file

from tests.eventually import PATIENCE, eventually
from tests.system.serving import PACK, Server

pytestmark = pytest.mark.real
ADAPTERS = PACK / "adapters"
HELLO = {"messages": [{"role": "user", "content": "hello world"}], "temperature": 0, "max_tokens": 40}


def say(server: Server, **body: Any) -> str:
    answer = server.http.post("/v1/chat/completions", json={**HELLO, **body}, timeout=600)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def new_content(folder: Path, factor: float) -> Path:
    """An adapter that no other version shares: uppercase with its B scaled by a factor."""
    shutil.copytree(ADAPTERS / "uppercase", folder)
    path = folder / "adapter_model.safetensors"
    save_file({k: v * (factor if "lora_B" in k else 1) for k, v in load_file(path).items()}, path)
    return folder


def register(server: Server, name: str, folder: Path, **query: str) -> httpx.Response:
    body = {"name": name, "base": "starter-chat", "source": {"path": str(folder.resolve())}}
    return server.http.post("/v1/adapters", json=body, params=query)


@contextmanager
def streaming(server: Server, model: str, tokens: int = 400) -> Iterator[dict[str, int]]:
    """A stream of many answers that runs meanwhile: its engine stands still, so that no busy client comes too late.

    In the end the status and the number of events are known.
    """
    counted: dict[str, int] = {}
    first = threading.Event()

    def read() -> None:
        body = {
            **HELLO,
            "model": model,
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "n": 32,
            "temperature": 1,
        }
        url = f"{server.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=600) as answer:
            counted["status"] = answer.status_code
            for line in answer.iter_lines():
                first.set()
                counted["events"] = counted.get("events", 0) + line.startswith("data: {")

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        assert first.wait(PATIENCE)
        assert counted["status"] == 200
        core = psutil.Process(server.core_pid("starter-chat"))
        core.suspend()
        try:
            yield counted
        finally:
            core.resume()
    finally:
        thread.join(600)


def test_list_show_and_metrics_tell_the_same(server: Server) -> None:
    say(server, model="uppercase")
    before = server.http.get("/v1/adapters/uppercase").json()
    with streaming(server, "uppercase"):
        text = server.http.get("/metrics").text
        busy = server.http.get("/v1/adapters/uppercase").json()
    assert (busy["tier"], busy["running"], busy["waiting"]) == ("device", 1, 0)
    (info,) = [line for line in text.splitlines() if line.startswith("vllm:lora_requests_info{")]
    assert 'max_lora="24"' in info
    assert 'running_lora_adapters="uppercase"' in info
    assert 'waiting_lora_adapters=""' in info
    assert abs(float(info.rpartition(" ")[2]) - time.time()) < PATIENCE
    displayed = server.http.get("/v1/adapters/uppercase").json()
    listed = next(a for a in server.http.get("/v1/adapters").json()["data"] if a["name"] == "uppercase")
    assert listed == displayed
    assert displayed["hits"] == before["hits"] + 1
    assert displayed["misses"] >= 1
    assert abs(displayed["last_used"] - time.time()) < PATIENCE
    assert displayed["last_stage_seconds"] > 0
    assert displayed["last_place_seconds"] > 0
    one = {"model": "starter-chat", "adapter": "uppercase"}
    for name in ("rank", "bytes", "hits", "misses", "evictions", "running", "waiting", "pinned"):
        assert server.metric(f"roundhouse_adapter_{name}", **one) == displayed[name], name
    assert server.metric("roundhouse_adapter_tier", **one, tier="device") == 1
    assert server.metric("roundhouse_adapter_info", **one, version="v1", digest=displayed["digest"]) == 1
    assert server.metric("roundhouse_adapter_last_load_seconds", **one, step="place") == pytest.approx(
        displayed["last_place_seconds"], abs=1e-4
    )
    assert server.metric("roundhouse_adapter_load_seconds_count", model="starter-chat", step="stage") >= 1


def test_every_way_to_name_an_adapter_gives_its_answer(server: Server) -> None:
    digest = server.http.get("/v1/adapters/uppercase").json()["digest"]
    names = ["uppercase", "starter-chat:uppercase", "uppercase@v1", f"uppercase@{digest}", f"uppercase@{digest[:19]}"]
    assert {say(server, model=name) for name in names} == {"HELLO WORLD"}
    assert say(server, model="starter-chat", adapter_id="uppercase") == "HELLO WORLD"


def test_a_dry_run_tells_and_registers_nothing(server: Server, tmp_path: Path) -> None:
    good = register(server, "trial", new_content(tmp_path / "good", 0.9), dry_run="true")
    assert (good.status_code, good.json()["fit"], good.json()["rank"]) == (200, True, 8), good.text
    (tmp_path / "good" / "adapter_model.safetensors").write_bytes(b"")
    bad = register(server, "trial", tmp_path / "good", dry_run="true")
    assert (bad.status_code, bad.json()["error"]["code"]) == (422, "unfit_adapter")
    assert server.http.get("/v1/adapters/trial").status_code == 404


def test_what_a_check_noted_is_in_the_answer_the_list_and_the_log(server: Server, tmp_path: Path) -> None:
    folder = new_content(tmp_path / "untrained", 0)
    config = json.loads((folder / "adapter_config.json").read_text()) | {"base_model_name_or_path": "Qwen/Qwen2.5-7B"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    registered = register(server, "untrained", folder)
    assert registered.status_code == 201, registered.text
    notes = registered.json()["notes"]
    assert any("All lora_B are zero" in note for note in notes)
    assert any("Qwen/Qwen2.5-7B as its base" in note for note in notes)
    assert server.http.get("/v1/adapters/untrained").json()["notes"] == notes
    log = server.log.read_text()
    assert all(note in log for note in notes)
    assert server.http.delete("/v1/adapters/untrained").status_code == 200


def test_vllms_two_calls(server: Server, tmp_path: Path) -> None:
    folder = new_content(tmp_path / "mine", 0.95)
    loaded = server.http.post("/v1/load_lora_adapter", json={"lora_name": "mine", "lora_path": str(folder)})
    assert loaded.status_code == 200, loaded.text
    assert say(server, model="mine") == "HELLO WORLD"
    assert server.http.post("/v1/unload_lora_adapter", json={"lora_name": "mine"}).status_code == 200
    assert server.http.post("/v1/chat/completions", json={**HELLO, "model": "mine"}).status_code == 404


def test_a_removed_adapter_leaves_nothing_behind_once_its_last_request_has_ended(
    server: Server, tmp_path: Path
) -> None:
    made = register(server, "short-lived", new_content(tmp_path / "content", 0.8))
    assert made.status_code == 201, made.text
    digest = made.json()["digest"]
    stored = server.data / "store" / digest.removeprefix("sha256:")
    with streaming(server, "short-lived") as counted:
        refused = server.http.delete("/v1/adapters/short-lived")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "adapter_in_use")
        assert server.http.delete("/v1/adapters/short-lived?force=true").status_code == 200
        gone = server.http.post("/v1/chat/completions", json={**HELLO, "model": "short-lived"})
        assert gone.status_code == 404
        assert stored.is_dir(), "a request still runs with it"
    assert counted["status"] == 200
    assert counted["events"] > 400
    eventually(lambda: not stored.exists(), lambda: "its files stay")
    assert "short-lived" not in [line for line in server.http.get("/metrics").text.splitlines() if "_tier{" in line]
    assert server.metric("roundhouse_adapter_info", adapter="short-lived") == 0


def test_removed_content_that_is_registered_again_comes_back(server: Server, tmp_path: Path) -> None:
    folder = new_content(tmp_path / "content", 0.85)
    answers = []
    for _ in range(2):
        assert register(server, "again", folder).status_code == 201
        answers.append(say(server, model="again"))
        assert server.http.delete("/v1/adapters/again").status_code == 200
    assert answers[0] == answers[1]
