"""A model on both halves of a CPU, on real vLLM, answers like one worker, with adapters, swaps and a death."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import yaml

from models.chat.vllm.cpu import shared_memory
from tests.eventually import eventually
from tests.system.serving import STARTER, Server, alive

pytestmark = pytest.mark.real
ADAPTERS = ("uppercase", "reverse-words", "rot13", "double-words")
PROMPTS = ("the quick brown fox", "seven small boats")
Answers = dict[tuple[str, str], str]
"""Adapter ('' for none) and prompt to the answer."""


def recipe() -> dict[str, object]:
    """Return a recipe of the starter model in two parts, with places for two of four adapters."""
    values = yaml.safe_load((STARTER / "starter-chat.yaml").read_text())
    adapters = [one for one in values["adapters"] if one["name"] in ADAPTERS]
    memory = {"kv_cache": "32MiB", "adapters": {"device": 2, "host": 4, "max_rank": 16}}
    return {**values, "id": "two", "aliases": [], "parallel": {"tensor": 2}, "memory": memory, "adapters": adapters}


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tensor")
    file = folder / "recipes.yaml"
    file.write_text(yaml.safe_dump(recipe()))
    with Server(folder / "data", [file], "--slots", "1", device="cpu:2").wait_ready() as found:
        yield found


@pytest.fixture(scope="module")
def expected(server: Server) -> Answers:
    """Return the answers of one worker."""
    return answers(server, "starter-chat", ADAPTERS)


def answer(server: Server, model: str, prompt: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 48}
    response = server.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def answers(server: Server, base: str, adapters: tuple[str, ...]) -> Answers:
    """Return answers to requests that are all made at the same time, so that batches mix the base and its adapters."""
    asks = [(name, prompt) for prompt in PROMPTS for name in ("", *adapters)]
    with ThreadPoolExecutor(len(asks)) as pool:
        texts = pool.map(lambda ask: answer(server, f"{base}:{ask[0]}" if ask[0] else base, ask[1]), asks)
        return dict(zip(asks, texts, strict=True))


def workers(server: Server) -> list[psutil.Process]:
    family = psutil.Process(server.model("two")["pid"]).children(recursive=True)
    return [one for one in family if one.cmdline() and one.cmdline()[0].startswith("VLLM::Worker")]


def test_two_workers_give_one_workers_answers(halved: Server, expected: Answers) -> None:
    assert expected["uppercase", PROMPTS[0]] == PROMPTS[0].upper()
    few = answers(halved, "two", ADAPTERS[:2])
    assert few == {one: expected[one] for one in few}
    assert answers(halved, "two", ADAPTERS) == expected  # more adapters than places, so that they are swapped


def test_each_device_holds_its_half(halved: Server) -> None:
    halved.http.post("/v1/models/two/load").raise_for_status()
    status = halved.http.get("/v1/status").json()
    (two,) = status["models"]
    assert two["devices"] == ["cpu:0", "cpu:1"]
    for device in status["devices"]:
        assert device["resident_bytes"] == pytest.approx(two["bytes"] / 2, abs=1)
    plan = halved.http.post("/v1/models/two/plan").json()
    assert (plan["verdict"], [room["device"] for room in plan["devices"]]) == ("resident", ["cpu:0", "cpu:1"])


def test_each_worker_has_cores_of_its_own(halved: Server) -> None:
    halved.http.post("/v1/models/two/load").raise_for_status()
    mine = os.sched_getaffinity(0)
    used = [set(worker.cpu_affinity() or ()) for worker in workers(halved)]
    assert len(used) == 2
    assert all(cores and cores <= mine for cores in used)
    if len(mine) > 1:
        assert not used[0] & used[1]


def test_workers_leave_no_names_of_shared_memory(halved: Server) -> None:
    """Their slot is killed in the end, so it could not remove the names then."""
    halved.http.post("/v1/models/two/load").raise_for_status()
    run_dir = Path(json.loads((halved.data / "server.json").read_text())["run_dir"])
    (group,) = run_dir.glob(f"tmp-*/{shared_memory.PREFIX}*")
    assert not list(shared_memory.SHARED.glob(f"{group.name}*"))
    assert [one.path for one in workers(halved)[0].memory_maps() if group.name in one.path]


def test_a_worker_that_is_killed_takes_its_engine_along_and_right_answers_come_back(
    halved: Server, expected: Answers
) -> None:
    """Each worker has half of every adapter, so if one lacked it, no answer would be right."""
    halved.http.post("/v1/models/two/load").raise_for_status()
    deaths = halved.model("two")["deaths"]
    victim, other = workers(halved)
    os.kill(victim.pid, signal.SIGKILL)
    eventually(lambda: halved.model("two")["deaths"] > deaths, halved.tail)
    halved.wait_state("two", "ready")
    assert alive([other]) == []
    assert answers(halved, "two", ADAPTERS) == expected
