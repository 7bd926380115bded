"""A server restored from a backup taken while lines ran goes on with the batch."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from batches.records import BatchState, LineCounts
from models.messages import Event, HttpCall
from registry.errors import RoundhouseError
from registry.state.database import State
from runtime.cli.local.backup import back_up, restore
from tests.unit.http.batches.bench import Bench, body, echo

LINES, BEFORE = 40, 5


async def test_a_restored_batch_runs_each_line_once(tmp_path: Path) -> None:
    with State(tmp_path / "data"):
        pass
    bench, answered = Bench(tmp_path / "data"), list[HttpCall]()
    await bench.open()

    def answer_some(request: HttpCall) -> Sequence[Event | RoundhouseError]:
        answered.append(request)
        if len(answered) > BEFORE:
            bench.link.gate.clear()
        return echo(request)

    bench.link.script = answer_some
    await bench.create([body(f"t{number}") for number in range(LINES)])
    copied = await bench.until(lambda batch: batch.counts.completed >= BEFORE and bench.worker.running > 1)
    await asyncio.to_thread(back_up, bench.folder, tmp_path / "copy", pepper=False, files=True)
    before = {line.number: line.uid for line in await bench.results()}
    assert copied.state is BatchState.IN_PROGRESS
    assert BEFORE <= len(before) < LINES
    bench.link.gate.set()
    await bench.close()

    restore(tmp_path / "copy", tmp_path / "new")
    later = Bench(tmp_path / "new")
    later.bodies = bench.bodies
    await later.open()
    try:
        batch = await later.until_final()
        assert (batch.state, batch.counts) == (BatchState.COMPLETED, LineCounts(LINES, LINES))
        lines = await later.results()
        assert [line.number for line in lines] == list(range(LINES))
        assert all(line.result == f'{{"text": "t{line.number}"}}'.encode() for line in lines)
        assert {line.number: line.uid for line in lines if line.number in before} == before, "these did not run again"
        assert len(later.link.requests) == LINES - len(before)
        rows = later.rows()
        assert rows.pop(("settled", "done", 7)) == LINES, "each line is charged once"
        assert {(state, tokens) for state, _, tokens in rows} <= {("interrupted", 0)}, (
            "lines that were running in the copy"
        )
        assert batch.usage.output == 2 * LINES
        assert later.differences() == []
    finally:
        await later.close()
