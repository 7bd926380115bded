"""The benchmark of the console has no figures for pages that showed nothing."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import console
from benchmarks.harness import Bench, RunSettings
from benchmarks.load.client import Reply
from benchmarks.load.clients import Cell
from benchmarks.load.workload import Workload


class Browser:
    """A page that gets an answer with this status."""

    def __init__(self, status: int | None) -> None:
        self._status = status

    async def goto(self, _address: str) -> Any:
        return None if self._status is None else self

    @property
    def ok(self) -> bool:
        return self.status < 300

    @property
    def status(self) -> int:
        assert self._status is not None
        return self._status


async def test_a_page_that_is_an_error_is_not_timed() -> None:
    page: Any = Browser(200)
    await console._open(page, "http://127.0.0.1:1/console/now")
    for status in (500, None):
        page = Browser(status)
        with pytest.raises(RuntimeError, match=r"console/now: (500|no answer)"):
            await console._open(page, "http://127.0.0.1:1/console/now")


@pytest.mark.parametrize(("reported", "failures"), [(b"HTTP/1.1 404\r\n\r\n", 1), (b"event: now\n\n", 0)])
async def test_pages_that_show_nothing_are_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: bytes, failures: int
) -> None:
    """They would cost chat nothing, which the benchmark has to show for pages that work."""

    order: list[str] = []

    async def load(_bench: Bench, _server: object, _workload: object, where: str) -> Cell:
        order.append(where)
        await asyncio.sleep(0.05)
        while where == "five pages" and not failures and not bench.counts["events seen"]:
            await asyncio.sleep(0.01)  # a busy machine has not opened the pages yet
        body = bytearray(b'{"usage":{"completion_tokens":3}}')
        return Cell([Reply(10.0, 200, [10.5], 1, body=body)], 1.0, 0.0, 0.0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reported)
        writer.close()

    monkeypatch.setattr(console, "_load", load)
    bench = Bench("console", RunSettings(quick=True, tiny=True, smoke=True, seed=0, work=tmp_path))
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        server: Any = SimpleNamespace(port=listening.sockets[0].getsockname()[1])
        await console._pages(bench, server, Workload(0))
    assert sum(bench.failures.values()) == failures
    assert order == ["nobody looks", "five pages", "five pages", "nobody looks"], "each comes first once"
