"""A browser for the console's tests, and a page in it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.console.browsing import CHROMIUM, browsing, looking
from tests.system.serving import Server

REFUSED = ("status of 400", "status of 401", "status of 404", "status of 422")
"""Refusals that these tests provoke. The browser logs each as an error."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    pytest.importorskip("playwright", reason="playwright is not installed: make install-test")
    if not CHROMIUM:
        pytest.skip("no Chromium here: apt-get install chromium")
    with browsing() as browser:
        yield browser


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    """A page for the shared server. Modules with a server of their own override it."""
    with looking(browser, server.url, REFUSED) as page:
        yield page
