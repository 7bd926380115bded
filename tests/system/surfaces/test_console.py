"""The console in a real browser on the real server: what a person does there, how it looks, who can use it.

CONSOLE_PICTURES=FOLDER keeps what was seen; docs/pictures are made so.
"""

import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.serving import PACK, Server

pytestmark = pytest.mark.real
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
PAGES = ("now", "models", "adapters", "playground", "requests", "usage", "teams")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (make install-test brings it)")
if not CHROMIUM:
    pytest.skip("no Chromium here: apt-get install chromium", allow_module_level=True)


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own: its first key ends its being open."""
    found = Server(tmp_path_factory.mktemp("console") / "data")
    yield found.wait_ready()
    found.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Any, console: Server) -> Iterator[Any]:
    """A fresh browser that may reach this server alone; what its console complains about fails the test."""
    context = browser.new_context(viewport={"width": 1320, "height": 1180}, base_url=f"{console.url}/console/")
    found, complaints, elsewhere = context.new_page(), [], []
    found.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    found.on("pageerror", lambda error: complaints.append(str(error)))
    found.on(
        "request", lambda sent: None if sent.url.startswith((console.url, "blob:")) else elsewhere.append(sent.url)
    )
    yield found
    context.close()
    refused = ("400", "401", "422")  # what these tests provoke; a browser tells each of them
    assert [text for text in complaints if not any(f"status of {status}" in text for status in refused)] == []
    assert elsewhere == []


def picture(page: Any, name: str) -> None:
    if folder := os.environ.get("CONSOLE_PICTURES"):
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(400)
            page.screenshot(path=Path(folder) / f"{name}-{scheme}.png")


def packed(folder: Path, to: Path) -> Path:
    with tarfile.open(to, "w:gz") as archive:
        for file in sorted(folder.iterdir()):
            archive.add(file, file.name)
    return to


def test_a_first_visit_shows_a_swap_its_answer_and_what_it_cost(page: Any, console: Server) -> None:
    page.goto("./")
    assert page.url.endswith("/console/now")
    page.click("#ask")
    page.wait_for_selector("#cost:not([hidden])")
    assert page.inner_text("#answer") == "SBA", "acronym of 'sun bird apple'"
    assert "Bringing the adapter in cost" in page.inner_text("#cost-words")
    page.wait_for_selector("#decisions li:has-text('acronym')")
    page.wait_for_selector(".stall.held, .stall.new, .stall.run", state="attached")
    for _ in range(4):
        page.click("#ask")
        page.wait_for_selector("#ask:enabled")
    page.wait_for_function("document.querySelectorAll('#decisions li').length >= 5")
    picture(page, "now")


def test_a_good_adapter_is_registered_and_a_bad_one_told_every_fault(page: Any, tmp_path: Path) -> None:
    page.goto("adapters")
    page.set_input_files("#file", packed(PACK / "adapters" / "uppercase", tmp_path / "loud.tar.gz"))
    page.wait_for_selector("#checked .good")
    assert "loud v1 is registered" in page.inner_text("#checked")
    page.wait_for_selector("#rows >> text=loud")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "adapter_config.json").write_text('{"peft_type": "IA3", "r": -1}')
    (broken / "adapter_model.safetensors").write_bytes(b"no tensors")
    page.set_input_files("#file", packed(broken, tmp_path / "broken.tar.gz"))
    page.wait_for_selector("#checked .bad")
    assert page.locator("#checked li").count() >= 1
    picture(page, "adapters")


def test_two_adapters_answer_side_by_side(page: Any) -> None:
    page.goto("playground")
    left, right = page.locator("[data-side] select").all()
    left.select_option("starter-chat:uppercase")
    right.select_option("starter-chat:reverse-letters")
    page.fill("[name=text]", "call the lucky bird")
    page.click("text=Ask both")
    page.wait_for_selector("#chat-form button:enabled >> text=Ask both")
    answers = [side.locator(".turns p").last.inner_text() for side in page.locator("[data-side]").all()]
    assert answers[0] == "CALL THE LUCKY BIRD"
    assert answers[1] != answers[0]
    digests = page.locator("[data-digest]").all_inner_texts()
    assert all("@sha256:" in digest for digest in digests)
    assert digests[0] != digests[1]
    picture(page, "playground")
    page.goto("requests")
    assert page.locator("#rows tr").count() >= 2
    picture(page, "requests")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_a_phone_and_each_thing_has_a_name(page: Any, scheme: str) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.emulate_media(color_scheme=scheme)
    for slug in PAGES:
        page.goto(slug)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, slug
        nameless = page.evaluate(
            """[...document.querySelectorAll("button, a, input:not([type=hidden]), select, textarea:not([hidden])")]
            .filter(e => !e.hidden && !(e.innerText || "").trim() && !e.labels?.length && !e.getAttribute("aria-label"))
            .map(e => e.outerHTML.slice(0, 90))"""
        )
        assert nameless == [], slug
        assert page.evaluate("document.querySelectorAll('h1').length") == 1
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"


def test_keys_are_shown_once_and_end(page: Any) -> None:
    """The last one: the first key closes the server."""
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto("teams")
    for box in page.locator("#key [name=scopes]").all():
        box.check()
    page.click("#key button[type=submit]")
    key = page.inner_text("#made code")
    assert key.startswith("rh-")
    page.wait_for_selector(f"#rows >> text={key[3:11]}")
    page.click("#use")
    page.wait_for_selector("text=Sign out")
    assert key not in page.content()
    picture(page, "teams")
    page.goto("usage")
    page.wait_for_selector("h1 >> text=Usage")
    page.click("text=Sign out")
    page.wait_for_selector("#sign-in")
    page.fill("[name=key]", "rh-wrongwro_wrong")
    page.click("text=Sign in >> nth=-1")
    page.wait_for_selector("#said .bad")
    page.fill("[name=key]", key)
    page.press("[name=key]", "Enter")
    page.wait_for_url("**/now")
    page.goto("teams")
    page.click(f"#rows tr:has-text('{key[3:11]}') >> text=Revoke")
    page.wait_for_selector("#said .good")
