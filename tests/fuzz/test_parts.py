"""How the fuzzer decides about answers, gaps, memory and the requests that it saves."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import msgspec
import psutil
import pytest

from console.web import pages
from runtime.http.openapi import OPERATIONS
from runtime.server.shutdown import ProcessWatchdog
from tests.fuzz import gaps, sending
from tests.fuzz.corpus import SEEDS, NewOutcomes, Raw, read
from tests.fuzz.gaps import Beat, Sample, between, stood_still
from tests.fuzz.memory import CHAT, GATEWAY, MIB, MemoryFootprint, findings, growth
from tests.fuzz.mutate import mutate
from tests.fuzz.sending import Reply, wire
from tests.fuzz.verdict import finding

REQUESTED = Raw("POST", "/v1/embeddings", (("Content-Type", "application/json"),), "{}")
ERROR = b'{"error":{"message":"no","code":"bad"}}'


def reply(status: int, body: bytes = ERROR, **headers: str) -> Reply:
    return Reply(status, {name.replace("_", "-"): value for name, value in headers.items()}, body, 0.1)


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (reply(200), ""),
        (reply(400), ""),
        (reply(503, retry_after="5"), ""),
        (reply(503), "Retry-After"),
        (reply(429, retry_after="soon"), "Retry-After"),
        (reply(500), "500"),
        (reply(400, b"no"), "not a JSON"),
        (reply(400, b'{"error": "' + b"x" * 9_000 + b'"}'), "bytes of error"),
        (reply(0, b""), "without an answer"),
        (reply(-1, b""), "not HTTP"),
        (reply(-2, b""), "in time"),
        (reply(-3, b""), "no connection"),
        (reply(200, b'data: {"code":"internal_error"}', content_type="text/event-stream"), "internal_error"),
    ],
)
def test_what_a_finding_is(answer: Reply, word: str) -> None:
    reported = finding(REQUESTED, answer)
    assert (reported is None) is (word == "")
    assert word in (reported or "")


@pytest.mark.parametrize("header", [("Content-Length", "9"), ("Transfer-Encoding", "chunked"), ("x y", "z\n")])
def test_invalid_http_may_be_left_without_an_answer(header: tuple[str, str]) -> None:
    broken = msgspec.structs.replace(REQUESTED, headers=(header,))
    assert finding(broken, reply(0, b"")) is None
    assert finding(broken, reply(500)) is not None


def test_a_gap_is_blamed_on_the_process_that_had_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs had three quarters of 1 s of waiting. Our 0.2 s of work kept both CPUs busy for at most 0.1 s."""
    monkeypatch.setattr(gaps, "CPUS", 2)
    before = Sample(0.0, {1: {1: (0.0, 0.0)}, 2: {2: (0.0, 0.0)}}, 0.0, {1: 0.0, 9: 0.0})
    after = Sample(1.2, {1: {1: (0.2, 0.9)}, 2: {2: (0.0, 0.1), 3: (5.0, 5.0)}}, 1.0, {1: 0.2, 9: 0.2})
    gap = between(before, after, 0.0, 1.2)
    assert (gap.waited, gap.who) == (pytest.approx(1.0), 1)
    assert gap.others == pytest.approx(0.75)
    assert gap.ours == pytest.approx(0.2 + 0.1)


def test_a_gap_without_waiting_is_ours() -> None:
    still = {1: {1: (0.0, 0.0)}}
    assert between(Sample(0, still, 0.0, {}), Sample(2, still, 4.0, {}), 0.0, 2.0).ours == 2.0
    assert between(Sample(0, still, 0.0, {}), Sample(2, still, 4.0, {}), 0.0, 2.0, late=1.5).ours == 0.5
    robbed = Sample(2, still, 4.0, {}, (0.1, 1.5))
    assert between(Sample(0, still, 0.0, {}, (0.1, 0.0)), robbed, 0.0, 2.0, late=0.2).ours == 0.5, (
        "the host stole CPU 1"
    )


@pytest.mark.parametrize(
    ("beats", "seconds"),
    [
        ([], 0.0),
        ([Beat(10.2, 10.2, 0.0), Beat(10.4, 10.4, 0.0)], 0.0),
        ([Beat(10.1, 12.0, 0.0)], 0.9),  # the machine stood still for longer than the gap
        ([Beat(10.5, 10.8, 0.0)], 0.3),
        ([Beat(10.1, 10.9, 0.8)], 0.0),  # waiting for a CPU is counted elsewhere
        ([Beat(10.1, 10.9, 0.6)], 0.2),
        ([Beat(8.0, 9.9, 0.0), Beat(11.0, 12.0, 0.0)], 0.0),  # before and after
        ([Beat(10.1, 10.3, 0.0), Beat(10.6, 10.7, 0.0)], 0.3),
    ],
)
def test_late_wake_ups_without_waiting_for_a_cpu_show_a_machine_that_stood_still(
    beats: list[Beat], seconds: float
) -> None:
    assert stood_still(beats, 10.0, 11.0) == pytest.approx(seconds)


def test_memory_is_flat_after_warm_up() -> None:
    warm = [MemoryFootprint(MIB * size, 50) for size in (10, 90, 100, 100, 100, 101, 100, 99, 101, 100)]
    assert growth(warm) == MemoryFootprint(MIB // 2, 0)
    grows = [MemoryFootprint(MIB * 100 * step, 50 * step) for step in range(1, 11)]
    reported = findings([{GATEWAY: now, CHAT: then} for now, then in zip(grows, warm, strict=True)])
    assert len(reported) == 2
    assert all(text.startswith(GATEWAY) for text in reported)


def test_requests_with_a_new_outcome_are_saved(tmp_path: Path) -> None:
    kept = NewOutcomes(tmp_path / "kept.jsonl")
    assert not kept.saw(REQUESTED, (REQUESTED.route, 200, ""), known=True)
    assert not kept.saw(REQUESTED, (REQUESTED.route, 200, ""))
    assert kept.saw(REQUESTED, (REQUESTED.route, 400, "bad"))
    kept.save()
    assert read(tmp_path / "kept.jsonl") == [REQUESTED]


def test_each_call_has_a_seed() -> None:
    """Includes the API's calls and the console's own actions, as only seeds are mutated."""
    seeds = {(raw.method, raw.route or raw.path) for raw in read(SEEDS)}
    calls = {(method.upper(), path) for method, path in OPERATIONS}
    actions = {("POST", f"/console/{slug}/{action}") for slug, page in pages().items() for action in page.actions}
    assert (calls | actions | {("GET", f"/console/{slug}") for slug in pages()}) - seeds == set()


def test_mutations_depend_on_the_seed_alone_and_can_be_sent() -> None:
    seeds = read(SEEDS)
    for number in range(300):
        raw = Random(number).choice(seeds)
        once, again = mutate(raw, Random(number)), mutate(raw, Random(number))
        assert once == again
        assert wire(once, "127.0.0.1:1")


def test_a_process_only_counts_as_stopped_too_long_after_the_time() -> None:
    child = psutil.Popen(["sleep", "600"])
    try:
        look = ProcessWatchdog([child.pid, os.getpid()], 2.0)
        assert not look.is_stopped_too_long(0.0)
        child.suspend()
        while child.status() != psutil.STATUS_STOPPED:
            os.sched_yield()
        assert not look.is_stopped_too_long(1.0)
        assert not look.is_stopped_too_long(2.9)
        assert look.is_stopped_too_long(3.0)
        child.resume()
        while child.status() == psutil.STATUS_STOPPED:
            os.sched_yield()
        assert not look.is_stopped_too_long(9.0)
    finally:
        child.kill()
        child.wait()
    assert not look.is_stopped_too_long(20.0)


@pytest.mark.parametrize(("late", "status"), [(0.0, 204), (3_600.0, 0)], ids=["sent late", "sent in time"])
def test_only_a_request_that_was_sent_late_is_sent_again(
    monkeypatch: pytest.MonkeyPatch, late: float, status: int
) -> None:
    """The server closes the first connection without an answer."""
    monkeypatch.setattr(sending, "LATE", late)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        requested = pool.submit(sending.send, server.getsockname()[1], REQUESTED, 60.0)
        server.accept()[0].close()
        if status:
            with server.accept()[0] as second:
                assert second.recv(2**16)
                second.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        assert requested.result().status == status
