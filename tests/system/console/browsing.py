"""A real browser for the console of a real server, with a microphone, and checks of its pages."""

import base64
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.eventually import PATIENCE
from tests.system.serving import PACK

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
PAGES = ("now", "models", "adapters", "playground", "requests", "batches", "routers", "providers", "usage", "teams")
WIDTH, PHONE = 1280, 390
SPOKEN = PACK / "samples" / "kitchen-light.wav"
MICROPHONE = (
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
    f"--use-file-for-fake-audio-capture={SPOKEN}",
)  # fmt: skip
"""Options for a fake microphone that plays this recording in a loop."""
NO_TIMEOUT = """addEventListener("DOMContentLoaded", () => {
    if (window.htmx) window.htmx.config.defaultTimeout = 0;
})"""
"""Turns off the timeout of htmx, which drops a request after a minute and does not repeat it."""
OUTSIDE = """() => [...document.querySelectorAll(".card")].flatMap((card) =>
    [...card.querySelectorAll("button, a, input, select, .tag")].filter((one) => {
        const { width, right } = one.getBoundingClientRect();
        return width && right > (one.closest(".scroll") ?? card).getBoundingClientRect().right + 1;
    }).map((one) => one.outerHTML.slice(0, 100)))"""
"""Returns the elements that stick out of their card."""


@contextmanager
def browsing() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        options = ["--no-sandbox", *MICROPHONE]
        browser = started.chromium.launch(executable_path=CHROMIUM, args=options, timeout=1000 * PATIENCE)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def looking(browser: Any, url: str, provoked: tuple[str, ...] = ()) -> Iterator[Any]:
    """Yield a page of a fresh browser context.

    At the end, check that it sent requests only to this server, and that its console has no errors other than
    `provoked` ones.
    """
    context = browser.new_context(viewport={"width": WIDTH, "height": 1180}, base_url=f"{url}/console/")
    context.grant_permissions(["microphone", "clipboard-read", "clipboard-write"], origin=url)
    context.add_init_script(NO_TIMEOUT)
    page, errors, foreign = context.new_page(), [], []
    page.set_default_timeout(1000 * PATIENCE)  # a model may have to load first
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda sent: None if sent.url.startswith((url, "blob:")) else foreign.append(sent.url))
    yield page
    context.close()
    unexpected = [text for text in errors if not any(words in text for words in provoked)]
    assert not unexpected, unexpected
    assert not foreign, foreign


@contextmanager
def renewal(page: Any, part: str = "rows") -> Iterator[None]:
    """Wait at the end until a change has replaced the contents of this part of the page.

    A click on a row that is about to be replaced may be lost, and whatever it opened is closed again.
    """
    page.eval_on_selector_all(f"[data-part={part}] > *", "all => all.forEach((one) => { one.dataset.old = ''; })")
    yield
    page.wait_for_selector(f"[data-part={part}] > [data-old]", state="detached")


def picture(page: Any, name: str) -> None:
    """Save a screenshot in light and dark to the folder CONSOLE_PICTURES, if it is set; `scripts/pictures` does."""
    if folder := os.environ.get("CONSOLE_PICTURES"):
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(400)
            page.screenshot(path=Path(folder) / f"{name}-{scheme}.png")


def faults(page: Any) -> list[str]:
    """Return axe-core's violations, with rule and place, and elements that stick out of their card."""
    from axe_playwright_python.sync_playwright import Axe

    violations = Axe().run(page).response["violations"]
    return [f"{page.url}: {one['id']} {[node['html'][:100] for node in one['nodes']][:4]}" for one in violations] + [
        f"{page.url}: outside its card: {html}" for html in page.evaluate(OUTSIDE)
    ]


def packed(folder: Path, to: Path) -> Path:
    with tarfile.open(to, "w:gz") as archive:
        for file in sorted(folder.iterdir()):
            archive.add(file, file.name)
    return to


def drop(page: Any, where: str, file: Path) -> None:
    """Drop a file on an element, as a person does with the mouse."""
    script = """([name, data]) => {
        const transfer = new DataTransfer();
        transfer.items.add(new File([Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0))], name));
        return transfer;
    }"""
    transfer = page.evaluate_handle(script, [file.name, base64.b64encode(file.read_bytes()).decode()])
    for kind in ("dragenter", "dragover", "drop"):
        page.dispatch_event(where, kind, {"dataTransfer": transfer})
