"""No team sees another's files and batches, and each line runs with the rights of the key that sent it."""

import json
from typing import Any

import anthropic
import openai
import pytest
from openai import OpenAI

from tests.eventually import PATIENCE, eventually
from tests.system.batches.test_openai import CHAT, FINAL, chat
from tests.system.serving import Server

pytestmark = pytest.mark.real


class Teams:
    """A server with keys; `payments` and `support` are clients of two teams."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.keys = [self._key(team) for team in ("payments", "support")]
        self.payments, self.support = (
            OpenAI(base_url=f"{server.url}/v1", api_key=key, timeout=PATIENCE, max_retries=0) for key in self.keys
        )
        self.wait_for(self.keys[-1])

    def wait_for(self, key: str) -> None:
        """Wait until the server knows the key."""
        headers = {"x-api-key": key}
        self.server.wait_closed()
        eventually(lambda: self.server.http.get("/v1/files", headers=headers).status_code == 200)

    def _key(self, team: str) -> str:
        self.server.command("teams", "create", team)
        return str(self.server.command("keys", "create", "--team", team, "--scopes", "infer,adapters")["value"])

    def batch(self, client: OpenAI, *rows: dict[str, Any]) -> Any:
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        return client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")

    def ended(self, client: OpenAI, id_: str) -> Any:
        """Wait until the batch has ended, and return it."""
        eventually(lambda: client.batches.retrieve(id_).status in FINAL, lambda: str(client.batches.retrieve(id_)))
        return client.batches.retrieve(id_)


@pytest.fixture(scope="module")
def teams(locked: Server) -> Teams:
    return Teams(locked)


def test_another_teams_files_and_batches_cannot_be_seen(teams: Teams) -> None:
    made = teams.batch(teams.payments, chat("a", "uppercase", "hello"), chat("b", "nobody", "hello"))
    done = teams.ended(teams.payments, made.id)
    other = teams.support
    assert list(other.files.list()) == []
    assert list(other.batches.list()) == []
    for call in (other.batches.retrieve, other.batches.cancel):
        with pytest.raises(openai.NotFoundError) as caught:
            call(made.id)
        assert caught.value.code == "batch_not_found"
    for id_ in (done.input_file_id, done.output_file_id, done.error_file_id):
        for call_ in (other.files.retrieve, other.files.content, other.files.delete):
            with pytest.raises(openai.NotFoundError) as unknown:
                call_(id_)
            assert unknown.value.code == "file_not_found"
    with pytest.raises(openai.NotFoundError):
        other.batches.create(input_file_id=done.input_file_id, endpoint=CHAT, completion_window="24h")
    assert len(teams.payments.files.content(done.output_file_id).text.splitlines()) == 1


def test_another_teams_message_batches_cannot_be_seen(teams: Teams) -> None:
    clients = [
        anthropic.Anthropic(base_url=teams.server.url, api_key=key, timeout=PATIENCE, max_retries=0).messages.batches
        for key in teams.keys
    ]
    params: Any = {"model": "uppercase", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}
    made = clients[0].create(requests=[{"custom_id": "a", "params": params}])
    eventually(lambda: clients[0].retrieve(made.id).processing_status == "ended")
    assert list(clients[1].list()) == []
    for call in (clients[1].retrieve, clients[1].results, clients[1].cancel, clients[1].delete):
        with pytest.raises(anthropic.NotFoundError):
            call(made.id)
    assert [one.result.type for one in clients[0].results(made.id)] == ["succeeded"]


def test_a_locked_server_refuses_batches_without_a_key(teams: Teams) -> None:
    for path in ("/v1/files", "/v1/batches", "/v1/messages/batches"):
        assert teams.server.http.get(path).status_code == 401
    for path in ("/v1/batch", "/v1/messages/batches", "/v1/batches"):
        assert teams.server.http.post(path, json={}).status_code == 401


def test_a_revoked_key_stops_its_batch(teams: Teams) -> None:
    """3,000 answers, most of 400 tokens, so that the batch cannot complete before its key is revoked."""
    made = teams.server.command("keys", "create", "--team", "payments", "--scopes", "infer")
    client = OpenAI(base_url=f"{teams.server.url}/v1", api_key=made["value"], timeout=PATIENCE, max_retries=0)
    teams.wait_for(made["value"])
    rows = [chat(f"id-{number}", "starter-chat", "tell me more", max_tokens=8) for number in range(10)]
    long = {"max_tokens": 400, "ignore_eos": True}
    rows += [chat(f"id-{number}", "starter-chat", "tell me more", **long) for number in range(10, 3000)]
    batch = teams.batch(client, *rows)
    eventually(lambda: client.batches.retrieve(batch.id).request_counts.completed > 0)
    teams.server.command("keys", "revoke", made["id"])
    done = teams.ended(teams.payments, batch.id)
    assert done.status == "cancelled"
    assert (done.errors.data[0].code, bool(done.errors.data[0].message)) == ("api_key_revoked", True)
    assert 0 < done.request_counts.completed < 3000
    errors = teams.payments.files.content(done.error_file_id).text.splitlines()
    assert json.loads(errors[-1])["error"]["code"] == "batch_cancelled"
    assert done.request_counts.completed + len(errors) == 3000
