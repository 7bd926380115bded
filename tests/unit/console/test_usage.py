"""The page Usage over a real ledger: table, curve and total agree for each span."""

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from console.host import Visit
from console.pages import usage
from console.pages.usage import BY, SPANS, added, context
from tenants.keys.keyring import OPEN
from tenants.ledger.ledger import Ledger
from tenants.ledger.table import SUMS
from tenants.ledger.view import UsageReport
from tenants.storage.opening import open_tables
from tenants.storage.tables import HOURS

DAY = 1_793_577_600
"""2 November 2026, 00:00 UTC."""


async def written() -> None:
    return


@pytest.fixture(params=[0, 21])
def now(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """An hour of the day, on which it depends how many days 30 times 24 hours touch."""
    hour = DAY + 3600 * int(request.param)
    monkeypatch.setattr(usage, "time", SimpleNamespace(time=lambda: hour + 1234.5))
    return hour


@pytest.fixture
def report(tmp_path: Path, now: int) -> UsageReport:
    """A report over 40 days, with requests of two teams to two models every third hour, half of them accepted."""
    database = open_tables(tmp_path, None)
    alike = {"adapter": "", "endpoint": "/v1/x", "service_class": "interactive", "source": "api"}
    rows = [
        dict.fromkeys(SUMS, 7)
        | {"hour": now - 3600 * hour, "team": team, "key": f"{team}-k", "model": model, **alike}
        | {"requests": 2, "accepted": 1, "cost_micro": 3_000_000}
        for hour in range(0, 40 * 24, 3)
        for team in ("search", "growth")
        for model in ("small", "large")
    ]
    with database.write() as connection:
        connection.execute(HOURS.insert(), rows)
    return UsageReport(cast(Ledger, SimpleNamespace(database=database, flush=written, clock=time.time)))


async def displayed(report: UsageReport, **requested: str) -> Any:
    request, host = SimpleNamespace(query_params=requested), SimpleNamespace(usage=report, caller=OPEN.identify([]))
    return await context(Visit(cast(Any, request), cast(Any, host)))


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("by", BY)
async def test_table_curve_and_total_agree(report: UsageReport, now: int, span: str, by: str) -> None:
    found = await displayed(report, span=span, by=by)
    moments, requests, tokens_in, _ = json.loads(found["series"])
    hours = SPANS[span][0] // 3600
    assert found["total"].requests == sum(requests) == 2 * 4 * hours // 3
    assert found["total"].input_tokens == sum(tokens_in)
    step = 86_400 if span == "30d" else 3600
    assert moments == sorted({(now - 3600 * hour) // step * step for hour in range(0, hours, 3)})
    assert found["total"].cost_per_accepted == pytest.approx(3.0)
    assert sum(row.requests for row in found["rows"]) <= found["total"].requests
    assert found["csv"].count("\n") >= len(found["rows"])
    assert "provider" in found["why_not"]


async def test_a_span_without_requests_has_a_total_of_0(report: UsageReport) -> None:
    assert added([]).requests == 0
    assert added([]).cost_per_accepted is None
    assert re.fullmatch(r"\[.*\]", (await displayed(report, span="bogus"))["series"])
