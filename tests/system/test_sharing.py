"""Requests that share an engine's steps get the same answers as alone, and no small one waits for a huge one."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.speech.fixtures import RATE, silence, write
from tests.contract.text.fixtures import text
from tests.eventually import eventually
from tests.system.serving import PACK, Server
from tests.system.surfaces.test_speech import sample

pytestmark = pytest.mark.real
TOLERANCE = 1e-5
"""Largest difference of a vector's value, or a score, from that of the request alone, in float32 on a CPU."""
SAME_SPEECH = 1e-3
"""The same for the mean log probability of a segment. Texts and times are equal."""
CROWD = 12
TRIES = 20
"""Tries of a race that only a fast client sees. Each try must be right."""
QUERY = "which brake stops the engine?"
SAMPLES = sorted((PACK / "samples").glob("*.wav"))


def embedded(server: Server, inputs: list[str]) -> Any:
    answer = server.http.post("/v1/embeddings", json={"model": "starter-embed", "input": inputs}, timeout=600)
    assert answer.status_code == 200, answer.text
    return np.array([item["embedding"] for item in answer.json()["data"]])


def scored(server: Server, query: str, documents: list[str]) -> Any:
    body = {"model": "starter-rerank", "text_1": query, "text_2": documents}
    answer = server.http.post("/score", json=body, timeout=600)
    assert answer.status_code == 200, answer.text
    return np.array([item["score"] for item in answer.json()["data"]])


def transcribe(server: Server, path: Path) -> list[tuple[str, float, float, float]]:
    form = {"model": "starter-speech", "response_format": "verbose_json"}
    files = {"file": path.read_bytes()}
    answer = server.http.post("/v1/audio/transcriptions", data=form, files=files, timeout=600)
    assert answer.status_code == 200, answer.text
    return [(one["text"], one["start"], one["end"], one["avg_logprob"]) for one in answer.json()["segments"]]


def together(server: Server, model: str, calls: list[Callable[[], Any]]) -> list[Any]:
    """Make all calls at the same time, and repeat until some of them have shared a step."""
    total, count = "roundhouse_batch_size_sum", "roundhouse_batch_size_count"
    gate = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        gate.wait()
        return call()

    for _ in range(TRIES):
        requests, items = server.metric(count, model=model), server.metric(total, model=model)
        with ThreadPoolExecutor(len(calls)) as pool:
            answers = list(pool.map(run, calls))
        requests += len(calls)
        eventually(lambda requests=requests: server.metric(count, model=model) == requests, server.tail)  # type: ignore[misc]
        if server.metric(total, model=model) - items > len(calls):
            return answers
    raise AssertionError("no step was shared")


def test_embeddings_are_the_same_in_a_crowd(server: Server) -> None:
    requested = [[text(2 + 9 * number, number), text(5, number)] for number in range(CROWD)]
    alone = [embedded(server, inputs) for inputs in requested]
    crowd = together(server, "starter-embed", [lambda i=inputs: embedded(server, i) for inputs in requested])  # type: ignore[misc]
    for one, other in zip(alone, crowd, strict=True):
        np.testing.assert_allclose(one, other, atol=TOLERANCE)


def test_scores_are_the_same_in_a_crowd(server: Server) -> None:
    requested = [(f"{QUERY} {number}", [text(3 + 20 * number, number), text(7, number)]) for number in range(CROWD)]
    alone = [scored(server, query, documents) for query, documents in requested]
    crowd = together(server, "starter-rerank", [lambda a=one: scored(server, *a) for one in requested])  # type: ignore[misc]
    for one, other in zip(alone, crowd, strict=True):
        np.testing.assert_allclose(one, other, atol=TOLERANCE)


def test_transcripts_are_the_same_in_a_crowd(server: Server) -> None:
    alone = {path: transcribe(server, path) for path in SAMPLES}
    assert all(alone.values())
    requested = SAMPLES * 4
    crowd = together(server, "starter-speech", [lambda p=path: transcribe(server, p) for path in requested])  # type: ignore[misc]
    for path, segments in zip(requested, crowd, strict=True):
        assert [one[:3] for one in segments] == [one[:3] for one in alone[path]]
        np.testing.assert_allclose([one[3] for one in segments], [one[3] for one in alone[path]], atol=SAME_SPEECH)


def overtakes(server: Server, model: str, huge: Callable[[], Any], small: Callable[[], Any]) -> None:
    """Check that three small requests, sent while a huge one runs, are answered before it."""
    small()  # loads the model
    for _ in range(TRIES):
        before = server.metric("roundhouse_requests_total", model=model)
        with ThreadPoolExecutor(1) as pool:
            running: Future[Any] = pool.submit(huge)
            while not (running.done() or server.metric("roundhouse_running_requests", model=model)):
                pass
            for _ in range(3):
                small()
            overtaken = not running.done()
            running.result()
        ended = before + 4
        eventually(lambda ended=ended: server.metric("roundhouse_requests_total", model=model) == ended, server.tail)  # type: ignore[misc]
        if overtaken:
            return
    raise AssertionError("a small request had to wait for a huge one")


def test_a_small_embedding_overtakes_a_huge_one(server: Server) -> None:
    many = [text(150, number) for number in range(200)]
    overtakes(server, "starter-embed", lambda: embedded(server, many), lambda: embedded(server, ["steam"]))


def test_a_small_ranking_overtakes_a_huge_one(server: Server) -> None:
    many = [text(300, number) for number in range(150)]
    overtakes(server, "starter-rerank", lambda: scored(server, QUERY, many), lambda: scored(server, QUERY, ["steam"]))


def test_a_short_recording_overtakes_a_long_one(server: Server, tmp_path: Path) -> None:
    sound, _ = sample()
    turn = np.concatenate([sound, silence(20 - len(sound) / RATE)])
    path = write(tmp_path / "long.mp3", np.tile(turn, 30))
    overtakes(server, "starter-speech", lambda: transcribe(server, path), lambda: transcribe(server, SAMPLES[0]))
