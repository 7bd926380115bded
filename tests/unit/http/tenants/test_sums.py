"""A small form of `python -m tests.faults.ledger.sums`."""

from pathlib import Path

import pytest

from tests.faults.ledger.sums import run


@pytest.mark.long
async def test_sums_equal_the_rows_of_all_requests(tmp_path: Path) -> None:
    reported = await run(tmp_path, 400, 64)
    assert reported.answered + reported.left + reported.refused == 400
    assert min(reported.answered, reported.left, reported.refused) > 0
