"""Limits on the real server: a hundred requests race for one limit, and a kill does not reset a window."""

import threading
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest
import yaml

from tests.eventually import eventually
from tests.system.serving import STARTER, Server
from tests.system.tenants.test_keys import EMBED

pytestmark = pytest.mark.real
CAP = 20
"""Requests per minute: one more every three seconds."""
RESERVED, USED = 7, 3
"""Tokens of a request. Reserved: one for each letter, and for the text's begin and end. Used: the model's count."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server on which a token costs a millionth. The last test kills it."""
    folder = tmp_path_factory.mktemp("limits")
    recipe = yaml.safe_load((STARTER / "starter-embed.yaml").read_text()) | {"price": {"input": 1.0}}
    (folder / "starter-embed.yaml").write_text(yaml.safe_dump(recipe))
    found = Server(folder / "a" / "data", [folder / "starter-embed.yaml"], "--slots", "1")
    loaded = found.wait_ready().http.post("/v1/models/starter-embed/load")
    assert loaded.status_code == 200, loaded.text  # a slow load takes longer than clients wait
    yield found
    found.close()


def limited(server: Server, team: str, kind: str, amount: str) -> str:
    """Return the key of a new team whose limit is in effect. It is about noon there, so no day ends during a test."""
    server.command("teams", "create", team, "--timezone", f"Etc/GMT{time.gmtime().tm_hour - 12:+d}")
    server.command("limits", "set", kind, amount, "--team", team)
    for _ in range(2):  # when the server knows the second key, it knows everything that came with the first
        key: str = server.command("keys", "create", "--team", team, "--scopes", "infer,models")["value"]
        headers = {"Authorization": f"Bearer {key}"}
        server.wait_closed()
        eventually(lambda displayed=headers: server.http.get("/v1/models", headers=displayed).status_code == 200)  # type: ignore[misc]
    return key


def race(server: Server, key: str, requests: int) -> list[httpx.Response]:
    found: list[httpx.Response] = []

    headers, limits = {"Authorization": f"Bearer {key}"}, httpx.Limits(max_connections=None)
    with httpx.Client(base_url=server.url, headers=headers, limits=limits, timeout=600) as client:

        def one() -> None:
            found.append(client.post("/v1/embeddings", json=EMBED))

        threads = [threading.Thread(target=one) for _ in range(requests)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found


def used(answers: list[httpx.Response]) -> int:
    """Return the tokens of the admitted requests."""
    return sum(answer.json()["usage"]["total_tokens"] for answer in answers if answer.status_code == 200)


def test_a_hundred_spend_no_more_than_a_day_has(server: Server) -> None:
    """The limit is 30 millionths, which is enough for at least four requests."""
    answers = race(server, limited(server, "money", "spend_per_day", "0.000030"), 100)
    assert {answer.status_code for answer in answers} == {200, 429}
    assert 30 // RESERVED * USED <= used(answers) <= 30
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["error"]["code"] == "project_spend_limit_exceeded"
    assert refused.headers["x-should-retry"] == "false"


def test_a_hundred_use_no_more_tokens_than_a_minute_has(server: Server) -> None:
    key, began = limited(server, "tokens", "tokens_per_minute", "70"), time.monotonic()
    answers = race(server, key, 100)
    assert {answer.status_code for answer in answers} == {200, 429}
    assert 70 // RESERVED * USED <= used(answers) <= 70 * (1 + (time.monotonic() - began) / 60)
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert (refused.json()["error"]["type"], refused.headers["x-ratelimit-limit-tokens"]) == ("tokens", "70")
    assert 1 <= int(refused.headers["retry-after"]) <= 60


def test_never_more_than_the_cap_also_after_a_kill(server: Server) -> None:
    key = limited(server, "search", "requests_per_minute", str(CAP))
    began = time.monotonic()
    answers = race(server, key, 100)
    let_in = sum(answer.status_code == 200 for answer in answers)
    assert {answer.status_code for answer in answers} == {200, 429}
    assert CAP <= let_in <= CAP * (1 + (time.monotonic() - began) / 60)
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    status = server.http.get("/v1/status", headers={"Authorization": f"Bearer {key}"})
    psutil.Process(status.json()["pid"]).kill()
    server.process.wait(600)
    again = Server(server.data, [STARTER / "starter-embed.yaml"], "--slots", "1").wait_ready()
    try:
        let_in += sum(answer.status_code == 200 for answer in race(again, key, 40))
        assert let_in <= CAP * (1 + (time.monotonic() - began) / 60) + 1, "no second window"
    finally:
        again.close()
