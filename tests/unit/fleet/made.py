"""Makes nodes' reports for tests."""

import random
from collections.abc import Iterable

from fleet.reports import DeviceReport, NodeReport, ReplicaReport
from fleet.table import ReportTable


def digest_of(number: int) -> str:
    return f"sha256:{random.Random(number).getrandbits(256):064x}"


def replica(model: str = "chat", state: str = "ready", **fields: object) -> ReplicaReport:
    fields = {"capacity": 16, "request_seconds": 3.2, "prefill_seconds": 0.1, **fields}
    return ReplicaReport(model=model, state=state, **fields)


def report(
    node: str = "a", replicas: Iterable[ReplicaReport] = (), *, seq: int = 1, uptime: float = 0.0, **fields: object
) -> NodeReport:
    fields = {"devices": (DeviceReport(device="cuda:0", budget=80 << 30),), "boot": 1, **fields}
    return NodeReport(
        node=node, seq=seq, uptime=uptime, version="1.0", address=f"https://{node}:8443", replicas=tuple(replicas),
        **fields,
    )  # fmt: skip


def table_of(reports: Iterable[NodeReport], now: float = 0.0) -> ReportTable:
    table = ReportTable()
    for one in reports:
        assert table.add(one, now) == "taken"
    return table
