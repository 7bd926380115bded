"""Prices, device time, feedback, comparisons and a team's day."""

import re
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.messages import Usage
from registry.errors import BadRequest, Conflict, NotFound
from registry.recipes.definition import Prices
from registry.storage.database import Database
from runtime.gateway.context import RequestContext
from runtime.gateway.record import End, RequestRecord
from runtime.gateway.sinks.tenants import LedgerSink
from tenants.costs.compare import PriceComparison, ProviderPrice, compared, read_prices
from tenants.costs.daily import as_json, as_rows, day_of_team, page_of
from tenants.costs.prices import MILLION, DeviceTime, PriceList, batch_price_list, price_list
from tenants.keys.table import KeyTable
from tenants.ledger.ledger import Ledger
from tenants.ledger.lookup import judge
from tenants.ledger.report import Grouping, UsageFilter, used
from tenants.ledger.rows import Entry, Settlement
from tenants.ledger.table import LedgerTable

DAY, HOUR = 86_400, 3600
PRICE = PriceList(input=150_000, cached=75_000, output=600_000, audio_hour=360_000, pairs=2_000_000)


def test_costs_are_rounded_once_and_bounded() -> None:
    assert PRICE.cost(prompt=1_000_000) == 150_000
    assert PRICE.cost(prompt=1_000_000, cached=1_000_000) == 75_000
    assert PRICE.cost(audio_ms=3_600_000) == 360_000
    assert PRICE.cost(pairs=1000) == 2_000_000
    assert PRICE.cost(prompt=1, cached=0, output=1) == 1, "0.75 millionths"
    assert PRICE.most(prompt=10**6) == 150_000
    assert replace(PRICE, cached=300_000).most(prompt=10**6) == 300_000
    dear = replace(PRICE, written=37_500)
    assert dear.cost(prompt=10**6, cached=400_000, written=400_000) == 200_000 * 0.15 + 400_000 * (0.075 + 0.1875)
    assert dear.most(prompt=10**6) == 187_500
    assert price_list(Prices(input=0.15)).written == 0
    assert price_list(Prices(input=0.15, written_input=0.1875)).written == 37_500
    lines = batch_price_list(Prices(input=0.15, output=0.6, batch=0.5))
    assert (lines.input, lines.cached, lines.output, lines.written) == (75_000, 75_000, 300_000, 0)
    assert batch_price_list(Prices(input=0.15)) == price_list(Prices(input=0.15))
    assert lines.version != price_list(Prices(input=0.15, output=0.6)).version
    assert PRICE.version == replace(PRICE).version != replace(PRICE, pairs=1).version


money = st.integers(0, 500)


@given(st.builds(PriceList, input=money, cached=money, output=money, written=st.integers(-200, 200)), money, money)
def test_no_cached_request_costs_more_than_its_most(price: PriceList, prompt: int, output: int) -> None:
    prompt, output = prompt * 1000, output * 1000
    costs = [
        price.cost(prompt=prompt, cached=cached, written=written, output=output)
        for cached, written in ((0, 0), (prompt, 0), (0, prompt), (prompt // 2, prompt - prompt // 2))
    ]
    assert price.most(prompt=prompt, output=output) == max(costs)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 3)), max_size=40))
def test_requests_shares_of_device_time_add_up_to_its_busy_time(steps: list[tuple[int, int]]) -> None:
    now = 0.0
    device = DeviceTime(lambda: now)
    running: list[float] = []
    charged = busy = 0.0
    for seconds, what in steps:
        now += seconds
        busy += seconds if running else 0
        if what and running:
            charged += device.end(running.pop(what % len(running)))
        else:
            running.append(device.begin())
    charged += sum(device.end(mark) for mark in running)
    assert charged == pytest.approx(busy) == pytest.approx(device.busy)


@pytest.mark.parametrize(("charges_cold", "charged"), [(True, 3_000_000), (False, 1_000_000)])
def test_a_cold_start_is_charged_to_its_request_or_to_none(charges_cold: bool, charged: int) -> None:
    """An hour of the machine costs 3600. One second was for the request, and two, recorded anyway, for the load."""
    ended: list[Settlement] = []
    ledger = SimpleNamespace(end=lambda settled, rider=None, soon=False: ended.append(settled))
    sink = LedgerSink(cast(Ledger, ledger), 3600 * MILLION, cold=charges_cold)
    entry = Entry("u", "r", 1, 5.0, "search", "k", "/v1/chat/completions", "m", "r", "", "interactive", "api")
    seconds = {"total": 3.0, "device": 1.0, "cold": 2.0}
    record = RequestRecord(
        RequestContext("r"), "/v1/chat/completions", None, End.DONE, 200, None, Usage(), seconds, entry=entry
    )
    sink.take(record)
    (row,) = ended
    assert (row.own_micro, row.cold_ms, row.device_us) == (charged, 2000, 1_000_000)


def settle(
    table: LedgerTable, uid: str, at: int = 5, team: str = "search", *, price: PriceList | None = PRICE, out: int = 1000
) -> None:
    entry = Entry(
        uid, f"r-{uid}", 1, at, team, "key00001", "/v1/chat/completions", "chat", "r", "<b>@sha256:1", "interactive",
        "api", price,
    )  # fmt: skip
    cost = 0 if price is None else price.cost(prompt=2000, cached=1000, output=out)
    table.write(
        [entry],
        [Settlement(entry, "done", 200, None, 2000, 1000, out, cost_micro=cost, own_micro=100, device_us=7)],
    )


@pytest.fixture
def ledger(database: Database, table: KeyTable) -> LedgerTable:
    table.create_team("search", timezone="Europe/Berlin")
    return LedgerTable(database, "s", "EUR")


def test_rows_keep_the_price_of_their_time(database: Database, ledger: LedgerTable) -> None:
    settle(ledger, "a")
    settle(ledger, "b", price=replace(PRICE, output=0))
    settle(ledger, "c")
    (found,) = used(database, UsageFilter(0, DAY))
    assert (found.cost_micro, found.own_micro, found.device_us) == (2 * 825 + 225, 300, 21)
    with database.read() as connection:
        prices = connection.exec_driver_sql("SELECT version, currency, output FROM prices ORDER BY output").all()
        versions = connection.exec_driver_sql("SELECT price_version FROM ledger ORDER BY uid").scalars().all()
    assert [(row.currency, row.output) for row in prices] == [("EUR", 0), ("EUR", 600_000)]
    assert list(versions) == [PRICE.version, prices[0].version, PRICE.version]
    assert ledger.differences() == []


def test_feedback_can_be_changed_and_changes_the_sums(database: Database, ledger: LedgerTable) -> None:
    settle(ledger, "a")
    settle(ledger, "b")
    for uid, accepted in (("a", True), ("a", True), ("b", True), ("b", False)):
        judge(database, "search", f"r-{uid}", accepted)
    (found,) = used(database, UsageFilter(0, DAY, (Grouping.TEAM,)))
    assert (found.accepted, found.rejected) == (1, 1)
    assert ledger.differences() == []
    with pytest.raises(NotFound):
        judge(database, "speech", "r-a", True)
    running = Entry("z", "r-z", 1, 9.0, "search", "", "/", "m", "r", "", "interactive", "api")
    ledger.write([running], [])
    with pytest.raises(Conflict) as error:
        judge(database, "search", "r-z", True)
    assert error.value.code == "request_running"


def test_feedback_is_stored_for_the_attempt_that_answered(database: Database, ledger: LedgerTable) -> None:
    settle(ledger, "before")
    for attempt, end in enumerate([("failed", 502, "provider_failed"), ("done", 200, None)], start=1):
        entry = Entry(
            f"u{attempt}", "r-a", attempt, 10.0 * attempt, "search", "", "/", f"m{attempt}", "r", "", "interactive",
            "api",
        )  # fmt: skip
        ledger.write([entry], [Settlement(entry, *end)])
    assert judge(database, "search", "r-a", True) == "m2"
    assert judge(database, "search", "r-a", True) is None
    with database.read() as connection:
        judged = connection.exec_driver_sql("SELECT attempt FROM ledger WHERE accepted IS NOT NULL").scalars().all()
    assert list(judged) == [2]
    assert ledger.differences() == []


def test_feedback_is_stored_for_the_last_request_of_an_id(database: Database, ledger: LedgerTable) -> None:
    for number, (attempt, code) in enumerate([(1, None), (1, "provider_failed"), (2, "provider_unavailable")]):
        entry = Entry(
            f"u{number}", "r", attempt, number, "search", "", "/", f"m{number}", "r", "", "interactive", "api"
        )
        ledger.write([entry], [Settlement(entry, "failed" if code else "done", 502 if code else 200, code)])
    assert judge(database, "search", "r", False) == "m2"


def test_usage_is_compared_with_another_providers_price_of_each_day(database: Database, ledger: LedgerTable) -> None:
    def row(begin: str, output: float, models: tuple[str, ...] = ("ch*",)) -> ProviderPrice:
        return ProviderPrice(provider="p", model="big", models=models, begin=date.fromisoformat(begin), output=output)

    for uid, at in (("a", 5), ("b", 2 * DAY + 5)):
        settle(ledger, uid, at)
    table = [row("1970-01-03", 2.0), row("1970-01-01", 4.0), row("1970-01-01", 9.0, ("other",))]
    (found,) = compared(database, table, 0, 3 * DAY, None)
    assert found == PriceComparison("p", "big", 4000 + 2000, 2 * 825, 200)
    assert found.saving == pytest.approx(72.5)
    assert (found.fields["theirs"], found.fields["ours"], found.fields["own"]) == (0.006, 0.00165, 0.0002)
    assert found.fields["own_saving_percent"] == pytest.approx(100 * (1 - 200 / 6000))
    free = replace(found, theirs=0)
    assert (free.saving, free.own_saving) == (None, None)
    assert compared(database, [], 0, DAY, None) == []


def test_a_table_of_prices_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("- {provider: p, model: m, for: [a], from: 2026-01-01, input: 0.15}\n")
    assert read_prices(path)[0].prices == PriceList(input=150_000, cached=150_000)
    for wrong in ("- {provider: p}", "a: b", "- [", "- {provider: p, model: m, for: [a], from: x}",
                  "- {provider: p, model: m, for: [a], from: 2026-02-30}", "[" * 5000):  # fmt: skip
        path.write_text(wrong)
        with pytest.raises(BadRequest):
            read_prices(path)
    path.unlink()
    with pytest.raises(BadRequest, match=r"prices.yaml cannot be read: No such file or directory\.$"):
        read_prices(path)


def test_a_daily_report_is_in_the_teams_time_zone(database: Database, ledger: LedgerTable) -> None:
    settle(ledger, "a", 22 * HOUR)  # 23:00 in Berlin
    settle(ledger, "b", 23 * HOUR + 5)  # the next day
    theirs = ProviderPrice(provider="p", model="big", models=("*",), begin=date(1970, 1, 1), output=4.0)
    day = day_of_team(database, "search", "1970-01-01", "EUR", [theirs])
    found = as_json(day)
    assert (found["total"]["requests"], found["total"]["cost"], found["timezone"]) == (1, 0.000825, "Europe/Berlin")
    assert [one["hour"] for one in found["hours"]] == [22 * HOUR]
    assert found["compared"][0]["theirs"] == 0.004
    assert as_rows(day)[1][:7] == ["search", "1970-01-01", "EUR", "chat", "<b>@sha256:1", "interactive", 1]
    page = page_of(day)
    assert "<svg" in page
    assert "23:00: 1<" in page
    assert "<b>@" not in page, "names are escaped"
    assert not re.search(r"<script|src=|href=|url\(|@import", page), "nothing is loaded from other servers"
    with pytest.raises(NotFound):
        day_of_team(database, "nobody", "1970-01-01", "EUR", [])
    with pytest.raises(BadRequest):
        day_of_team(database, "search", "yesterday", "EUR", [])


def test_small_and_large_amounts_of_a_day_have_no_exponent(database: Database, ledger: LedgerTable) -> None:
    settle(ledger, "a", 22 * HOUR)
    day = day_of_team(database, "search", "1970-01-01", "EUR", [])
    (model,) = day.models
    page = page_of(replace(day, models=[replace(model, cost_micro=12_345_678_901, own_micro=12)]))
    assert '<td data-label="cost">12,345.679</td><td data-label="own cost">0.000012</td>' in page


def test_a_day_in_the_first_year_is_refused(database: Database, table: KeyTable) -> None:
    """In some zones it begins or ends before the first day that Python knows."""
    for team, zone in (("west", "America/Juneau"), ("east", "Asia/Tokyo")):
        table.create_team(team, timezone=zone)
        with pytest.raises(BadRequest) as refused:
            page_of(day_of_team(database, team, "0001-01-01", "EUR", []))
        assert refused.value.param == "date"


def test_yesterday_depends_on_the_teams_time_zone(database: Database, table: KeyTable, ledger: LedgerTable) -> None:
    table.create_team("far", timezone="Pacific/Auckland")
    morning = datetime.fromisoformat("2026-11-25T09:00:00+13:00").timestamp()  # in UTC it is still the day before
    days = {team: day_of_team(database, team, None, "EUR", [], lambda: morning).date for team in ("far", "search")}
    assert days == {"far": "2026-11-24", "search": "2026-11-23"}


def test_a_day_with_a_clock_change_has_a_bar_for_each_hour(database: Database, ledger: LedgerTable) -> None:
    second = int(datetime.fromisoformat("2026-10-25T01:00:00+00:00").timestamp())
    for number in range(5):  # 02:30 occurs twice
        settle(ledger, f"a{number}", second - HOUR // 2 + HOUR * (number > 1))
    page = page_of(day_of_team(database, "search", "2026-10-25", "EUR", []))
    requests = page[page.index("Requests by hour") : page.index("Output tokens by hour")]
    assert re.findall("<title>(.*?)</title>", requests)[:5] == [
        "00:00: 0", "01:00: 0", "02:00: 2", "02:00: 3", "03:00: 0",
    ]  # fmt: skip
    assert requests.count("<rect") == 25
    shorter = page_of(day_of_team(database, "search", "2026-03-29", "EUR", []))
    assert shorter.count("<rect") == 4 * 23
