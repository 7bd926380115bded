"""Faults on real engines: a slot killed in the middle of streams, and shutdown under load or during the start."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.eventually import PATIENCE, eventually
from tests.ports import is_open
from tests.system.serving import STARTER, Server, alive

pytestmark = pytest.mark.real

SECOND = """
id: second-chat
version: 1
task: chat
source: {package: models.starter, inside: pack/starter-chat}
engine: {name: vllm}
context_length: 512
memory: {kv_cache: 64MiB}
"""

MANY = 128
"""Number of answers to a request: they take thousands of steps, so a test is never too late to kill the engine."""


class Stream:
    """A chat stream with several answers, read in a thread. `lines` are the events received so far."""

    def __init__(self, server: Server, model: str, tokens: int = 450, answers: int = 1) -> None:
        self.lines: list[str] = []
        self.error: Exception | None = None
        self._body = {
            "model": model, "messages": [{"role": "user", "content": "hello"}], "stream": True,
            "max_tokens": tokens, "n": answers, "ignore_eos": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        self._server = server
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        try:
            with self._server.http.stream("POST", "/v1/chat/completions", json=self._body) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        self.lines.append(line[6:])
        except Exception as error:  # checked by the test
            self.error = error

    def wait_lines(self, count: int) -> None:
        eventually(lambda: len(self.lines) >= count or not self.thread.is_alive())
        assert len(self.lines) >= count, f"ended early: {self.lines[-1:]}, {self.error}"

    def join(self) -> list[str]:
        self.thread.join(PATIENCE)
        assert self.error is None, self.error
        return self.lines

    def completion_tokens(self) -> int:
        assert self.join()[-1:] == ["[DONE]"], self.lines[-1:]
        usage = [json.loads(line).get("usage") for line in self.lines[:-1]]
        return int(next(u for u in usage if u)["completion_tokens"])


@pytest.fixture(scope="module")
def two_chats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("two")
    second = folder / "second.yaml"
    second.write_text(SECOND)
    options = ("--slots", "3", "--drain-seconds", "300")
    server = Server(folder / "data", [STARTER / "starter-chat.yaml", second], *options)
    try:
        server.wait_ready()
        for model in ("starter-chat", "second-chat"):
            assert server.http.post(f"/v1/models/{model}/load").status_code == 200
        yield server
    finally:
        server.close()


@pytest.mark.parametrize(
    ("whom", "model", "other", "then", "reason"),
    [
        ("slot", "starter-chat", "second-chat", "uppercase", "killed"),
        ("EngineCore", "second-chat", "starter-chat", "second-chat", "engine_failed"),
    ],
    ids=["slot", "EngineCore"],
)
def test_a_killed_engine_ends_its_stream_with_an_error_and_no_one_elses(
    two_chats: Server, whom: str, model: str, other: str, then: str, reason: str
) -> None:
    """A request right after the death waits for the load, and not for a heartbeat (5 s here) that would notice it."""
    server = two_chats
    pid, others = (server.slot_pid if whom == "slot" else server.core_pid)(model), server.slot_pid(other)
    bystander = Stream(server, other, answers=8)
    bystander.wait_lines(5)
    victim = Stream(server, model, answers=MANY)
    victim.wait_lines(5)
    os.kill(pid, signal.SIGKILL)
    last = json.loads(victim.join()[-1])
    assert last["error"]["code"] == "engine_died"
    # the kernel only reports how a slot ended until LitServe waits for it, every 2 s; a late gateway cannot know
    known = ("SIGKILL", "its process ended)") if whom == "slot" else ("SIGKILL",)
    assert any(how in last["error"]["message"] for how in known)
    assert Stream(server, then, 5).completion_tokens() == 5
    assert bystander.completion_tokens() == 8 * 450
    assert server.slot_pid(other) == others
    after = server.model(model)
    assert (after["deaths"], after["failure"]["code"]) == (1, reason)
    assert "SIGKILL" in after["failure"]["message"] or whom == "slot"
    assert server.metric("roundhouse_engine_deaths_total", model=model, reason=reason) == 1
    logged = [json.loads(line) for line in server.log.read_text().splitlines() if '"engine died"' in line]
    assert (logged[-1]["model"], logged[-1]["reason"]) == (model, reason)


def test_sigterm_under_load_lets_streams_finish_and_leaves_nothing(two_chats: Server) -> None:
    """This must be the last test that uses this server."""
    server = two_chats
    streams = [Stream(server, model, answers=8) for model in ("starter-chat", "second-chat", "starter-chat")]
    for stream in streams:
        stream.wait_lines(5)
    cores = [psutil.Process(server.core_pid(model)) for model in ("starter-chat", "second-chat")]
    for core in cores:
        core.suspend()  # so that no stream ends before the server gets the signal
    family = server.family()
    sockets = Path(json.loads((server.data / "server.json").read_text())["run_dir"])
    assert list(sockets.glob("*.sock"))
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: "stopping: the port is closed" in server.log.read_text(), server.tail)
    eventually(lambda: not is_open(server.port), server.tail)
    for core in cores:
        core.resume()
    assert [stream.completion_tokens() for stream in streams] == [8 * 450] * 3
    assert server.process.wait(PATIENCE) == 0, server.tail()
    eventually(lambda: not alive(family))
    assert not sockets.exists()
    lines = [json.loads(line) for line in server.log.read_text().splitlines() if '"message": "stop' in line]
    reported = [(line["message"], line.get("running"), line.get("models"), line.get("finished")) for line in lines]
    left = lines[0]["running"]
    assert 1 <= left <= 3
    assert reported == [
        ("stopping: the port is closed, requests may finish", left, 2, None),
        ("stopping: no request is left", 0, 2, left),
        ("stopping: the engines end", 0, 2, None),
        ("stopped", None, None, None),
    ]
    assert lines[0]["at_most_s"] > lines[1]["seconds"] > lines[0]["seconds"]


def test_a_stop_in_the_middle_of_the_start_leaves_nothing(tmp_path: Path) -> None:
    """Send SIGINT to the whole group, like a terminal, while the workers start."""
    server = Server(tmp_path / "data", [STARTER / "starter-embed.yaml"], "--slots", "2")
    try:
        eventually(lambda: len(server.family()) >= 4, server.tail)
        family = server.family()
        os.killpg(server.process.pid, signal.SIGINT)
        assert server.process.wait(PATIENCE) in (0, 130)
        eventually(lambda: not alive(family))
    finally:
        server.close()


def test_a_stop_ends_what_its_time_did_not_suffice_for_with_an_error(tmp_path: Path) -> None:
    """LitServe used to kill the gateway then, so its clients got no answer, and the ledger no end."""
    server = Server(tmp_path / "data", [STARTER / "starter-embed.yaml"], "--slots", "1", "--drain-seconds", "0")
    body = {"model": "starter-embed", "input": "late"}
    try:
        server.wait_ready()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(server.http.post, "/v1/embeddings", json=body)
            server.wait_state("starter-embed", "loading")
            assert server.stop() == 0
            answer = waiting.result(PATIENCE)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
        lines = [json.loads(line) for line in server.log.read_text().splitlines() if '"message": "stop' in line]
        assert [line["message"] for line in lines][1:] == [
            "stopping: requests were cut off",
            "stopping: the engines end",
            "stopped",
        ]
        assert lines[-1]["processes_left"] == 0
    finally:
        server.close()
