"""The newest report of each node, with an index of nodes.

Invalid reports are ignored, and counted by reason:

| reason      | the report                                                                            |
|-------------|---------------------------------------------------------------------------------------|
| `too_large` | has more than MAX_REPORT_BYTES                                                        |
| `malformed` | is not JSON, or has a value out of bounds                                             |
| `sender`    | names a node or an address other than its sender's                                    |
| `old`       | has a lower boot than an earlier one, or no higher `seq`                              |
| `future`    | gives an uptime that grew by over MAX_LEAD_SECONDS more than the time that has passed |
| `full`      | is from a new node, and there are already MAX_NODES                                   |

A node whose answers begin late (`fleet.lateness`) is removed from the index while it is out.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Literal, NamedTuple

from fleet import lateness
from fleet.index import NodeIndex
from fleet.lateness import Lateness
from fleet.reports import MAX_REPORT_BYTES, NodeReport, decode
from registry.base.json import NOT_JSON

MAX_NODES = 4096
MAX_LEAD_SECONDS = 10.0
REPORT_SECONDS = 3.0
"""A node whose newest report is older gets no new requests. Nodes report every second and at each change."""
DRIFT = 0.01
"""Largest relative drift between two monotonic clocks."""

Verdict = Literal["taken", "too_large", "malformed", "sender", "old", "future", "full"]


class StoredReport(NamedTuple):
    report: NodeReport
    at: float
    """Time at which it was made, by this server's clock: its arrival minus its delay."""


class ReportTable:
    """The newest report of each node. For one thread; `now` is the caller's monotonic clock in seconds."""

    def __init__(self) -> None:
        self._stored: dict[str, StoredReport] = {}
        self._starts: dict[str, float] = {}
        """Start of a node's boot by this server's clock: the minimum of arrival minus uptime."""
        self._lateness: dict[str, Lateness] = {}
        """Lateness of nodes that recently had a late answer, or are out."""
        self.ignored: Counter[Verdict] = Counter()
        self.index = NodeIndex()

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[StoredReport]:
        return iter(self._stored.values())

    def get(self, node: str) -> StoredReport | None:
        return self._stored.get(node)

    def fresh(self, node: str, now: float) -> NodeReport | None:
        """The newest report of a node; None: it has none, or has been silent since for REPORT_SECONDS."""
        stored = self._stored.get(node)
        return None if stored is None or stored.at < now - REPORT_SECONDS else stored.report

    def take(self, data: bytes, now: float, sender: str | None = None, address: str | None = None) -> Verdict:
        """Store a report if it is valid and newer, or else count the reason.

        Args:
            sender: the node at the other end of the connection; None if unknown.
            address: the one at which that node was called, to which its requests go; None if unknown.
        """
        if len(data) > MAX_REPORT_BYTES:
            return self._ignore("too_large")
        try:
            report = decode(data)
        except NOT_JSON:
            return self._ignore("malformed")
        if address is not None and report.address != address:
            return self._ignore("sender")
        return self.add(report, now, sender)

    def add(self, report: NodeReport, now: float, sender: str | None = None) -> Verdict:
        """Store a decoded report, as `take` does."""
        node = report.node
        if sender is not None and node != sender:
            return self._ignore("sender")
        before, start = self._stored.get(node), now - report.uptime
        if before is None:
            if len(self._stored) >= MAX_NODES:
                return self._ignore("full")
        elif report.boot < before.report.boot or (
            report.boot == before.report.boot and report.seq <= before.report.seq
        ):
            return self._ignore("old")
        elif report.boot == before.report.boot:
            earliest = self._starts[node]
            if start < earliest - MAX_LEAD_SECONDS and now - before.at <= MAX_LEAD_SECONDS:
                return self._ignore("future")
            start = min(start, earliest + DRIFT * max(0.0, now - before.at))
        self._starts[node] = start
        self._stored[node] = StoredReport(report, start + report.uptime)
        if not self.is_out(node, now):
            self.index.take(report, start + report.uptime)
        return "taken"

    def remove(self, node: str) -> None:
        self._stored.pop(node, None)
        self._starts.pop(node, None)
        self._lateness.pop(node, None)
        self.index.remove(node)

    def exclude(self, node: str) -> None:
        """Stop using a node that did not answer until its next report."""
        self.index.remove(node)

    def copy(self) -> "ReportTable":
        """Return a copy with the same reports and late nodes, to which a report can be added."""
        table = ReportTable()
        table._lateness = dict(self._lateness)
        for report, at in self:
            table.add(report, at)
        return table

    def count_sent(self, node: str, model: str, now: float) -> None:
        """Count a request that this server sent, until a report includes it."""
        self.index.count_sent(node, model, now)
        before = self._lateness.get(node)
        if before is not None and (after := lateness.sent(before, now)) is not before:
            self._lateness[node] = after
            self.index.remove(node)

    # --- late nodes -------------------------------------------------------------------------------------------------
    def count_answer(self, node: str, sent_at: float, now: float, *, is_late: bool) -> bool:
        """Count whether an answer began in time. Returns whether the node therefore goes out or comes back."""
        stored, before = self._stored.get(node), self._lateness.get(node)
        if stored is None or (before is None and not is_late):
            return False
        out = sum(one.since is not None for one in self._lateness.values())
        may_leave, before = 2 * (out + 1) <= len(self._stored), before or Lateness()
        after = lateness.answered(before, sent_at, now, is_late=is_late, may_leave=may_leave)
        if after.since is None and not any(after.recent):
            self._lateness.pop(node, None)
        else:
            self._lateness[node] = after
        if (after.since is None) == (before.since is None):
            return False
        if after.since is not None:
            self.index.remove(node)
        else:
            self.index.take(stored.report, stored.at)
        return True

    @property
    def has_late(self) -> bool:
        """Whether any node recently had a late answer."""
        return bool(self._lateness)

    def is_out(self, node: str, now: float) -> bool:
        """Return whether a node is out, so that others get its requests."""
        known = self._lateness.get(node)
        return known is not None and known.is_out(now)

    def _ignore(self, verdict: Verdict) -> Verdict:
        self.ignored[verdict] += 1
        return verdict
