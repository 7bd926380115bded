"""A router's report: sums, and replays with other thresholds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.storage.database import Database
from routing.routers.replay import outcomes, replay
from tenants.ledger.lookup import RoutedRequest, routed_requests
from tenants.ledger.rows import Entry, Settlement
from tenants.ledger.table import LedgerTable
from tenants.storage.opening import open_tables

ROWS = [
    RoutedRequest("dates", "intent:dates", 0.95, True, 10),
    RoutedRequest("dates", "intent:dates", 0.91, True, 10),
    RoutedRequest("dates", "intent:dates", 0.71, False, 10),
    RoutedRequest("big", "abstained", 0.2, True, 50),
    RoutedRequest("big", "rule:tools", None, None, 50),
]


def test_outcomes_are_grouped_by_target_and_reason() -> None:
    first, *others = outcomes(ROWS)
    assert (first.target, first.requests, first.judged, first.cost_micro) == ("dates", 3, 3, 10)
    assert first.accepted == pytest.approx(2 / 3)
    assert {(o.reason, o.accepted) for o in others} == {("abstained", 1.0), ("rule:tools", None)}


def test_a_higher_threshold_leaves_more_to_the_default() -> None:
    points = {p.threshold: p for p in replay(ROWS)}
    low, high = points[0.5], points[0.8]
    assert (low.answered, low.accepted, low.cost_micro) == (0.75, pytest.approx(0.75), 20)
    assert (high.answered, high.accepted, high.cost_micro) == (0.5, 1.0, 30)
    assert replay(ROWS[-1:]) == []


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = open_tables(tmp_path)
    yield database
    database.close()


def write(database: Database, at: float, request: str = "r", *, attempt: int = 1, model: str = "m", adapter: str = "",
          router: str = "auto@v2", source: str = "api", team: str = "t", code: str | None = None,
          status: int | None = 200, cost: int = 0) -> None:  # fmt: skip
    entry = Entry(f"{at}", request, attempt, at, team, "", "/v1/chat/completions", model, "rev", adapter, "interactive",
                  source, asked="auto", router=router, target="decided", reason="abstained", score=0.25)  # fmt: skip
    end = "done" if status == 200 else "failed"
    LedgerTable(database, "here").write([entry], [Settlement(entry, end, status, code, cost_micro=cost)])


def answered(database: Database, team: str | None = None) -> list[str]:
    return [request.target for request in routed_requests(database, "auto", 5.0, team)]


def test_a_routers_requests_are_read_from_the_ledger(database: Database) -> None:
    for number, (router, source) in enumerate(
        [("auto@v1", "api"), ("auto@v2", "api"), ("automatic@v1", "api"), ("", "api"), ("auto@v2", "shadow")], start=10
    ):
        write(database, number, model=f"m{number}", router=router, source=source)
    write(database, 1.0, model="long ago")
    assert routed_requests(database, "auto", 5.0) == [
        RoutedRequest(f"m{number}", "abstained", 0.25, None, 0) for number in (11, 10)
    ]


def test_a_routers_requests_are_not_those_of_one_whose_name_differs_in_case(database: Database) -> None:
    write(database, 10.0, model="m", router="auto@v1")
    write(database, 11.0, model="other", router="Auto@v1")
    assert answered(database) == ["m"]
    assert [request.target for request in routed_requests(database, "Auto", 5.0)] == ["other"]


def test_an_adapters_target_has_its_model_but_no_version(database: Database) -> None:
    write(database, 10.0, adapter="upper@sha256:1")
    write(database, 11.0, adapter="upper@sha256:2")
    assert answered(database) == ["m:upper", "m:upper"]


def test_a_request_counts_once_for_the_target_that_answered(database: Database) -> None:
    write(database, 10.0, "fell back", model="broken", status=502, code="provider_failed")
    write(database, 11.0, "fell back", attempt=2, model="fallback", cost=7)
    write(database, 20.0, "answered", model="first")
    write(database, 50.0, "all failed", model="broken", status=502, code="provider_failed")
    write(database, 51.0, "all failed", attempt=2, model="also broken", status=503, code="provider_unavailable")
    assert answered(database) == ["also broken", "first", "fallback"]
    costs = {one.target: one.cost_micro for one in outcomes(routed_requests(database, "auto", 5.0))}
    assert costs == {"also broken": 0, "first": 0, "fallback": 7}


def test_a_repeated_request_id_is_another_request(database: Database) -> None:
    write(database, 10.0, model="broken", status=502, code="provider_failed")
    write(database, 11.0, attempt=2, model="fallback")
    write(database, 20.0, model="first")
    write(database, 21.0, model="other", team="u")
    assert answered(database) == ["other", "first", "fallback"]


def test_a_report_can_be_of_one_team(database: Database) -> None:
    write(database, 10.0, model="mine")
    write(database, 11.0, model="theirs", team="u")
    assert (answered(database, "t"), answered(database, "u")) == (["mine"], ["theirs"])
