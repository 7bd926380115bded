"""Two replicas of a model on the halves of a CPU: of chat with twenty adapters, and a kill, and of speech."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
import yaml

from tests.eventually import PATIENCE, eventually
from tests.faults.traffic import ask
from tests.system.serving import STARTER, Server

pytestmark = pytest.mark.real
CHAT, SPEECH = "starter-chat", "starter-speech"
DEVICES = ("cpu:0", "cpu:1")
HELLO: Any = {"messages": [{"role": "user", "content": "hello world"}], "temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("replicas")
    recipes = folder / "recipes"
    recipes.mkdir()
    for name in (CHAT, SPEECH):
        recipe = yaml.safe_load((STARTER / f"{name}.yaml").read_text()) | {"replicas": {"least": 2}}
        (recipes / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    with Server(folder / "data", [recipes], "--slots", "4", device="cpu:2").wait_ready() as server:
        wait_for_both(server)
        yield server


def wait_for_both(server: Server, model: str = CHAT) -> list[dict[str, Any]]:
    def are_there() -> bool:
        return [one["state"] for one in server.model(model)["replicas"]] == ["ready", "ready"]

    eventually(are_there, server.tail, PATIENCE)
    found: list[dict[str, Any]] = server.model(model)["replicas"]
    return found


def say(client: openai.OpenAI, model: str) -> tuple[str, str]:
    """Return the answer, and the replica that gave it."""
    raw = client.chat.completions.with_raw_response.create(model=model, **HELLO)
    return raw.parse().choices[0].message.content or "", raw.headers["X-Roundhouse-Replica"].split()[0]


def test_right_answers_from_both_also_while_one_is_killed(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=PATIENCE)
    names = [CHAT, *(adapter["name"] for adapter in server.http.get("/v1/adapters").json()["data"])]
    assert len(names) == 21
    first = {name: say(client, name) for name in names}
    right = {name: answer for name, (answer, _) in first.items()}
    assert right["uppercase"] == "HELLO WORLD"
    assert {replica for _, replica in first.values()} == {"1", "2"}, "all adapters have one home"
    again = {name: say(client, name) for name in names}
    assert again == first  # a request goes where its adapter has a place
    raw = client.chat.completions.with_raw_response.create(model="uppercase", **HELLO)
    row = server.http.get(f"/v1/requests/{raw.headers['x-request-id']}").json()["record"]
    assert raw.headers["X-Roundhouse-Replica"] == f"{row['replica']} {row['replica_reason']}"
    assert row["replica_reason"] in ("adapter", "prompt")

    before = wait_for_both(server)
    assert {tuple(one["devices"]) for one in before} == {(name,) for name in DEVICES}
    assert before[0]["pid"] != before[1]["pid"]
    lost = next(one for one in before if one["number"] == 2)
    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(server.http.post, "/v1/chat/completions", json={**HELLO, "model": name})
                  for name in names * 3]  # fmt: skip
        os.killpg(lost["pid"], signal.SIGKILL)
        answers = [one.result() for one in asking]
    for name, answer in zip(names * 3, answers, strict=True):
        if answer.status_code == 200:
            assert answer.json()["choices"][0]["message"]["content"] == right[name]
        else:  # it was running there
            assert (answer.status_code, answer.json()["error"]["code"]) in [(502, "engine_died"), (503, "engine_died")]
    assert sum(answer.status_code == 200 for answer in answers) >= len(answers) // 2
    goes_on = {name: say(client, name)[0] for name in names}
    assert goes_on == right

    after = wait_for_both(server)
    assert [one["pid"] for one in after if one["number"] == 1] == [before[0]["pid"]]
    assert [one["deaths"] for one in after] == [0, 1]
    assert {name: say(client, name)[0] for name in names} == right
    assert server.metric("roundhouse_ready_replicas", model=CHAT) == 2

    def bytes_agree() -> bool:  # a heartbeat between the two answers may have measured more
        held = {one["devices"][0]: one["bytes"] for one in wait_for_both(server)}
        devices = server.http.get("/v1/status").json()["devices"]
        assert all(device["resident_bytes"] <= device["budget_bytes"] for device in devices)
        return held == {device["name"]: device["resident_bytes"] for device in devices}

    eventually(bytes_agree, server.tail)
    series = [
        line for line in server.http.get("/metrics").text.splitlines() if line.startswith("vllm:num_requests_runn")
    ]
    assert [line.partition('engine="')[2][0] for line in series] == ["0", "1"]


def test_an_unload_ends_both_and_a_request_brings_both_back(server: Server) -> None:
    """The model is the one whose library is imported fastest."""

    def unload() -> None:
        assert server.http.post(f"/v1/models/{SPEECH}/unload").status_code == 200
        model = server.model(SPEECH)
        assert {one["state"] for one in model["replicas"]} == {"absent"}
        assert (model["state"], model["bytes"]) == ("absent", 0)

    assert server.http.post(f"/v1/models/{SPEECH}/load").status_code == 200
    before = {one["pid"] for one in wait_for_both(server, SPEECH)}
    unload()
    answer = ask(server.http, SPEECH)
    assert answer.status_code == 200, answer.text
    assert not before & {one["pid"] for one in wait_for_both(server, SPEECH)}
    unload()  # its devices only have the chat model's replicas again
