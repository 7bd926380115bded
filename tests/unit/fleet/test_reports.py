"""Nodes' reports: the table of `fleet.table`, and the age of each report."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.reports import MAX_ADAPTERS, MAX_REPORT_BYTES, DeviceReport, NodeReport, ReplicaReport, encode
from fleet.table import DRIFT, MAX_LEAD_SECONDS, MAX_NODES, ReportTable

DIGEST = f"sha256:{7:064x}"


def report(node: str = "a", boot: int = 1, seq: int = 1, uptime: float = 0.0, **fields: object) -> NodeReport:
    return NodeReport(
        node=node, boot=boot, seq=seq, uptime=uptime, version="1.0", address="https://10.0.0.1:8443", **fields
    )


def full() -> NodeReport:
    return report(
        devices=(DeviceReport(device="cuda:0", label="NVIDIA H100", budget=80 << 30, used=20 << 30),),
        replicas=(ReplicaReport(model="chat", revision="1", state="ready", capacity=32, running=3),),
        placed=(DIGEST,),
        staged=(DIGEST,),
    )  # fmt: skip


def test_a_report_is_decoded_as_it_was_encoded() -> None:
    table, line = ReportTable(), encode(full())
    assert b"\n" not in line
    assert table.take(line, 100.0, "a") == "taken"
    stored = table.get("a")
    assert stored is not None
    assert (stored.report, stored.at, len(table)) == (full(), 100.0, 1)
    assert list(table) == [stored]


def changed(**fields: object) -> bytes:
    return msgspec.json.encode({**msgspec.to_builtins(full()), **fields})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b" " * (10 << 20), "too_large"),
        (b" " * MAX_REPORT_BYTES, "malformed"),
        (b"", "malformed"),
        (b"\xb6", "malformed"),
        (b"[" * 100_000, "malformed"),
        (changed(seq=-1), "malformed"),
        (changed(seq=2**70), "malformed"),
        (changed(boot=0), "malformed"),
        (changed(uptime=-1.0), "malformed"),
        (changed(uptime=1e300), "malformed"),
        (changed(node="../a"), "malformed"),
        (changed(node="a\n"), "malformed"),
        (changed(address=""), "malformed"),
        (changed(placed=["sha256:1"]), "malformed"),
        (changed(placed=[DIGEST] * (MAX_ADAPTERS + 1)), "malformed"),
        (changed(replicas=[{"model": "chat", "state": "READY"}]), "malformed"),
        (changed(replicas=[{"model": "chat", "state": "ready", "capacity": 0}]), "malformed"),
        (changed(devices=[{"device": "cuda:0", "budget": -1}]), "malformed"),
        (changed(node="b"), "sender"),
    ],
)
def test_an_invalid_report_is_counted_and_changes_nothing(data: bytes, reason: str) -> None:
    table = ReportTable()
    assert table.take(data, 0.0, "a") == reason
    assert (len(table), table.ignored) == (0, {reason: 1})


def test_fields_of_a_newer_version_are_ignored() -> None:
    assert ReportTable().take(changed(colour="green"), 0.0, "a") == "taken"


@pytest.mark.parametrize(
    ("boot", "seq", "verdict"),
    [(2, 6, "taken"), (3, 0, "taken"), (2, 5, "old"), (2, 4, "old"), (1, 9, "old")],
)
def test_only_reports_with_rising_boots_and_numbers_are_accepted(boot: int, seq: int, verdict: str) -> None:
    table = ReportTable()
    table.add(report(boot=2, seq=5, uptime=9.0), 10.0)
    assert table.add(report(boot=boot, seq=seq, uptime=9.5), 10.5) == verdict
    stored = table.get("a")
    assert stored is not None
    assert (stored.report.boot, stored.report.seq) == ((boot, seq) if verdict == "taken" else (2, 5))


def test_a_delayed_report_has_its_true_age() -> None:
    table = ReportTable()
    table.add(report(seq=1, uptime=50.0), 100.0)
    table.add(report(seq=2, uptime=51.0), 104.5)
    stored = table.get("a")
    assert stored is not None
    assert 104.5 - stored.at == pytest.approx(3.5, abs=DRIFT * 5)


def test_the_first_report_may_be_the_delayed_one() -> None:
    table = ReportTable()
    table.add(report(seq=1, uptime=50.0), 104.0)
    table.add(report(seq=2, uptime=54.0), 104.1)
    stored = table.get("a")
    assert stored is not None
    assert stored.at == 104.1


def test_a_report_of_the_future_is_ignored() -> None:
    table = ReportTable()
    table.add(report(seq=1, uptime=50.0), 100.0)
    assert table.add(report(seq=2, uptime=52.0 + MAX_LEAD_SECONDS), 101.0) == "future"
    assert table.add(report(seq=3, uptime=52.0), 102.0) == "taken"


def test_a_node_whose_clock_has_jumped_is_accepted_again() -> None:
    table = ReportTable()
    table.add(report(seq=1, uptime=50.0), 100.0)
    assert table.add(report(seq=2, uptime=1000.0), 101.0) == "future"
    assert table.add(report(seq=3, uptime=1010.0), 111.0) == "taken"
    stored = table.get("a")
    assert stored is not None
    assert stored.at == 111.0


@given(
    st.lists(st.tuples(st.floats(0.001, 2.0), st.floats(0.0, 5.0)), min_size=1, max_size=30), st.floats(0.997, 1.003)
)
def test_an_age_is_never_negative_and_at_most_the_delay(steps: list[tuple[float, float]], speed: float) -> None:
    """Reports arrive in order, as on one connection, and the node's clock runs at another speed."""
    table, made, arrived = ReportTable(), 0.0, 0.0
    for seq, (step, delay) in enumerate(steps):
        made += step
        arrived = max(arrived, made + delay)
        assert table.add(report(seq=seq, uptime=made * speed), arrived) == "taken"
        stored = table.get("a")
        assert stored is not None
        assert -1e-9 <= arrived - stored.at <= arrived - made + 0.01 * made + 1e-9


def test_nodes_are_bounded_and_one_that_has_left_makes_room() -> None:
    table = ReportTable()
    for number in range(MAX_NODES):
        assert table.add(report(f"n{number}"), 0.0) == "taken"
    assert table.add(report("more"), 0.0) == "full"
    assert table.add(report("n0", seq=2), 0.0) == "taken"
    table.remove("n0")
    table.remove("n0")
    assert table.add(report("more"), 0.0) == "taken"
    assert table.add(report("n1", boot=1, seq=0), 0.0) == "old"
