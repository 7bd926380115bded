"""Two models that differ in their weights only, and room for one: they take over each other's engine, on the real one.

SWAP_REQUESTS=400 runs a longer form of the traffic.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.contract import chat_fixtures
from tests.faults.tiny import RECIPE
from tests.system.serving import Server

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]
REQUESTS = int(os.environ.get("SWAP_REQUESTS", "24"))
CLIENTS = 4
MODELS = ("one", "two")
THIRD = "three"
"""Has the weights of the second one."""
ASKED = ("one", "two", "one:mine", "two:mine")
PROMPT = "a b c d e f g h " * 20
"""More than one block of the prefix cache."""
Answer = tuple[Any, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("twins")
    recipes = []
    for seed, name in enumerate((*MODELS, THIRD)):
        chat_fixtures.write_base(folder / name, seed=min(seed, 1))
        chat_fixtures.write_adapter(folder / f"mine-{name}", 300 + seed)
        recipes.append(folder / f"{name}.yaml")
        recipes[-1].write_text(RECIPE.format(base=folder / name, host=8).replace("id: tiny", f"id: {name}"))
    options = ("--slots", "2", "--device-memory", "950MiB", "--no-prewarm", "--hung-after", "120")
    server = Server(folder / "data", recipes, *options)
    try:
        server.wait_ready()
        for name in MODELS:
            source = {"path": str(folder / f"mine-{name}")}
            made = server.http.post("/v1/adapters", json={"name": "mine", "base": name, "source": source})
            assert made.status_code == 201, made.text
        yield server
    finally:
        server.close()


def ask(http: httpx.Client, name: str) -> Answer:
    """The words and every logprob, to the bit; and how long the prompt was."""
    body = {
        "model": name, "prompt": PROMPT, "max_tokens": 16, "temperature": 0, "ignore_eos": True, "logprobs": 5,
        "return_token_ids": True,
    }  # fmt: skip
    answer = http.post("/v1/completions", json=body, timeout=600)
    assert answer.status_code == 200, answer.text
    assert answer.headers["X-Roundhouse-Model"].startswith(f"{name.partition(':')[0]}@")
    found = answer.json()
    assert found["model"] == name
    return found["choices"], found["usage"]["prompt_tokens"]


def cached(server: Server) -> float:
    """Tokens of prompts that were found in a prefix cache so far."""
    return server.metric("roundhouse_tokens_total", kind="cached")


@pytest.fixture(scope="module")
def fresh(server: Server) -> dict[str, Answer]:
    """What each answers first, in a process that never had another model."""
    found: dict[str, Answer] = {}
    for name in MODELS:
        for asked in (name, f"{name}:mine"):
            found[asked] = ask(server.http, asked)
        assert server.http.post(f"/v1/models/{name}/unload", timeout=120).status_code == 200
    assert len({str(answer) for answer in found.values()}) == len(ASKED)
    return found


def test_they_answer_as_in_processes_of_their_own(server: Server, fresh: dict[str, Answer]) -> None:
    ask(server.http, "one")
    pid, loads = server.slot_pid("one"), server.metric("roundhouse_load_seconds_count")
    for turn, name in enumerate(("two", "one", "two", "one")):
        other = MODELS[name == "one"]
        plan = server.http.post(f"/v1/models/{name}/plan").json()
        while plan["verdict"] == "wait":  # its min_resident
            time.sleep(0.2)
            plan = server.http.post(f"/v1/models/{name}/plan").json()
        assert [(victim["model"], victim["action"]) for victim in plan["victims"]] == [(other, "swap")], plan
        for asked in (name, f"{name}:mine"):
            before = cached(server)
            assert ask(server.http, asked) == fresh[asked], asked
            assert cached(server) == before, "a prefix of another model was found"
        assert ask(server.http, name) == fresh[name]
        assert cached(server) > before
        assert server.slot_pid(name) == pid
        assert (server.model(other)["state"], server.model(other)["bytes"]) == ("absent", 0)
        assert server.metric("roundhouse_swap_seconds_count") == turn + 1
        assert server.metric("roundhouse_evictions_total", reason="swapped") == turn + 1
    assert server.metric("roundhouse_load_seconds_count") == loads, "nobody was loaded"
    assert server.metric("roundhouse_swap_failures_total") == 0


def test_traffic_on_both_gets_no_other_models_answer(server: Server, fresh: dict[str, Answer]) -> None:
    rng, lock, wrong = random.Random(3), threading.Lock(), list[str]()
    todo = iter(rng.choices(ASKED, k=REQUESTS))
    before = server.metric("roundhouse_swap_seconds_count")

    def client() -> None:
        with httpx.Client(base_url=server.url) as http:
            while True:
                with lock:
                    asked = next(todo, None)
                if asked is None:
                    return
                try:
                    tokens = [choice["token_ids"] for choice in ask(http, asked)[0]]
                    if tokens != [choice["token_ids"] for choice in fresh[asked][0]]:  # a batch moves the last bits
                        wrong.append(asked)
                except Exception as error:
                    wrong.append(f"{asked}: {error!r}")

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert server.metric("roundhouse_swap_seconds_count") > before
    assert server.metric("roundhouse_swap_failures_total") == 0
    assert sum(server.metric("roundhouse_engine_deaths_total", model=name) for name in MODELS) == 0


def core(server: Server, model: str) -> int:
    (found,) = psutil.Process(server.slot_pid(model)).children()
    return int(found.pid)


def slot(server: Server, model: str) -> int:
    return server.slot_pid(model)


@pytest.mark.parametrize(("wanted", "whom"), [("two", core), (THIRD, slot)])
def test_one_that_is_killed_in_a_swap_is_loaded(
    server: Server, fresh: dict[str, Answer], wanted: str, whom: Callable[[Server, str], int]
) -> None:
    """The last ones here: a model whose swap failed does not swap again."""
    held = "one"
    assert ask(server.http, held) == fresh[held]
    failures, victim = server.metric("roundhouse_swap_failures_total"), whom(server, held)
    os.kill(core(server, held), signal.SIGSTOP)  # so that the swap is under way when it dies
    found: list[Answer] = []
    asking = threading.Thread(target=lambda: found.append(ask(httpx.Client(base_url=server.url), wanted)))
    asking.start()
    deadline = time.monotonic() + 120
    while (server.model(wanted)["progress"] or {}).get("phase") != "weights":
        assert time.monotonic() < deadline, server.tail()
        time.sleep(0.02)
    assert server.model(held)["state"] == "absent"
    os.kill(victim, signal.SIGKILL)
    asking.join(600)
    assert found == [fresh["two"]]
    assert server.metric("roundhouse_swap_failures_total") == failures + 1
    assert server.metric("roundhouse_load_failures_total") == 0
    assert not psutil.pid_exists(victim) or psutil.Process(victim).status() == psutil.STATUS_ZOMBIE
    for asked in (held, f"{held}:mine"):
        assert ask(server.http, asked) == fresh[asked], asked
