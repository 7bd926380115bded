"""Changes that a person makes in the console of the shared server, undone after each test."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.console.browsing import drop, packed, renewal
from tests.system.serving import PACK, Server

pytestmark = pytest.mark.real
NAMES = ("spun", "blended")
"""Adapters that these tests make."""
WATCH = """id => {
    window.states = [];
    new MutationObserver(() => window.states.push(document.getElementById(id).innerHTML))
        .observe(document.getElementById(id), { subtree: true, childList: true, characterData: true });
}"""
"""Records each state of a part of the page, because steps may go by faster than a test reads them."""


@pytest.fixture(autouse=True)
def restored(server: Server) -> Iterator[None]:
    before = {model["id"] for model in server.http.get("/v1/models").json()["data"]}
    yield
    for name in NAMES:
        server.http.delete(f"/v1/adapters/{name}?force=true")
    for model in server.http.get("/v1/models").json()["data"]:
        if model["id"] not in before:
            server.http.delete(f"/v1/models/{model['id']}?force=true")


def test_a_model_is_proposed_and_added_with_its_steps(page: Any, server: Server) -> None:
    page.goto("models")
    page.fill("#add [name=model]", str(PACK / "starter-rerank"))
    page.fill("#add [name=id]", "my-rerank")
    page.click("text=Propose a recipe")
    page.wait_for_selector("#added .good")
    assert "task: rerank" in page.inner_text("#added pre")
    assert server.http.get("/v1/models/my-rerank").status_code == 404, "nothing was added"
    page.evaluate(WATCH, "added")
    page.click("text=Add it")
    page.wait_for_selector("#added .good >> text=was added")
    states = page.evaluate("window.states")
    assert any("<progress" in state for state in states), states
    steps = ("looking", "added new", "done new")
    assert any(step in state for state in states for step in steps), (
        "of steps at the same moment only the last is shown"
    )
    row = page.locator("[data-part=rows] tr", has_text="my-rerank")
    row.get_by_role("button", name="Load").click()
    row.locator(".tag.ready").wait_for()
    requested = {"model": "my-rerank", "query": "fruit", "documents": ["an apple", "a train"]}
    assert server.http.post("/v1/rerank", json=requested).status_code == 200
    page.fill("#add [name=model]", "/nowhere/at/all")
    page.click("text=Add it")
    page.wait_for_selector("#added .bad")


def test_a_recipe_is_changed_and_a_model_removed(page: Any, server: Server) -> None:
    page.on("dialog", lambda dialog: dialog.accept())
    added = server.http.post("/v1/models", json={"source": str(PACK / "starter-rerank"), "id": "my-rerank"})
    assert added.status_code == 201, added.text
    page.goto("models?id=my-rerank")
    for key, value, version in (("batching.max_requests", "4", 2), ("description", "Ours", 3)):
        page.fill("#edit [name=key]", key)
        page.fill("#edit [name=value]", value)
        page.click("#edit button")
        page.wait_for_selector(f"#edited >> text=my-rerank has version {version} of its recipe")
    recipe = page.locator("#chosen pre[aria-label^=Recipe]", has_text="description: Ours")
    recipe.wait_for()
    assert "max_requests: 4" in recipe.inner_text()
    page.fill("#edit [name=key]", "batching.max_requests")
    page.fill("#edit [name=value]", "many")
    page.click("#edit button")
    page.wait_for_selector("#edited .bad")
    page.locator("#model-my-rerank").get_by_role("button", name="Remove").click()
    page.wait_for_selector("#said >> text=my-rerank was removed")
    assert server.http.get("/v1/models/my-rerank").status_code == 404


def test_the_filter_finds_an_adapter_among_many(page: Any) -> None:
    page.goto("adapters")
    with renewal(page):
        page.fill("[name=words]", "rot13")
    assert page.locator("#rows > tr:visible").count() == 1
    with renewal(page):
        page.evaluate("document.dispatchEvent(new Event('changed'))")
    assert page.locator("#rows > tr:visible").count() == 1, "also after the table was renewed"
    page.goto("playground")
    page.fill("[data-filter=targets-left]", "rot13")
    left = page.locator("#targets-left option")
    assert left.evaluate_all("all => all.filter((one) => !one.hidden).map((one) => one.value)") == [
        "starter-chat:rot13"
    ]
    assert page.input_value("#targets-left") == "starter-chat:rot13", "and is chosen"


def test_a_version_passes_its_probe_and_the_one_before_is_made_current(
    page: Any, server: Server, tmp_path: Path
) -> None:
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto("adapters")
    page.click("#register summary")
    for adapter, expected in (("uppercase", "CALL"), ("reverse-letters", "llac")):
        page.fill("[name=probe_prompt]", "call the lucky bird")
        page.fill("[name=probe_expected]", expected)
        with renewal(page):
            drop(page, "#drop", packed(PACK / "adapters" / adapter, tmp_path / "spun.tar.gz"))
            page.wait_for_selector("#checked .good >> text=is registered")
            page.wait_for_selector(f"#checked >> text={server.http.get('/v1/adapters/spun').json()['digest']}")
    row = page.locator("#rows tr", has_text="spun")
    with renewal(page):
        row.get_by_role("button", name="Probe").click()
        page.wait_for_selector("#checked .good >> text=passed its probe")
    assert "answered “llac" in page.inner_text("#checked")
    row.locator(".tag.passed").wait_for()
    row.locator("summary").click()
    with renewal(page):
        row.get_by_role("button", name="Make current").click()
        page.wait_for_selector("#said >> text=spun now uses v1")
    row.locator("summary").click()
    row.get_by_role("button", name="Make current").wait_for()
    assert server.http.get("/v1/adapters/spun").json()["version"] == "v1"
    row.get_by_role("button", name="Probe").click()
    page.wait_for_selector("#checked >> text=answered “CALL")


def test_two_adapters_are_combined_and_the_result_is_merged_into_a_model(page: Any, server: Server) -> None:
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto("adapters")
    page.fill("#combine [name=name]", "blended")
    for place, name in enumerate(("uppercase", "title-case")):
        page.locator("#combine [name=part]").nth(place).select_option(f"starter-chat:{name}")
        page.locator("#combine [name=weight]").nth(place).fill(("1", "0")[place])
    with renewal(page):
        page.click("#combine button")
        page.wait_for_selector("#combined .good >> text=blended v1 is registered")
    row = page.locator("#rows tr", has_text="blended")
    row.wait_for()
    requested = {"messages": [{"role": "user", "content": "call the lucky bird"}], "temperature": 0, "max_tokens": 40}
    blend = server.http.post("/v1/chat/completions", json={"model": "blended", **requested}).json()
    assert blend["choices"][0]["message"]["content"] == "CALL THE LUCKY BIRD"
    row.get_by_role("button", name="Merge").click()
    page.wait_for_selector("#checked .good >> text=are now one model")
    page.click("text=Serve it")
    page.wait_for_selector("#checked .good >> text=was added")
    merged = page.inner_text("#checked").split()[0]
    whole = server.http.post("/v1/chat/completions", json={"model": merged, **requested})
    assert whole.json()["choices"][0]["message"]["content"] == "CALL THE LUCKY BIRD"
