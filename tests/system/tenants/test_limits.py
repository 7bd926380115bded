"""Limits on the real server: a hundred that race for one cap, a client that waits, and a window that a kill does not
open again.
"""

import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.eventually import eventually
from tests.system.serving import STARTER, Server
from tests.system.tenants.test_keys import EMBED, keys

pytestmark = pytest.mark.real
CAP = 20
"""A minute: one more every three seconds."""


def race(server: Server, key: str, requests: int) -> list[httpx.Response]:
    found: list[httpx.Response] = []

    def one() -> None:
        headers = {"Authorization": f"Bearer {key}"}
        found.append(httpx.post(f"{server.url}/v1/embeddings", json=EMBED, headers=headers, timeout=600))

    threads = [threading.Thread(target=one) for _ in range(requests)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_never_more_than_the_cap_also_after_a_kill(tmp_path: Path) -> None:
    server = Server(tmp_path / "a" / "data", [STARTER / "starter-embed.yaml"]).wait_ready()
    try:
        keys(server, "teams", "create", "search")
        key = keys(server, "keys", "create", "--team", "search", "--scopes", "infer,models")["value"]
        keys(server, "limits", "set", "requests_per_minute", str(CAP), "--team", "search")
        headers = {"Authorization": f"Bearer {key}"}

        def limited() -> bool:
            answer = server.http.post("/v1/embeddings", json=EMBED, headers=headers)
            return answer.headers.get("x-ratelimit-limit-requests") == str(CAP)

        eventually(limited)
        began = time.monotonic()
        answers = race(server, key, 100)
        let_in = sum(answer.status_code == 200 for answer in answers)
        assert {answer.status_code for answer in answers} == {200, 429}
        assert CAP - 4 <= let_in <= CAP * (1 + (time.monotonic() - began) / 60)
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        psutil.Process(server.http.get("/v1/status", headers=headers).json()["pid"]).kill()
        server.process.wait(600)
        again = Server(server.data, [STARTER / "starter-embed.yaml"]).wait_ready()
        try:
            let_in += sum(answer.status_code == 200 for answer in race(again, key, 40))
            assert let_in <= CAP * (1 + (time.monotonic() - began) / 60) + 1, "no second window"
        finally:
            again.close()
    finally:
        server.close()
