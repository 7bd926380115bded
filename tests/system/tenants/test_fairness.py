"""Which request goes first on a real server with a real engine, tested by order and counts, never by times."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.eventually import PATIENCE, eventually
from tests.system.serving import STARTER, Server

pytestmark = pytest.mark.real
AT_ONCE = 4
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=0)


def recipe(folder: Path) -> Path:
    """Return a recipe of the starter chat model with few places and two pools."""
    data = yaml.safe_load((STARTER / "starter-chat.yaml").read_text())
    data["batching"] = {**data.get("batching", {}), "max_requests": AT_ONCE}
    data["memory"] = {**data["memory"], "kv_cache": "8600KiB"}  # one or two requests of full length
    data["dtype"] = "float32"  # so that the cache holds as many on every processor
    data["adapters"] = []
    data["queue"] = {"max_waiting": 400, "max_wait": "600s"}
    data["pools"] = {
        "fast": {"classes": ["critical", "interactive"], "max_prompt": 400, "reserved": 1},
        "long": {"min_prompt": 400, "max_requests": 1},
    }
    file = folder / "chat.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, str]]]:
    """Yield the server, and keys of the teams flood, quiet and urgent."""
    folder = tmp_path_factory.mktemp("fairness") / "a"
    with Server(folder / "data", [recipe(folder.parent)], "--slots", "1") as server:
        server.wait_ready().http.close()
        server.http = httpx.Client(base_url=server.url, timeout=PATIENCE, limits=LIMITS)
        keys = {}
        for team, *more in (["flood"], ["quiet"], ["urgent", "--ceiling", "critical"], ["reports", "--class", "batch"]):
            server.command("teams", "create", team)
            keys[team] = server.command("keys", "create", "--team", team, "--scopes", "infer,models", *more)["value"]
        server.wait_closed()
        eventually(lambda: server.http.get("/v1/models", headers={"x-api-key": keys["reports"]}).status_code == 200)
        first = chat(server, keys["quiet"])
        assert first.status_code == 200, first.text
        yield server, keys


def chat(server: Server, key: str, tokens: int = 24, words: int = 4, **more: Any) -> httpx.Response:
    headers = {"x-api-key": key, **more.pop("headers", {})}
    body = {
        "model": "starter-chat", "messages": [{"role": "user", "content": "boats " * words}], "max_tokens": tokens,
        "ignore_eos": True, **more,
    }  # fmt: skip
    return server.http.post("/v1/chat/completions", json=body, headers=headers)


def waiting(server: Server, key: str) -> int:
    models = server.http.get("/v1/status", headers={"x-api-key": key}).json()["models"]
    return int(next(model["waiting"] for model in models if model["id"] == "starter-chat"))


@contextmanager
def all_places_taken(server: Server, key: str) -> Iterator[None]:
    """Hold every place with streams, so that all new requests wait, on any machine."""
    over, held = threading.Event(), threading.Semaphore(0)

    def hold() -> None:
        body = {
            "model": "starter-chat", "messages": [{"role": "user", "content": "boats"}], "max_tokens": 480,
            "ignore_eos": True, "stream": True, "service_tier": "priority",
        }  # fmt: skip
        headers = {"x-api-key": key}
        while not over.is_set():
            with server.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
                for _ in answer.iter_lines():
                    held.release()
                    if over.is_set():
                        break

    with ThreadPoolExecutor(AT_ONCE) as pool:
        holders = [pool.submit(hold) for _ in range(AT_ONCE)]
        try:
            for _ in range(AT_ONCE):
                assert held.acquire(timeout=PATIENCE)
            yield
        finally:
            over.set()
            for holder in holders:
                holder.result()


def test_a_flood_of_one_team_does_not_make_another_wait(shared: tuple[Server, dict[str, str]]) -> None:
    """One team has 200 requests waiting. Two of another team end before all but a few of those."""
    server, keys = shared
    ended: list[str] = []

    def one(team: str) -> None:
        answer = chat(server, keys[team])
        assert answer.status_code == 200, answer.text
        ended.append(team)

    with ThreadPoolExecutor(210) as pool:
        with all_places_taken(server, keys["urgent"]):
            flood = [pool.submit(one, "flood") for _ in range(200)]
            eventually(lambda: waiting(server, keys["quiet"]) >= 190)
            quiet = [pool.submit(one, "quiet") for _ in range(2)]
            eventually(lambda: len(ended) + waiting(server, keys["quiet"]) >= 202)
            before = len(ended)
        for done in quiet:
            done.result()
        # Those that ran, those that started at the same time, and those that ended while two threads sent their
        # requests.
        assert ended[before:].count("flood") <= 40, ended[before:]
        for done in flood:
            done.result()
    assert ended.count("flood") == 200, "nobody was refused"


def test_critical_requests_pass_batch_ones_which_keep_their_floor(shared: tuple[Server, dict[str, str]]) -> None:
    """Critical requests pass waiting batch ones. Batch gets its minimum share although critical ones always wait."""
    server, keys = shared
    ended: list[str] = []

    def one(team: str, **more: Any) -> None:
        answer = chat(server, keys[team], **more)
        assert answer.status_code == 200, answer.text
        assert answer.headers["X-Roundhouse-Class"] == ("batch" if team == "reports" else "critical")
        ended.append(team)

    with ThreadPoolExecutor(200) as pool:
        with all_places_taken(server, keys["urgent"]):
            batch = [pool.submit(one, "reports") for _ in range(40)]
            eventually(lambda: waiting(server, keys["quiet"]) >= 30)
            urgent = [pool.submit(one, "urgent", service_tier="priority") for _ in range(120)]
            eventually(lambda: len(ended) + waiting(server, keys["quiet"]) >= 150)
            before = len(ended)
        for done in urgent:
            done.result()
        passed = ended[before:].count("reports")
        for done in batch:
            done.result()
    assert 2 <= passed < 40 - AT_ONCE, "batch had its floor, and no more than what went before critical ones came"


def test_a_full_engine_gives_a_critical_request_the_memory_of_batch_ones(shared: tuple[Server, dict[str, str]]) -> None:
    """A critical request comes after three long batch ones, and the cache holds at most two requests. In order of
    arrival, it would wait until two of the others had ended.
    """
    server, keys = shared

    def stream(team: str, seen: list[str], ended: list[str], **more: Any) -> None:
        body = {
            "model": "starter-chat", "messages": [{"role": "user", "content": "boats"}], "max_tokens": 450,
            "ignore_eos": True, "stream": True, **more,
        }  # fmt: skip
        with server.http.stream("POST", "/v1/chat/completions", json=body, headers={"x-api-key": keys[team]}) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    seen.append(line)
        assert '"finish_reason":"length"' in seen[-1], seen[-1]
        ended.append(team)

    def attempt() -> bool:
        """Return whether the batch requests had only begun when the critical one began."""
        ended: list[str] = []
        batch, critical = [list[str]() for _ in range(3)], list[str]()
        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(stream, "reports", seen, ended) for seen in batch]
            eventually(lambda: all(batch))
            running.append(pool.submit(stream, "urgent", critical, ended, service_tier="priority"))
            eventually(lambda: critical)
            was_early = max(map(len, batch)) < 100
            for done in running:
                done.result()
        assert not was_early or "urgent" in ended[:2], ended
        return was_early

    eventually(attempt)


def test_the_granted_class_is_reported(shared: tuple[Server, dict[str, str]]) -> None:
    server, keys = shared
    answer = chat(server, keys["urgent"], service_tier="fast")
    assert (answer.json()["service_tier"], answer.headers["X-Roundhouse-Class"]) == ("priority", "critical")
    lowered = chat(server, keys["quiet"], service_tier="priority")
    assert (lowered.json()["service_tier"], lowered.headers["X-Roundhouse-Class"]) == ("default", "interactive")
    assert lowered.headers["X-Roundhouse-Class-Asked"] == "critical"
    assert "service_tier" not in chat(server, keys["quiet"]).json()
    own = chat(server, keys["quiet"], **{"x-tier": "batch"})
    assert own.headers["X-Roundhouse-Class"] == "batch"
    stream = chat(server, keys["quiet"], stream=True, service_tier="flex").text
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    assert {chunk["service_tier"] for chunk in chunks} == {"flex"}
    body = {"model": "starter-chat", "input": "boats", "max_output_tokens": 4, "service_tier": "priority"}
    response = server.http.post("/v1/responses", json=body, headers={"x-api-key": keys["urgent"]})
    assert response.json()["service_tier"] == "priority", response.text
    message = {"model": "starter-chat", "messages": [{"role": "user", "content": "boats"}], "max_tokens": 4}
    stated = server.http.post(
        "/v1/messages", json={**message, "service_tier": "standard_only"}, headers={"x-api-key": keys["urgent"]}
    )
    assert stated.json()["usage"]["service_tier"] == "standard", stated.text
    for wrong in ({"service_tier": "gold"}, {"service_tier": 5}, {"x-tier": "gold"}, {"priority": -1}):
        refused = chat(server, keys["urgent"], **wrong)
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["param"] == next(iter(wrong))


def test_the_pool_is_reported_and_a_long_prompt_takes_no_reserved_turn(shared: tuple[Server, dict[str, str]]) -> None:
    server, keys = shared
    assert chat(server, keys["quiet"]).headers["X-Roundhouse-Pool"] == "fast"
    assert chat(server, keys["quiet"], words=700, tokens=2).headers["X-Roundhouse-Pool"] == "long"
    assert "X-Roundhouse-Pool" not in chat(server, keys["reports"]).headers


def test_a_deadline_ends_a_late_answer_and_must_be_valid(shared: tuple[Server, dict[str, str]]) -> None:
    server, keys = shared

    def within(seconds: str, **more: Any) -> httpx.Response:
        return chat(server, keys["quiet"], headers={"X-Request-Timeout": seconds}, **more)

    def late_answer() -> httpx.Response | None:
        """Return an answer that was late. None: a busy server refused the request, as its deadline had passed."""
        answer = within("0.2", tokens=400)
        return None if answer.status_code == 429 else answer

    late = eventually(late_answer)
    assert late is not None
    assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded"), late.text
    for wrong in ("0", "-1", "soon", "nan", "1e9"):
        refused = within(wrong)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "X-Request-Timeout")
    usual = chat(server, keys["quiet"], headers={"x-stainless-read-timeout": "600"})
    assert usual.status_code == 200
    headers = {"x-api-key": keys["quiet"]}
    assert server.http.post("/v1/models/starter-chat/unload", headers=headers).status_code == 200
    hurried = within("0.3")  # estimates of a load are never below a second
    assert (hurried.status_code, hurried.json()["error"]["code"]) == (429, "deadline_unreachable"), hurried.text
    assert 1 <= int(hurried.headers["Retry-After"]) <= 60
    assert chat(server, keys["quiet"]).status_code == 200
