"""A hundred clients race for one budget over three nodes, while first a node and then the database is killed.

Only runs with FLEET_FAULTS=1. `tests/unit/fleet/test_grants.py` and `test_database_away.py` test each part alone.
"""

import os
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from fleet.grants import BlockTable
from fleet.membership.members import open_members
from tenants.ledger.report import Grouping, UsageFilter, used
from tenants.ledger.table import LedgerTable
from tenants.storage.opening import open_tables
from tenants.storage.tables import LEDGER
from tests.eventually import PATIENCE, eventually
from tests.faults.fleet.racing import FLEET, NODES, TEAM, TOKENS
from tests.postgres import postgres_server, programs
from tests.system.serving import ROOT

pytestmark = [
    pytest.mark.skipif(not os.environ.get("FLEET_FAULTS"), reason="several processes: FLEET_FAULTS=1"),
    pytest.mark.skipif(programs() is None, reason="apt-get install postgresql"),
]
CAP, CLIENTS = 1200, 34
FIRST = CAP // 4, CAP // 4
"""Requests of the surviving nodes until the database is killed."""


class Node:
    """A process of `tests.faults.fleet.racing`, and its output."""

    def __init__(self, url: str, folder: Path, name: str, first: int = 0) -> None:
        """Start the node. After `first` requests it waits until the database is away; with 0 it does not wait."""
        numbers = map(str, (CAP, CLIENTS, first))
        words = [sys.executable, "-m", "tests.faults.fleet.racing", url, str(folder), name, *numbers]
        self._process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.strip())

    def uids(self, what: str) -> set[str]:
        return {line.removeprefix(f"{what} ") for line in tuple(self.lines) if line.startswith(f"{what} ")}

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    def wait(self) -> int:
        code = self._process.wait(PATIENCE)
        self._reader.join()
        return code


def test_the_budget_is_not_exceeded_and_every_answer_is_counted_once(tmp_path: Path) -> None:
    with postgres_server() as server, closing(open_members(server.url, FLEET)) as members:
        nodes = [Node(server.url, tmp_path, name, first) for name, first in zip(NODES, (0, *FIRST), strict=True)]
        try:

            def uids(what: str) -> set[str]:
                return set[str]().union(*(node.uids(what) for node in nodes))

            eventually(lambda: len(uids("done")) >= CAP // 4)
            nodes[0].kill()
            eventually(lambda: len(uids("done")) >= CAP // 2)
            server.kill()
            eventually(
                lambda: all("away" in node.lines for node in nodes[1:]), lambda: [one.lines[-2:] for one in nodes]
            )
            server.start()
            nodes.append(Node(server.url, tmp_path, NODES[0]))  # restarts on its own journal
            assert [node.wait() for node in nodes[1:]] == [0, 0, 0]
        finally:
            for node in nodes:
                node.kill()
        assert all(node.lines[-1] == "end" for node in nodes[1:])
        let_in, answered = uids("in"), uids("done")
        assert CAP - CAP // 4 <= len(let_in) <= CAP
        with closing(open_tables(tmp_path, server.url)) as database:
            with database.read() as connection:
                rows = {row.uid: row.state for row in connection.execute(sa.select(LEDGER.c.uid, LEDGER.c.state))}
            settled = {uid for uid, state in rows.items() if state == "settled"}
            assert set(rows.values()) <= {"settled", "interrupted"}
            assert len(rows) <= CAP
            assert answered <= settled
            unseen = settled - answered
            assert len(unseen) + len(rows.keys() - settled) <= CLIENTS, "those that ran on the killed node"
            (sums,) = used(database, UsageFilter(0, 2**40, (Grouping.TEAM,)))
            assert sums.names == (TEAM,)
            assert (sums.requests, sums.prompt_tokens) == (len(rows), TOKENS * len(settled))
            assert LedgerTable(database, "any").differences() == []
        assert len(rows) <= BlockTable(members.database, "any").granted("cap") <= CAP
