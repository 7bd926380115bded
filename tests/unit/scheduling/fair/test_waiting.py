"""Predicted waits, room in a full queue, and the cost of predictions."""

import pytest

from runtime.scheduling.fair import AccountOrder, Pace, QueueRequest, ShareAccount
from runtime.scheduling.requests import ModelAccounts, RunningRequests, WaitingRequests
from tenants.caller import ServiceClass

CRITICAL, INTERACTIVE, BATCH = ServiceClass


def filled(*claims: QueueRequest) -> WaitingRequests:
    waiting = WaitingRequests(ModelAccounts())
    for number, claim in enumerate(claims):
        waiting.add(str(number), None, 0.0, claim)
    return waiting


def test_the_work_before_a_request_depends_on_class_team_and_key() -> None:
    flood = [QueueRequest("flood", work=10.0)] * 100
    waiting = filled(*flood, *[QueueRequest("batch", service_class=BATCH, work=10.0)] * 50)
    assert waiting.work_before(QueueRequest("flood", work=10.0)) == pytest.approx(1000.0)
    assert waiting.work_before(QueueRequest("quiet", work=10.0)) == pytest.approx(10.0), (
        "as much of the flood's work as its own"
    )
    assert waiting.work_before(QueueRequest("heavy", weight=10.0, work=10.0)) == pytest.approx(1.0)
    assert waiting.work_before(QueueRequest("urgent", service_class=CRITICAL, work=10.0)) == 0.0
    assert waiting.work_before(QueueRequest("late", service_class=BATCH, work=10.0)) == pytest.approx(
        10.0 + 20.0 / 0.05
    ), "its class gets its floor despite higher classes"
    assert waiting.work_before(QueueRequest("flood", "other", work=10.0)) == pytest.approx(10.0), (
        "keys share within a team"
    )


def test_a_prediction_ignores_keys_without_waiting_requests() -> None:
    """There may be thousands of former keys, and each request with a deadline needs a prediction."""
    waiting = filled(QueueRequest("team", "a", work=10.0), QueueRequest("team", "b", work=10.0))
    team = waiting._teams[INTERACTIVE].find("team")
    assert team is not None
    team.keys._accounts["gone"] = None  # type: ignore[assignment]  # any access fails
    assert waiting.work_before(QueueRequest("team", "a", work=10.0)) == pytest.approx(10.0 + 10.0)


def test_the_pace_predicts_seconds_and_work() -> None:
    pace = Pace()
    assert not pace.is_known
    pace.ended(2.0, 100.0)
    assert pace.seconds(0.0, 4) == pytest.approx(0.5), "until one of four ends"
    assert pace.seconds(400.0, 4) == pytest.approx(2.5)
    assert pace.work(1.0) == pytest.approx(50.0)


def test_the_team_that_fills_a_queue_makes_room_for_others() -> None:
    waiting = filled(*[QueueRequest("flood")] * 5, QueueRequest("quiet"))
    assert waiting.make_room(QueueRequest("flood")) is None, "the team's own request is the one too many"
    assert waiting.make_room(QueueRequest("new")) == "4"
    assert waiting.make_room(QueueRequest("new", service_class=BATCH)) is None, "a higher class does not make room"
    assert waiting.make_room(QueueRequest("flood", service_class=CRITICAL)) == "3"
    assert len(waiting) == 4
    heavy = filled(*[QueueRequest("heavy", weight=4.0)] * 4, QueueRequest("light"))
    assert heavy.make_room(QueueRequest("third", weight=1.0)) is None
    assert heavy.make_room(QueueRequest("third", weight=4.0)) in ("3", "4")


def test_the_work_of_a_line_is_that_of_its_requests() -> None:
    waiting = filled(*[QueueRequest(work=10.0)] * 2, QueueRequest(work=5.0))
    waiting.remove("0")
    assert waiting.work == 15.0
    running = RunningRequests(waiting, {})
    for _ in range(2):
        running.start(waiting.first([None], frozenset()).request)
    assert (waiting.work, running.work) == (0.0, 15.0)
    running.end("1", 3.0)
    assert running.work == 5.0
    running.clear()
    assert running.work == 0.0


def test_nothing_is_remembered_of_removed_requests() -> None:
    waiting = filled(
        *[QueueRequest(f"team{n % 5}", f"key{n % 7}", service_class=ServiceClass(n % 3)) for n in range(60)]
    )
    for number in range(60):
        assert waiting.remove(str(number)) is not None
    assert waiting.remove("0") is None
    assert len(waiting) == 0
    assert [len(table) for table in (waiting._lanes, waiting.accounts.of_team, waiting.classes, waiting.pools)] == [
        0
    ] * 4


def test_the_lowest_account_comes_first_however_often_others_were_charged() -> None:
    """Refunds leave stale entries behind, which are cleared from time to time."""
    order = AccountOrder()
    accounts = [ShareAccount(1.0, counter, number) for number, counter in enumerate((3.0, 1.0, 2.0))]
    for account in accounts:
        order.add(account)
    for _ in range(100):
        accounts[0].charge(1.0)
        accounts[0].charge(-1.0)
        assert order.first() is accounts[1]
