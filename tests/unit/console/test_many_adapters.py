"""Pages of a server with 500 adapters in a browser, where one is found by its name."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from registry.recipes.definition import Tier
from runtime.http.pages import ConsoleHost
from tests.unit.console.browsing import looking
from tests.unit.console.conftest import Console

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]
NAMES = [f"style-{number:03}" for number in range(500)]


def adapter(name: str) -> Any:
    """Return an adapter in the format of `GET /v1/adapters/{name}`."""
    return SimpleNamespace(
        name=name, base="chat", version="v1", digest=f"sha256:{int(name[-3:]):064x}", rank=8, bytes=1 << 20,
        aliases={}, versions=["v1"], pinned=False, tier=Tier.DISK, hits=0, misses=0, last_stage_seconds=None,
        last_place_seconds=None, probe=None,
    )  # fmt: skip


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    known = ConsoleHost.models

    def models(host: ConsoleHost) -> Sequence[Any]:
        names = {"chat": NAMES}
        return [msgspec.structs.replace(one, adapters=names.get(one.id, [])) for one in known(host)]

    async def adapters(_: ConsoleHost) -> list[object]:
        return list(map(adapter, NAMES))

    monkeypatch.setattr(ConsoleHost, "adapters", adapters)
    monkeypatch.setattr(ConsoleHost, "models", models)


@pytest.mark.usefixtures("many")
async def test_one_of_500_adapters_is_found_by_its_name(console: Console, browser: Any) -> None:
    async with console() as displayed, looking(browser, displayed) as page:
        await page.goto("adapters")
        expect = pytest.importorskip("playwright.async_api").expect
        assert await page.locator("#rows b").count() == 100, "the others follow when they are scrolled to"
        await page.locator("#rows button >> text=More").scroll_into_view_if_needed()
        await page.wait_for_selector("#rows b >> text=style-199")
        await page.fill("[name=words]", "style-317")
        await expect(page.locator("#rows b")).to_have_count(1)
        assert await page.locator("#rows b").inner_text() == "style-317"
        await page.evaluate("document.dispatchEvent(new Event('changed'))")
        await page.fill("[name=words]", "chat style-31")
        await expect(page.locator("#rows b")).to_have_count(10)
        await page.fill("[name=words]", "nobody")
        await page.wait_for_selector("#rows >> text=No adapter contains these words")


@pytest.mark.usefixtures("many")
async def test_one_of_500_targets_is_found_in_the_playground(console: Console, browser: Any) -> None:
    async with console() as displayed, looking(browser, displayed) as page:
        await page.goto("playground")
        await page.fill("[data-filter=targets-left]", "style-317")
        visible = "all => all.filter((one) => !one.hidden).map((one) => one.value)"
        assert await page.locator("#targets-left option").evaluate_all(visible) == ["chat:style-317"]
        assert await page.input_value("#targets-left") == "chat:style-317", "and is chosen"
        assert len(await page.locator("#targets-right option").evaluate_all(visible)) == 501, (
            "the other side is not filtered"
        )
