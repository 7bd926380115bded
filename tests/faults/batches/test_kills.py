"""The short form of `tests.faults.batches.kills`: one kill of each kind, and no reranker, which takes long to load."""

from pathlib import Path

import pytest

from tests.faults.batches.kills import KINDS, LINE_KINDS, Run

pytestmark = pytest.mark.real


def test_each_line_is_answered_and_paid_for_once_whatever_is_killed(tmp_path: Path) -> None:
    kinds = [kind for kind in LINE_KINDS if kind != "rerank"]
    reported = Run(tmp_path, lines=200, kills=len(KINDS), seed=3, kinds=kinds)()
    assert reported.kills["gateway"]
    assert len(reported.kills) > 1, "on a slow machine lines may end before the last kills"
    assert reported.answered + sum(reported.failed.values()) == 200
    assert reported.answered > 150
