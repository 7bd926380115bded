"""A team's prompts share no prefix cache with another's, in none of the dialects."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.eventually import eventually
from tests.system.serving import ROOT, STARTER, Server

pytestmark = pytest.mark.real
WORDS = "seven small boats lay in the green harbour of the old town "
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "chat " + WORDS * 6}], "max_tokens": 2},
    "/v1/completions": {"prompt": "completions " + WORDS * 6, "max_tokens": 2},
    "/v1/responses": {"input": "responses " + WORDS * 6, "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "messages " + WORDS * 6}], "max_tokens": 2},
}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str, str]]:
    server = Server(tmp_path_factory.mktemp("isolation") / "a" / "data", [STARTER / "starter-chat.yaml"])
    server.wait_ready()
    keys = []
    for team in ("search", "speech"):
        for command in (["teams", "create", team], ["keys", "create", "--team", team, "--scopes", "infer,models"]):
            told = [sys.executable, "-m", "runtime.cli.main", *command, "--data-dir", str(server.data), "--json"]
            found = json.loads(subprocess.run(told, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
        keys.append(found["value"])
    eventually(lambda: server.http.get("/v1/models", headers={"x-api-key": keys[-1]}).status_code == 200)
    yield server, keys[0], keys[1]
    server.close()


def cached(server: Server, key: str, path: str, **more: Any) -> float:
    """Tokens of a prompt that were found in the cache, by the server's own count."""
    headers = {"x-api-key": key}

    def count() -> float:
        text = server.http.get("/metrics", headers=headers).text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if 'kind="cached"' in line)

    before = count()
    answer = server.http.post(path, json={"model": "starter-chat", **ASKED[path], **more}, headers=headers)
    assert answer.status_code == 200, answer.text
    return count() - before


@pytest.mark.parametrize("path", ASKED)
def test_another_teams_prompt_is_not_in_the_cache(keyed: tuple[Server, str, str], path: str) -> None:
    server, search, speech = keyed
    assert cached(server, search, path) == 0
    assert cached(server, speech, path) == 0
    assert cached(server, search, path) > 0
    assert cached(server, speech, path) > 0
    if path != "/v1/messages":  # the others take a salt of the client's own
        assert cached(server, search, path, cache_salt="mine") == 0
        assert cached(server, search, path, cache_salt="mine") > 0
        assert cached(server, speech, path, cache_salt="mine") == 0
