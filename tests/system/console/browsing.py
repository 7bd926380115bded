"""A real browser before a real server: what it may reach, what it can hear, and what is looked at in it."""

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
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
PAGES = ("now", "models", "adapters", "playground", "requests", "batches", "routers", "providers", "usage", "teams")
WIDTH, PHONE = 1280, 390
SPOKEN = PACK / "samples" / "kitchen-light.wav"
EAR = (
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
    f"--use-file-for-fake-audio-capture={SPOKEN}",
)  # fmt: skip
"""A microphone that hears this sentence again and again."""
PATIENT = """addEventListener("DOMContentLoaded", () => {
    if (window.htmx) window.htmx.config.defaultTimeout = 0;
})"""
"""htmx gives a request up after a minute, and asks no second time for what it should have shown."""
OUTSIDE = """() => [...document.querySelectorAll(".card")].flatMap((card) =>
    [...card.querySelectorAll("button, a, input, select, .tag")].filter((one) => {
        const { width, right } = one.getBoundingClientRect();
        return width && right > (one.closest(".scroll") ?? card).getBoundingClientRect().right + 1;
    }).map((one) => one.outerHTML.slice(0, 100)))"""


@contextmanager
def browsing() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *EAR], timeout=1000 * PATIENCE)
        try:
            yield found
        finally:
            found.close()


@contextmanager
def looking(browser: Any, url: str, provoked: tuple[str, ...] = ()) -> Iterator[Any]:
    """A fresh browser's page. It asks nobody but the server, and complains of nothing but what is `provoked`."""
    context = browser.new_context(viewport={"width": WIDTH, "height": 1180}, base_url=f"{url}/console/")
    context.grant_permissions(["microphone", "clipboard-read", "clipboard-write"], origin=url)
    context.add_init_script(PATIENT)
    found, complaints, foreign = context.new_page(), [], []
    found.set_default_timeout(1000 * PATIENCE)  # a model may have to load first
    found.on("console", lambda stated: complaints.append(stated.text) if stated.type == "error" else None)
    found.on("pageerror", lambda error: complaints.append(str(error)))
    found.on("request", lambda sent: None if sent.url.startswith((url, "blob:")) else foreign.append(sent.url))
    yield found
    context.close()
    unexpected = [text for text in complaints if not any(words in text for words in provoked)]
    assert not unexpected, unexpected
    assert not foreign, foreign


@contextmanager
def renewal(page: Any, part: str = "rows") -> Iterator[None]:
    """Wait at the end until what was in this part of the page is replaced by what the server has after a change.

    A click on a row that is about to be replaced may be lost, and what it opens is closed again.
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
    """What axe-core finds on the page, the rule and where, and what stands out of its card."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [f"{page.url}: {one['id']} {[node['html'][:100] for node in one['nodes']][:4]}" for one in found] + [
        f"{page.url}: outside its card: {html}" for html in page.evaluate(OUTSIDE)
    ]


def packed(folder: Path, to: Path) -> Path:
    with tarfile.open(to, "w:gz") as archive:
        for file in sorted(folder.iterdir()):
            archive.add(file, file.name)
    return to


def drop(page: Any, where: str, file: Path) -> None:
    """As somebody drops a file there."""
    script = """([name, data]) => {
        const held = new DataTransfer();
        held.items.add(new File([Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0))], name));
        return held;
    }"""
    held = page.evaluate_handle(script, [file.name, base64.b64encode(file.read_bytes()).decode()])
    for kind in ("dragenter", "dragover", "drop"):
        page.dispatch_event(where, kind, {"dataTransfer": held})
