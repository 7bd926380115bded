"""What a node reports of itself, and the newest report of each node.

A report comes from another machine, so its size and every value in it are bounded. One that does not count is ignored
and counted by its reason:

| reason      | the report                                                                               |
|-------------|------------------------------------------------------------------------------------------|
| `too_large` | has more than MAX_REPORT_BYTES                                                           |
| `malformed` | is no JSON, or has a value out of its bounds                                             |
| `sender`    | names another node than the one that sent it                                             |
| `old`       | has a lower boot than one before, or a `seq` that is not higher                          |
| `future`    | says that its node has been up for longer than time has passed, by over MAX_LEAD_SECONDS |
| `full`      | is of a new node, and there are MAX_NODES                                                |
"""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from registry.base.json import NOT_JSON

MAX_REPORT_BYTES = 1 << 20
MAX_NODES = 4096
MAX_ADAPTERS = 4096
MAX_LEAD_SECONDS = 10.0
REPORT_SECONDS = 3.0
"""A node whose newest report is older gets no new requests. Nodes report once a second, and at each change."""
DRIFT = 0.01
"""By how much two monotonic clocks may differ in speed."""

NodeId = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?\Z")]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Digest = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
Count = Annotated[int, Meta(ge=0, le=1 << 62)]
Seconds = Annotated[float, Meta(ge=0, le=1e10)]
Fraction = Annotated[float, Meta(ge=0, le=1)]

ReplicaPhase = Literal["loading", "ready", "asleep", "draining", "unloading", "failed"]
Verdict = Literal["taken", "too_large", "malformed", "sender", "old", "future", "full"]


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    device: Name
    """'cpu' or 'cuda:0', as the node counts them."""
    label: Annotated[str, Meta(max_length=200)] = ""
    """The product's name."""
    budget: Count
    """Bytes for models."""
    used: Count = 0
    """Bytes that models hold, or have reserved."""


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    """All replicas of one model on one node together: the node chooses among them."""

    model: Name
    revision: Annotated[str, Meta(max_length=200)] = ""
    state: ReplicaPhase
    """Of the one that is closest to answering."""
    ready: Annotated[int, Meta(ge=0, le=256)] = 1
    """How many of them are ready."""
    capacity: Annotated[int, Meta(ge=1, le=1 << 20)] = 1
    """Requests that run at once in those."""
    running: Count = 0
    waiting: Count = 0
    start_seconds: Seconds = 0.0
    """Predicted until a new request would start; 0: at once."""
    prefill_seconds: Seconds = 0.0
    """To read the mean prompt that is not cached."""
    kv_used: Fraction = 0.0
    devices: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    node: NodeId
    boot: Annotated[int, Meta(ge=1, le=1 << 62)]
    """From the node's row in the database; higher at each start."""
    seq: Count
    """Higher in each report of a boot."""
    uptime: Seconds
    """By the node's monotonic clock: the arrival less this shows how late a report is."""
    version: Name
    address: Annotated[str, Meta(min_length=1, max_length=512)]
    """URL of its listener for the fleet."""
    devices: Annotated[tuple[DeviceReport, ...], Meta(max_length=64)] = ()
    replicas: Annotated[tuple[ReplicaReport, ...], Meta(max_length=256)] = ()
    placed: Annotated[tuple[Digest, ...], Meta(max_length=MAX_ADAPTERS)] = ()
    """Adapters that have a place in a batch."""
    staged: Annotated[tuple[Digest, ...], Meta(max_length=MAX_ADAPTERS)] = ()
    """Adapters that are packed in host memory."""
    draining: bool = False


class StoredReport(NamedTuple):
    report: NodeReport
    at: float
    """When its node made it, by this server's clock: the arrival less its delay."""


_DECODER = msgspec.json.Decoder(NodeReport)
_ENCODER = msgspec.json.Encoder()


def encode(report: NodeReport) -> bytes:
    """One line of JSON."""
    return _ENCODER.encode(report)


class ReportTable:
    """The newest report of each node. For one thread; `now` is the caller's monotonic clock in seconds."""

    def __init__(self) -> None:
        self._stored: dict[str, StoredReport] = {}
        self._starts: dict[str, float] = {}
        """When a node's boot began, by this server's clock: the least arrival less uptime of its reports."""
        self.ignored: Counter[Verdict] = Counter()

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[StoredReport]:
        return iter(self._stored.values())

    def get(self, node: str) -> StoredReport | None:
        return self._stored.get(node)

    def take(self, data: bytes, now: float, sender: str | None = None) -> Verdict:
        """Store a report that is newer than what is there; else count why not.

        Args:
            sender: the node that the connection belongs to; None: not known.
        """
        if len(data) > MAX_REPORT_BYTES:
            return self._ignore("too_large")
        try:
            report = _DECODER.decode(data)
        except NOT_JSON:
            return self._ignore("malformed")
        return self.add(report, now, sender)

    def add(self, report: NodeReport, now: float, sender: str | None = None) -> Verdict:
        """`take`, of a report that is decoded."""
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
        return "taken"

    def remove(self, node: str) -> None:
        """A node that is gone. Safe to call for one that is not there."""
        self._stored.pop(node, None)
        self._starts.pop(node, None)

    def _ignore(self, verdict: Verdict) -> Verdict:
        self.ignored[verdict] += 1
        return verdict
