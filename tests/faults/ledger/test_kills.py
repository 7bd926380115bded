"""The short form of `tests.faults.ledger.kills`: one kill of each kind."""

from pathlib import Path

import pytest

from tests.faults.ledger.kills import KINDS, Run

pytestmark = pytest.mark.real


def test_what_clients_got_is_in_the_ledger_once_whoever_is_killed(tmp_path: Path) -> None:
    told = Run(tmp_path, requests=150, kills=3, clients=6, seed=3)()
    assert told.kills == dict.fromkeys(KINDS, 1)
    assert told.answered > 75
    assert told.refused.keys() <= {"503", "200"}, "200: a stream whose last event is an error"
    assert told.answered + told.broken + sum(told.refused.values()) == told.requests
