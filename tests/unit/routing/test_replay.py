"""A report's sums, and other thresholds."""

from pathlib import Path

import pytest

from routing.routers.replay import outcomes, replay
from tenants.ledger.routes import Chosen, chosen
from tenants.ledger.rows import Entry, Settled
from tenants.ledger.table import LedgerTable
from tenants.storage.opening import open_tables

ROWS = [
    Chosen("dates", "intent:dates", 0.95, True, 10),
    Chosen("dates", "intent:dates", 0.91, True, 10),
    Chosen("dates", "intent:dates", 0.71, False, 10),
    Chosen("big", "abstained", 0.2, True, 50),
    Chosen("big", "rule:tools", None, None, 50),
]


def test_outcomes_by_target_and_reason() -> None:
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


def test_the_ledger_tells_what_a_router_chose(tmp_path: Path) -> None:
    database = open_tables(tmp_path)
    rows = [("auto@v1", 10.0, "api"), ("auto@v2", 20.0, "api"), ("automatic@v1", 30.0, "api"), ("", 40.0, "api"),
            ("auto@v2", 50.0, "shadow"), ("auto@v2", 1.0, "api")]  # fmt: skip
    ledger = LedgerTable(database, "here")
    for number, (router, at, source) in enumerate(rows):
        entry = Entry(str(number), "r", 1, at, "t", "", "/v1/chat/completions", "m", "rev", "", "interactive", source,
                      asked="auto", router=router, target=f"t{number}", reason="abstained", score=0.25)  # fmt: skip
        ledger.write([entry], [Settled(entry, "done", 200, None)])
    assert chosen(database, "auto", 5.0) == [Chosen(f"t{number}", "abstained", 0.25, None, 0) for number in (1, 0)]
    database.close()
