"""A real browser in front of the application, without a port: its requests are passed on directly."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.eventually import PATIENCE
from tests.system.console.browsing import CHROMIUM
from tests.unit.console.conftest import ConsoleRig

HERE = "http://127.0.0.1"
MICROPHONE = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
"""Flags for a permitted microphone that hears a tone."""
Answer = Callable[[Any], Awaitable[None]]
"""Playwright's `Route`."""


@asynccontextmanager
async def browsing() -> AsyncIterator[Any]:
    playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed: make install-test")
    if not CHROMIUM:
        pytest.skip("no Chromium here: apt-get install chromium")
    async with playwright.async_playwright() as started:
        browser = await started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", *MICROPHONE], timeout=1000 * PATIENCE
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def looking(
    browser: Any, displayed: ConsoleRig, given: Mapping[str, Answer] | None = None, host: str = HERE
) -> AsyncIterator[Any]:
    """Yield a page in a new profile: no cookie, no cache and nothing stored.

    Args:
        given: beginnings of paths, and what answers them instead of the application. `events` are refused unless
            there is an answer here, because a stream does not end, and so cannot be passed on whole.
        host: the browser's name for the server.
    """
    answers = given if given is not None else {}
    faults: list[str] = []

    async def answered(route: Any) -> None:
        path = route.request.url.removeprefix(f"{host}/").removeprefix("console/")
        for start, answer in answers.items():
            if path.startswith(start):
                return await answer(route)
        if path.startswith("events"):
            return await route.abort()
        return await _passed(displayed, route)

    context = await browser.new_context(base_url=f"{host}/console/")
    page = await context.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.on("pageerror", lambda error: faults.append(str(error)))
    await page.route("**/*", answered)
    try:
        yield page
    finally:
        await page.unroute_all(behavior="ignoreErrors")
        await context.close()
    assert not faults, faults


async def _passed(displayed: ConsoleRig, route: Any) -> None:
    sent = route.request
    headers = {name: value for name, value in sent.headers.items() if name in ("accept", "content-type", "hx-request")}
    if sent.method != "GET":
        headers["origin"] = HERE
    path = sent.url.split("/", 3)[3]
    got = await displayed.client.request(sent.method, f"/{path}", headers=headers, content=sent.post_data_buffer)
    kept = {name: value for name, value in got.headers.items() if name not in ("content-length", "content-encoding")}
    await route.fulfill(status=got.status_code, headers=kept, body=got.content)


def reported(value: Any, status: int = 200, kind: str = "application/json") -> Answer:
    """Return an answer that is always the same. value: text, or a JSON value."""

    async def answer(route: Any) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        await route.fulfill(status=status, headers={"content-type": kind}, body=text)

    return answer
