"""Adapters that are wrong, lost, or registered during a fault cause clear errors and disturb no other request.

Real server, real engine, real HTTP. Other streams run at the same time, and their greedy tokens must equal those of an
undisturbed run.
"""

import contextlib
import io
import os
import shutil
import signal
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.eventually import eventually
from tests.faults.tiny import Bystanders, Tiny, archive, same_as_alone, undisturbed
from tests.unit.adapters.fake_hub import FakeHub
from tests.unit.adapters.zoo import ZOO, write_zoo

pytestmark = pytest.mark.real
WATCHED = ["tiny", "by-1", "by-2"]
"""Models of the streams in the background: the base and two adapters."""


@pytest.fixture(scope="module")
def alone(tiny: Tiny) -> dict[str, list[int]]:
    """Return these streams' tokens while nothing else happens."""
    tiny.add("by-1", 1)
    tiny.add("by-2", 2)
    return undisturbed(tiny, WATCHED)


def with_text(tiny: Tiny, seeds: range) -> tuple[int, str, list[int]]:
    """Find a content whose greedy answer to 'hello' begins with whole letters; returns its seed, the letters, 8 tokens.

    No version of it remains, so the next one registered with it is the only one.
    """
    for seed in seeds:
        tiny.add("trial", seed)
        answer = tiny.ask("trial")
        assert answer.status_code == 200, answer.text
        assert tiny.http.delete("/v1/adapters/trial").status_code == 200
        choice = answer.json()["choices"][0]
        if text := str(choice["message"]["content"]).partition("\ufffd")[0]:
            return seed, text, choice["token_ids"]
    raise AssertionError("no content has text")


def test_every_bad_adapter_is_refused_with_its_reason_and_no_one_notices(
    tiny: Tiny, alone: dict[str, list[int]], tmp_path: Path
) -> None:
    zoo = write_zoo(tmp_path)
    assert len(zoo) >= 30
    assert len({tuple(tokens) for tokens in alone.values()}) == 3
    before = tiny.http.get("/v1/adapters").json()["data"]
    with Bystanders(tiny, WATCHED) as seen:
        for bad in ZOO:
            answer = tiny.register(f"zoo-{bad.name}", zoo[bad.name])
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (422, "unfit_adapter"), (bad.name, answer.text)
            reported = error["faults"]
            assert any(all(word in fault for word in bad.words) for fault in reported), (bad.name, reported)
            assert tiny.ask(f"zoo-{bad.name}").status_code == 404
    same_as_alone(seen, alone)
    after = tiny.http.get("/v1/adapters").json()["data"]
    assert [adapter["digest"] for adapter in after] == [adapter["digest"] for adapter in before]
    assert tiny.server.model("tiny")["deaths"] == 0


def test_a_right_probe_is_requested_and_costs_no_one_anything(tiny: Tiny, alone: dict[str, list[int]]) -> None:
    seed, text, expected = with_text(tiny, range(100, 120))
    counted = tiny.server.metric("roundhouse_tokens_total", model="tiny")
    requested = tiny.server.metric("roundhouse_requests_total", model="tiny")
    tiny.add("right", seed, probe={"prompt": "hello", "expected": text})
    assert tiny.show("right")["probe"]["state"] == "unchecked"
    first = tiny.ask("right")
    assert first.json()["choices"][0]["token_ids"] == expected
    probe = tiny.show("right")["probe"]
    assert (probe["state"], probe["expected"]) == ("passed", text)
    assert probe["answered"].startswith(text)
    usage = first.json()["usage"]
    assert tiny.server.metric("roundhouse_tokens_total", model="tiny") - counted == usage["total_tokens"]
    assert tiny.server.metric("roundhouse_requests_total", model="tiny") - requested == 1
    with Bystanders(tiny, WATCHED) as seen:
        for number in range(6):  # lose and regain its place, with a probe each time
            for filler in range(4):
                tiny.add(f"filler-{filler}", 30 + filler)
                assert tiny.ask(f"filler-{filler}", 1).status_code == 200
            assert tiny.tokens("right") == expected, number
    same_as_alone(seen, alone)
    assert tiny.server.metric("roundhouse_adapter_probes_total", outcome="passed") >= 2
    assert tiny.server.metric("roundhouse_adapter_probes_total", outcome="failed") == 0


def test_a_wrong_probe_takes_the_adapter_out_and_never_answers(tiny: Tiny, alone: dict[str, list[int]]) -> None:
    seed, text, expected = with_text(tiny, range(120, 140))
    tiny.add("wrong", seed, probe={"prompt": "hello", "expected": "something else"})
    with Bystanders(tiny, WATCHED) as seen, ThreadPoolExecutor(4) as pool:
        for refused in [tiny.ask("wrong"), *pool.map(lambda _: tiny.ask("wrong"), range(4))]:
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (503, "adapter_probe_failed"), refused.text
            assert "'something else'" in error["message"]
            assert int(refused.headers["retry-after"]) >= 1
            assert "choices" not in refused.json()
    same_as_alone(seen, alone)
    found = tiny.show("wrong")
    assert (found["probe"]["state"], found["tier"]) == ("failed", "disk")
    assert tiny.server.metric("roundhouse_adapter_probes_total", outcome="failed") == 1
    log = tiny.server.log.read_text()
    assert found["digest"] in log
    assert "something else" not in log
    assert found["probe"]["answered"][:1] == text[:1], "asked only until it differs"
    corrected = tiny.add("wrong", seed, probe={"prompt": "hello", "expected": text})
    assert (corrected["new"], corrected["probe"]["state"]) == (False, "unchecked")
    assert tiny.tokens("wrong") == expected
    assert tiny.show("wrong")["probe"]["state"] == "passed"


def test_files_deleted_under_a_registered_adapter(tiny: Tiny, alone: dict[str, list[int]]) -> None:
    """The adapter's own requests get a clear error, and registering the same content again repairs it."""
    tiny.add("lost", 3)
    expected = tiny.tokens("lost")
    stored = tiny.server.data / "store" / tiny.show("lost")["digest"].removeprefix("sha256:")
    shutil.rmtree(stored)
    assert tiny.tokens("lost") == expected, "it is in its place: files are not needed"
    tiny.add("never-used", 4)
    unused = tiny.server.data / "store" / tiny.show("never-used")["digest"].removeprefix("sha256:")
    with Bystanders(tiny, WATCHED) as seen:
        (unused / "adapter_model.safetensors").unlink()
        for _ in range(2):
            gone = tiny.ask("never-used")
            assert gone.json()["error"]["code"] == "adapter_failed", gone.text
            assert "Register the adapter again" in gone.json()["error"]["message"]
        half = next(iter((tiny.content(4)).glob("*.safetensors")))
        (unused / "adapter_model.safetensors").write_bytes(half.read_bytes()[:1000])
        assert tiny.ask("never-used").json()["error"]["code"] == "adapter_failed"
    same_as_alone(seen, alone)
    assert tiny.add("never-used", 4)["new"] is False
    assert tiny.add("lost", 3)["new"] is False
    assert (stored / "adapter_model.safetensors").is_file()
    tiny.add("another-name", 4)
    assert tiny.tokens("never-used") == tiny.tokens("another-name")
    assert tiny.server.model("tiny")["deaths"] == 0


def checkers(tiny: Tiny) -> list[psutil.Process]:
    found = tiny.server.gateway().children()
    return [process for process in found if "adapters.check_process" in process.cmdline()]


def test_killed_checking_processes_lose_their_registrations_and_no_more(
    tiny: Tiny, alone: dict[str, list[int]]
) -> None:
    processes = checkers(tiny)
    assert len(processes) == 2
    before = [adapter["name"] for adapter in tiny.http.get("/v1/adapters").json()["data"]]
    with Bystanders(tiny, WATCHED) as seen, ThreadPoolExecutor(2) as pool:
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        running = [pool.submit(tiny.register, f"unlucky-{seed}", tiny.content(seed)) for seed in (5, 6)]
        eventually(lambda: len(list((tiny.server.data / "store").glob("tmp-*"))) == 2)
        for process in processes:
            process.kill()
        for answer in (future.result() for future in running):
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "check_failed"), answer.text
            assert "Nothing was registered" in answer.json()["error"]["message"]
        assert [adapter["name"] for adapter in tiny.http.get("/v1/adapters").json()["data"]] == before
        assert tiny.add("unlucky-5", 5)["new"] is True
        assert tiny.tokens("unlucky-5")
    same_as_alone(seen, alone)
    assert not list((tiny.server.data / "store").glob("tmp-*"))


def test_checking_processes_do_not_hold_the_servers_port(tiny: Tiny) -> None:
    found = checkers(tiny)
    assert found
    assert not [process.pid for process in found if process.net_connections()]


def test_a_full_disk(tiny: Tiny, alone: dict[str, list[int]], small_disk: tuple[Path, bool]) -> None:
    if not small_disk[1]:
        pytest.skip("no right to mount a small disk")
    kept = tiny.add("kept", 7, alias="prod")
    expected = tiny.tokens("kept@prod")
    before = tiny.http.get("/v1/adapters").json()["data"]
    packed, filler = archive(tiny.content(8)), tiny.server.data / "filler"
    with Bystanders(tiny, WATCHED) as seen:
        try:
            with open(filler, "wb", buffering=0) as file:
                for size in (1 << 20, 4096, 1):
                    fill(file, size)
            assert shutil.disk_usage(tiny.server.data).free == 0
            for answer in (tiny.register("late", tiny.content(8)), tiny.upload("late", packed)):
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_full"), answer.text
                assert "full" in answer.json()["error"]["message"]
            assert tiny.tokens("kept@prod") == expected
            answers = [tiny.http.put("/v1/adapters/kept/aliases/next", json={"version": "v1"}) for _ in range(3)]
            assert {answer.status_code for answer in answers} <= {200, 503}, [answer.text for answer in answers]
        finally:
            filler.unlink(missing_ok=True)
        for name, answer in (
            ("late", tiny.register("late", tiny.content(8))),
            ("later", tiny.upload("later", packed)),
        ):
            assert answer.status_code == 201, answer.text
            assert len(tiny.tokens(name)) == 8
    same_as_alone(seen, alone)
    after = {adapter["name"]: adapter["digest"] for adapter in tiny.http.get("/v1/adapters").json()["data"]}
    assert {adapter["name"]: adapter["digest"] for adapter in before}.items() <= after.items()
    assert after["late"] == after["later"]
    assert tiny.show("kept")["digest"] == kept["digest"]
    assert not list((tiny.server.data / "store").glob("tmp-*"))
    assert not list((tiny.server.data / "incoming").iterdir())


def test_a_flood_of_each_kind_of_upload_leaves_room_for_requests(tiny: Tiny, small_disk: tuple[Path, bool]) -> None:
    if not small_disk[1]:
        pytest.skip("no right to mount a small disk")
    tiny.add("kept", 7, alias="prod")

    def file(purpose: str, size: int) -> httpx.Response:
        return tiny.http.post("/v1/files", files={"file": ("a.jsonl", b"1" * size)}, data={"purpose": purpose})

    kept = []
    for size in (1 << 20, 1 << 16, 1 << 10):
        while (answer := file("user_data", size)).status_code == 200:
            kept.append(answer.json()["id"])
    assert len(kept) > 10
    floods = {
        "file": lambda: file("evals", 1 << 16),
        "input of a batch": lambda: file("batch", 1 << 16),
        "archive": lambda: tiny.upload("late", archive(tiny.content(9))),
        "folder": lambda: tiny.register("late", tiny.content(9)),
        "merged model": lambda: tiny.http.post("/v1/adapters/kept/merge", json={}),
    }
    for kind, send in floods.items():
        for _ in range(3):
            answer = send()
            assert answer.status_code in (503, 507), (kind, answer.status_code, answer.text)
            assert answer.json()["error"]["code"] in ("storage_full", "disk_full"), (kind, answer.text)
    assert shutil.disk_usage(tiny.server.data).free > 1 << 20, "the ledger's and the state's room is left"
    for model in ("tiny", "kept@prod"):
        assert len(tiny.tokens(model)) == 8
    assert tiny.http.get("/health/ready").status_code == 200
    # a flood may have taken the ledger's room for a moment, and its rows leave the journal soon after
    eventually(lambda: tiny.http.get("/health/ready").json()["degraded"] == ["storage_full"], tiny.server.tail)
    for id_ in kept:
        assert tiny.http.delete(f"/v1/files/{id_}").status_code == 200
    assert tiny.upload("late", archive(tiny.content(9))).status_code in (200, 201)


def fill(file: io.FileIO, size: int) -> None:
    """Write pieces of `size` bytes until the disk is full."""
    with contextlib.suppress(OSError):
        while True:
            file.write(bytes(size))


def test_an_adapter_from_a_hub_at_a_revision(tiny: Tiny, hub: FakeHub) -> None:
    first = hub.push("team/tune", tiny.content(16))
    hub.push("team/tune", tiny.content(17))
    tiny.add("plain-16", 16)
    source = {"hub": "team/tune", "revision": first}

    def get(name: str, **source: str) -> httpx.Response:
        return tiny.http.post("/v1/adapters", json={"name": name, "base": "tiny", "source": source})

    made = get("from-hub", **source)
    assert (made.status_code, made.json()["source"]) == (201, f"team/tune@{first}"), made.text
    assert tiny.tokens("from-hub") == tiny.tokens("plain-16")
    for hub_id, revision, code in (("team/none", "main", "hub_not_found"), ("team/tune", "v9", "hub_not_found")):
        lost = get("lost", hub=hub_id, revision=revision)
        assert (lost.status_code, lost.json()["error"]["code"]) == (404, code), lost.text
    hub.break_after = 1000
    cut = get("cut", hub="team/tune", revision="main")
    hub.break_after = None
    assert (cut.status_code, cut.json()["error"]["code"]) == (503, "hub_unavailable"), cut.text
    assert tiny.http.get("/v1/adapters/cut").status_code == 404
    assert get("cut", hub="team/tune", revision="main").status_code == 201
    assert not list((tiny.server.data / "incoming").iterdir())


def test_many_clients_register_one_name_at_once(tiny: Tiny) -> None:
    alone = {}
    for seed in range(10, 16):
        digest = tiny.add(f"seed-{seed}", seed)["digest"]
        alone[digest] = tiny.tokens(f"seed-{seed}")
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda seed: tiny.register("contested", tiny.content(seed)), range(10, 16)))
    assert [answer.status_code for answer in answers] == [201] * 6
    made = {answer.json()["registered"]: answer for answer in answers}
    assert sorted(made) == [f"v{number}" for number in range(1, 7)]
    displayed = tiny.show("contested")
    assert [version["version"] for version in displayed["versions"]] == sorted(made)
    assert {version["digest"] for version in displayed["versions"]} == alone.keys()
    assert displayed["digest"] == displayed["versions"][-1]["digest"]
    for version in displayed["versions"]:
        assert tiny.tokens(f"contested@{version['version']}") == alone[version["digest"]]
        assert tiny.tokens(f"contested@{version['digest'][:19]}") == alone[version["digest"]]


def test_a_killed_engine_comes_back_with_the_adapters_that_requests_wait_for(tiny: Tiny) -> None:
    """With more requests than can run at once, running ones get an error, and waiting ones get their answer."""
    names = [f"wait-{seed}" for seed in range(40, 46)]
    for seed, name in enumerate(names, 40):
        tiny.add(name, seed)
    with ThreadPoolExecutor(len(names)) as pool:
        alone = dict(zip(names, pool.map(lambda name: tiny.tokens(name, 400), names), strict=True))
    pid = tiny.server.slot_pid("tiny")
    running: list[tuple[str, Future[httpx.Response]]] = []
    with ThreadPoolExecutor(24) as pool:

        def is_full() -> bool:
            """Send more requests if a slow machine answers the first ones before all 24 are sent."""
            answered = sum(future.done() for _, future in running)
            missing = 24 - (len(running) - answered)
            running.extend((name, pool.submit(tiny.ask, name, 400)) for name in (names * 4)[:missing])
            status = tiny.server.model("tiny")
            return bool(status["running"] and status["waiting"])

        eventually(is_full, tiny.server.tail)
        os.kill(pid, signal.SIGKILL)
        answers = [(name, future.result()) for name, future in running]
    done = [(name, answer) for name, answer in answers if answer.status_code == 200]
    for name, answer in done:
        assert answer.json()["choices"][0]["token_ids"] == alone[name]
    lost = [answer for _, answer in answers if answer.status_code != 200]
    assert {(answer.status_code, answer.json()["error"]["code"]) for answer in lost} <= {(503, "engine_died")}
    assert lost
    after = tiny.server.model("tiny")
    assert (after["deaths"], after["loads"]) == (1, 2)
    assert len(lost) <= 16, "no more than max_requests ran"
