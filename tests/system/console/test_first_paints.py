"""The benchmark of the console finds and times the pages of a real server."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import console
from benchmarks.harness import Bench, RunSettings
from tests.system.console.browsing import CHROMIUM, PAGES
from tests.system.serving import Server

pytestmark = pytest.mark.real


async def test_each_page_that_the_server_has_is_timed(tmp_path: Path, server: Server) -> None:
    """A server that belongs to no fleet has no page about one."""
    pytest.importorskip("playwright", reason="playwright is not installed: make install-test")
    if not CHROMIUM:
        pytest.skip("no Chromium here: apt-get install chromium")
    bench = Bench("console", RunSettings(quick=True, tiny=True, smoke=True, seed=0, work=tmp_path))
    where: Any = server
    await console._paints(bench, where)
    timed = {name.removeprefix("paint.") for name in bench.figures if name.startswith("paint.")}
    assert timed == {*PAGES, "slowest", "largest"}
