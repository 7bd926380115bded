"""A team's daily report in a real browser: nothing is cut off on a screen, a phone or paper."""

import os
from pathlib import Path
from typing import Any

import pytest

from tenants.costs.daily import COLUMNS, Day, page_of
from tenants.ledger.report import UsageSum
from tests.system.console.browsing import PHONE, faults

pytestmark = pytest.mark.real
HOURS = 24
LONG = f"support-and-complaints@sha256:{'0f' * 32}"
CUT = """() => [document.documentElement.scrollWidth - innerWidth, ...[...document.querySelectorAll('td')]
  .filter(td => td.scrollWidth > td.clientWidth || td.getBoundingClientRect().right > innerWidth)
  .map(td => td.innerText)]"""
"""Returns by how many pixels the page is too wide, and the texts of cells that are cut off."""


def _sum(*names: str | int) -> UsageSum:
    many = 9_876_543_210
    return UsageSum(names, 123_456, 7, many, many, many, 3_600_000, 4_321, 9, 1_234, many, 9, many, many, 0, 1_234, 567)


def _page() -> str:
    hours = [_sum(hour * 3600) for hour in range(0, HOURS, 2)]
    models = [_sum("there/a-very-long-name-of-a-model-70b-instruct", LONG, "interactive"), _sum("chat", "", "batch")]
    return page_of(Day("search", "1970-01-01", "UTC", 0, HOURS * 3600, "EUR", _sum(), hours, models, []))


@pytest.mark.parametrize(("width", "medium"), [(1280, "screen"), (PHONE, "screen"), (720, "print")])
def test_all_columns_and_values_are_visible(browser: Any, width: int, medium: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 1000})
    page = context.new_page()
    page.set_content(_page())
    page.emulate_media(media=medium)
    overflow, *cut = page.evaluate(CUT)
    assert (overflow <= 0, cut) == (True, [])
    visible = page.evaluate("() => getComputedStyle(document.querySelector('th')).display") != "none"
    assert visible == (width == 1280), "narrow pages have a label at each value instead of headings"
    if not visible:
        label = page.evaluate("() => getComputedStyle(document.querySelectorAll('td')[3], '::before').content")
        assert label == f'"{COLUMNS[0]}"'
    values = page.locator("svg").first.locator("text", has_text="123k")
    assert values.count() == HOURS // 2, "each bar has its value"
    assert faults(page) == []
    if folder := os.environ.get("CONSOLE_PICTURES"):
        page.screenshot(path=Path(folder) / f"daily-{width}-{medium}.png", full_page=True)
    context.close()
