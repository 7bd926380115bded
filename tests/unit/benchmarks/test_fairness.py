"""The benchmark of fairness with made-up answers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.harness import Bench, RunSettings
from benchmarks.load.client import Reply
from benchmarks.load.clients import Cell
from benchmarks.load.workload import Workload
from benchmarks.tenants import sharing


async def test_requests_that_failed_while_a_team_was_alone_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures during the flood are compared with those of these requests."""
    usage = bytearray(b'{"usage":{"completion_tokens":3}}')
    cell = Cell([Reply(10.0, 200, [10.5, 10.6], 2, body=usage), Reply(10.0, error="timeout")], 1.0, 0.0, 0.0)

    async def closed_loop(*_: object) -> Cell:
        return cell

    monkeypatch.setattr(sharing, "closed_loop", closed_loop)
    server: Any = SimpleNamespace(model="m", request_of=lambda _team, request, _tier: request)
    bench = Bench("fairness", RunSettings(quick=True, tiny=True, smoke=True, seed=0, work=tmp_path))
    await sharing._classes(bench, server, Workload(0))
    assert set(bench.failures) == {
        f"{where}: timeout" for where in ("critical alone", "critical", "critical flood", "batch")
    }  # fmt: skip


def test_an_answer_without_a_queue_time_does_not_count_as_0_ms() -> None:
    head = b"HTTP/1.1 200 OK\r\nServer-Timing: queue;dur=12.50, load;dur=0.00"
    assert sharing._queued(Reply(10.0, 200, head=head)) == 12.5
    with pytest.raises(ValueError, match="how long it was in the queue"):
        sharing._queued(Reply(10.0, 200, head=b"HTTP/1.1 200 OK"))
