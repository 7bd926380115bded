"""The short form of `tests.faults.ledger.kills`: one kill of each kind, for models of two tasks.

tests/faults/batches/test_kills.py and tests/system/tenants/test_keys.py test rows of embeddings and reranks after a
kill.
"""

from pathlib import Path

import pytest

from tests.faults.ledger.kills import KINDS, Run

pytestmark = pytest.mark.real


def test_what_clients_got_is_in_the_ledger_once_anyone_is_killed(tmp_path: Path) -> None:
    models = ("starter-chat", "starter-speech")
    reported = Run(tmp_path, requests=100, kills=3, clients=6, seed=3, models=models)()
    assert reported.kills == dict.fromkeys(KINDS, 1)
    assert reported.answered > 40
    assert reported.refused.keys() <= {"503", "200"}, "200: a stream whose last event is an error"
    assert reported.answered + reported.broken + sum(reported.refused.values()) == reported.requests
