"""Keys on the real server: the first one closes it, each API's client sends it, a revoked one stops working."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import anthropic
import httpx
import openai
import psutil
import pytest

from tests.eventually import eventually
from tests.system.serving import STARTER, Server

pytestmark = pytest.mark.real
EMBED = {"model": "starter-embed", "input": "hello"}
SINCE = "2026-01-01"
"""Start of reports: by default they begin today, and a day may end while a test runs."""


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("keys") / "a" / "data", [STARTER / "starter-embed.yaml"], "--slots", "1")
    yield server.wait_ready()
    server.close()


def used_by(server: Server) -> list[tuple[str, str, int]]:
    """Return teams, models and numbers of requests. The API flushes the ledger before it answers."""
    found = server.http.get("/v1/usage", params={"group_by": "team,model", "from": SINCE}).json()["data"]
    return [(row["team_id"], row["model"], row["requests"]) for row in found]


def status(server: Server, key: str = "") -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return server.http.post("/v1/embeddings", json=EMBED, headers=headers).status_code


def test_from_open_to_closed_and_a_key_from_its_making_to_its_end(closed: Server) -> None:
    assert status(closed) == 200
    assert status(closed, "none") == 200
    assert used_by(closed) == [("default", "starter-embed", 2)], "an open server counts, too"
    page = closed.http.get("/console/usage", headers={"Accept": "text/html"}).text
    assert "starter-embed" in page
    [row] = closed.command("usage", "report", "--from", SINCE)["data"]
    assert (row["team"], row["requests"]) == ("default", 2)
    closed.command("teams", "create", "search")
    made = closed.command("keys", "create", "--team", "search", "--scopes", "infer")
    key = made["value"]
    eventually(lambda: status(closed) == 401)
    assert status(closed, key) == 200
    assert status(closed, key[:-1] + ("y" if key.endswith("x") else "x")) == 401
    assert closed.http.get("/health/ready").status_code == 200

    with openai.OpenAI(base_url=f"{closed.url}/v1", api_key=key, max_retries=0) as client:
        assert client.embeddings.create(model="starter-embed", input="hello").data[0].embedding
        with pytest.raises(openai.PermissionDeniedError, match="scope 'models'"):
            client.post("/models/starter-embed/unload", cast_to=httpx.Response)
    with (
        openai.OpenAI(base_url=f"{closed.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        client.models.list()
    assert refused.value.code == "invalid_api_key"
    message: Any = {"model": "starter-embed", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    for displayed, error, text in (
        ("none", anthropic.AuthenticationError, "key"),
        (key, anthropic.BadRequestError, "made for embed"),
    ):
        with (
            anthropic.Anthropic(base_url=closed.url, api_key=displayed, max_retries=0) as other,
            pytest.raises(error, match=text),
        ):
            other.messages.create(**message)

    successor = closed.command("keys", "rotate", made["id"], "--grace", "1d")["value"]
    eventually(lambda: status(closed, successor) == 200)
    assert status(closed, key) == 200
    closed.command("keys", "revoke", made["id"])
    eventually(lambda: status(closed, key) == 401)
    assert status(closed, successor) == 200
    _is_nowhere(closed, key, successor)


def test_a_kill_loses_nothing_from_the_ledger_that_clients_got(closed: Server) -> None:
    """Every complete answer is a row with its tokens. Running ones are interrupted, and no row stays open."""
    closed.command("teams", "create", "counted")
    key = closed.command("keys", "create", "--team", "counted", "--scopes", "infer,usage")["value"]
    operator = {"x-api-key": closed.command("keys", "create", "--scopes", "models")["value"]}
    closed.wait_closed()
    eventually(lambda: closed.http.get("/v1/status", headers=operator).status_code == 200)
    headers = {"Authorization": f"Bearer {key}"}

    def used() -> dict[str, Any]:
        (reported,) = closed.command("usage", "report", "--team", "counted", "--by", "", "--from", SINCE)["data"]
        return dict(reported)

    before, lock = used(), threading.Lock()
    got: list[int] = []
    stop = threading.Event()

    def client(number: int) -> None:
        with httpx.Client(base_url=closed.url, headers=headers, timeout=600) as http, suppress(httpx.TransportError):
            while not stop.is_set():
                text = "word " * (1 + number)
                answer = http.post("/v1/embeddings", json={"model": "starter-embed", "input": text})
                if answer.status_code == 200:
                    with lock:
                        got.append(answer.json()["usage"]["prompt_tokens"])

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(got) > 200)
    psutil.Process(closed.http.get("/v1/status", headers=operator).json()["pid"]).kill()
    stop.set()
    for thread in threads:
        thread.join()
    closed.process.wait(600)
    again = Server(closed.data, [STARTER / "starter-embed.yaml"], "--slots", "1").wait_ready()
    try:
        after = used()
        settled = after["requests"] - after["interrupted"] - before["requests"]
        more = settled - len(got)
        assert 0 <= more <= len(threads), "ended, and the server was killed before the client had the answer"
        tokens = after["input"] - before["input"]
        assert tokens == sum(got) if more == 0 else tokens > sum(got)
        reported = closed.command("usage", "reconcile")
        assert (reported["differences"], reported["open"]) == ([], 0)
        found = again.http.get("/v1/usage", params={"from": SINCE}, headers=headers).json()
        assert found["data"][0]["requests"] == after["requests"]
    finally:
        again.close()


def _is_nowhere(server: Server, *texts: str) -> None:
    """Check that the texts are not in the log, the metrics, a command line or the data directory."""
    operator = server.command("keys", "create", "--scopes", "models")["value"]
    headers = {"x-api-key": operator}
    eventually(lambda: server.http.get("/metrics", headers=headers).status_code == 200)
    reported = server.http.get("/metrics", headers=headers).text + server.http.get("/v1/status", headers=headers).text
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    files = [path.read_bytes() for path in server.data.rglob("*") if path.is_file()]
    for text in (*texts, operator):
        body = text[12:55]
        assert body not in reported
        assert not any(body in line for line in lines)
        assert not any(body.encode() in data for data in files), "not in the database either"
