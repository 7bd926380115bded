"""PostgreSQL stands still while the server runs, as on a hanging disk. The kernel of its machine still answers."""

import threading
from pathlib import Path

import httpx
import pytest

from tests.postgres import postgres, programs, standing_still
from tests.system.serving import STARTER, Server

pytestmark = [pytest.mark.real, pytest.mark.skipif(programs() is None, reason="PostgreSQL is not installed")]
EMBED = {"model": "starter-embed", "input": "hello"}


def test_callers_get_an_error_and_others_do_not_wait(tmp_path: Path) -> None:
    with postgres() as url:
        data = tmp_path / "a" / "data"
        with Server(data, [STARTER / "starter-embed.yaml"], "--slots", "1", "--database", url).wait_ready() as server:
            assert server.http.post("/v1/embeddings", json=EMBED).status_code == 200
            answers: dict[str, httpx.Response] = {}

            def ask(method: str, path: str, body: object = None) -> threading.Thread:
                def chat() -> None:
                    with httpx.Client(base_url=server.url, timeout=600) as client:
                        answers[path] = client.request(method, path, json=body)

                thread = threading.Thread(target=chat)
                thread.start()
                return thread

            with standing_still(url):
                asking = [
                    ask("PUT", "/v1/models/starter-embed/pin"),
                    ask("PUT", "/v1/models/starter-embed/aliases/searching"),
                    ask("POST", "/v1/organization/projects", {"name": "search"}),
                    ask("POST", "/v1/embeddings", EMBED),
                ]
                while any(thread.is_alive() for thread in asking):
                    asking[0].join(0.2)
                    for path in ("/health/live", "/v1/models", "/v1/adapters", "/v1/routers"):
                        assert server.http.get(path).status_code == 200, path
                    assert server.http.get("/health/ready").status_code == 200, "models answer"
                answer = answers.pop("/v1/embeddings")
                assert answer.status_code == 200, "without keys and limits its row is no one's bill"
                for path, answer in answers.items():
                    assert answer.status_code == 503, (path, answer.text)
                    assert int(answer.headers["retry-after"]) > 0, path
            assert server.http.put("/v1/models/starter-embed/pin").status_code == 200
            assert server.http.post("/v1/embeddings", json=EMBED).status_code == 200
            assert server.model("starter-embed")["pinned"]
            assert server.http.get("/health/ready").status_code == 200
            assert server.stop() == 0
