"""A small form of `python -m tests.faults.ledger.sums`."""

from pathlib import Path

import pytest

from tests.faults.ledger.sums import run


@pytest.mark.long
async def test_everything_is_counted_exactly(tmp_path: Path) -> None:
    told = await run(tmp_path, 400, 64)
    assert told.answered + told.left + told.refused == 400
    assert min(told.answered, told.left, told.refused) > 0
