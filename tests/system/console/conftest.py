"""A browser for the console's tests, and a page of it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.console.browsing import CHROMIUM, browsing, looking
from tests.system.serving import Server

REFUSED = ("status of 400", "status of 401", "status of 404", "status of 422")
"""What these tests provoke; a browser tells each of them."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    pytest.importorskip("playwright", reason="playwright is not installed: make install-test")
    if not CHROMIUM:
        pytest.skip("no Chromium here: apt-get install chromium")
    with browsing() as found:
        yield found


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    """Before the shared server; a module with a server of its own has a page of its own."""
    with looking(browser, server.url, REFUSED) as found:
        yield found
