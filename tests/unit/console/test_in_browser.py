"""What scripts do in a browser: what they keep, what they tell, and for whom a page stays as it was."""

import asyncio
import re
from typing import Any

from tests.unit.console.browsing import Answer, looking, told
from tests.unit.console.conftest import Console

MADE = {"id": "k1234567", "team": "default", "value": "rh-secret"}
REFUSED = {"error": {"message": "Sign in first."}}


async def test_a_keys_text_stays_until_the_page_is_left(console: Console) -> None:
    answers = {"teams/key": told(MADE)}
    async with console() as shown, looking(shown, answers) as page:
        await page.goto("teams")
        await page.click("#key button[type=submit]")
        await page.wait_for_selector("#secrets code")
        answers["teams/key"] = told(REFUSED, 401)
        await page.click("#key button[type=submit]")
        await page.wait_for_selector("#made >> text=Sign in first")
        assert await page.inner_text("#secrets code") == "rh-secret"
        answers["teams/key"] = told(MADE | {"value": "rh-another"})
        await page.click("#key button[type=submit]")
        await page.wait_for_selector("#secrets >> text=rh-another")
        assert await page.locator("#secrets code").all_inner_texts() == ["rh-another", "rh-secret"]


async def test_a_button_pressed_twice_makes_one_key(console: Console) -> None:
    asked, go = 0, asyncio.Event()

    async def slow(route: Any) -> None:
        nonlocal asked
        asked += 1
        await go.wait()
        await told(MADE)(route)

    async with console() as shown, looking(shown, {"teams/key": slow}) as page:
        await page.goto("teams")
        await page.focus("#key button[type=submit]")
        for _ in range(3):
            await page.press("#key button[type=submit]", "Enter")
        await page.wait_for_selector("#key button[type=submit]:disabled")
        go.set()
        await page.wait_for_selector("#key button[type=submit]:focus:enabled")
        await page.wait_for_selector("#secrets code")
    assert asked == 1


async def test_a_weight_that_is_none_is_told_and_what_was_made_can_have_a_limit(console: Console) -> None:
    answered = ""
    async with console() as shown, looking(shown, {"teams/key": told(MADE)}) as page:
        page.on("dialog", lambda dialog: dialog.accept(answered))
        await page.goto("teams")
        await page.fill("#team [name=id]", "search")
        await page.click("#team button")
        await page.wait_for_selector("#made >> text=Team search is made")
        await page.click("#key button[type=submit]")
        await page.wait_for_selector("#secrets code")
        whose = await page.locator("#limit [name=subject] option").evaluate_all("all => all.map((one) => one.value)")
        assert {"team search", "key k1234567"} <= set(whose)
        for answered in ("0", "abc", "", "-1"):
            await page.evaluate("document.getElementById('made').replaceChildren()")
            await page.get_by_role("button", name="Change the weight of search").click()
            assert "eight" in await page.inner_text("#made .bad"), answered


FOCUSED = "document.activeElement.dataset.call ?? document.activeElement.outerHTML"


async def polled(page: Any) -> None:
    """What was answered first is in its place once the next answer comes."""
    for _ in range(2):
        await page.wait_for_event("requestfinished", lambda sent: "part=rows" in sent.url)


async def test_who_is_at_a_button_stays_there_while_the_table_of_models_renews_itself(console: Console) -> None:
    answers: dict[str, Answer] = {}
    async with console() as shown, looking(shown, answers) as page:
        await page.goto("models")
        await page.locator("tr", has_text="rerank").locator("button").first.focus()
        before = await page.evaluate(FOCUSED)
        assert "v1/models/rerank/" in before
        await polled(page)
        assert await page.evaluate(FOCUSED) == before
        rows = await shown.page("models?part=rows")
        answers["models?part"] = told(
            re.sub(r'<tr id="model-embed">.*?</tr>', "", rows, flags=re.DOTALL), kind="text/html"
        )
        await page.wait_for_selector("tr[id=model-embed]", state="detached")
        assert await page.evaluate(FOCUSED) == before
