"""The rows of the table in `batches.work.ends`."""

import pytest

from batches.records import Line, LineEnd, LineState
from batches.work.ends import ATTEMPTS, DEATHS, ENGINE_DIED, LONGEST_PAUSE, LONGEST_REFUSED, decide

LINE = Line("batch_1", 3, "id-3", "m", 0, 10)
NOW = 1000.0


@pytest.mark.parametrize("status", [200, 201, 400, 401, 403, 404, 409, 413, 422])
def test_an_answer_is_final(status: int) -> None:
    change = decide(LINE, LineEnd(status), NOW)
    assert (change.state, change.attempts) == (LineState.ENDED, 1)


def test_a_refusal_before_a_turn_does_not_count_as_an_attempt() -> None:
    assert decide(LINE, LineEnd(404, reached_engine=False), NOW).attempts == 0


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_failure_is_repeated_after_longer_and_longer_pauses(status: int) -> None:
    line, pauses = LINE, list[float]()
    for attempt in range(1, ATTEMPTS):
        change = decide(line, LineEnd(status, "failed"), NOW)
        assert (change.state, change.attempts, change.deaths) == (LineState.WAITING, attempt, 0)
        pauses.append(change.ready - NOW)
        line = Line("batch_1", 3, "id-3", "m", 0, 10, attempts=change.attempts)
    assert pauses == sorted(set(pauses))
    assert pauses[0] > 0
    assert pauses[-1] <= LONGEST_PAUSE
    end = LineEnd(status, "failed", b"its body")
    last = decide(line, end, NOW)
    assert (last.state, last.end, last.attempts) == (LineState.ENDED, end, ATTEMPTS)


def test_the_third_engine_that_dies_ends_the_line() -> None:
    line = LINE
    for death in range(1, DEATHS):
        change = decide(line, LineEnd(503, ENGINE_DIED), NOW)
        assert (change.state, change.deaths) == (LineState.WAITING, death)
        line = Line("batch_1", 3, "id-3", "m", 0, 10, attempts=change.attempts, deaths=change.deaths)
    assert decide(line, LineEnd(503, ENGINE_DIED), NOW).state is LineState.ENDED


@pytest.mark.parametrize("retry_after", [None, 0.1, 5.0, 600.0])
def test_a_full_queue_counts_no_attempt_however_often(retry_after: float | None) -> None:
    line = Line("batch_1", 3, "id-3", "m", 0, 10, attempts=ATTEMPTS - 1)
    end = LineEnd(429, "queue_full", retry_after=retry_after, reached_engine=False)
    change = decide(line, end, NOW)
    assert (change.state, change.attempts) == (LineState.WAITING, ATTEMPTS - 1)
    assert 0 < change.ready - NOW <= LONGEST_REFUSED


def test_a_stopped_line_waits_again_at_once() -> None:
    change = decide(LINE, LineEnd(None), NOW)
    assert (change.state, change.attempts, change.ready) == (LineState.WAITING, 0, 0.0)
