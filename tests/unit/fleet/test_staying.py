"""How a server stays in its fleet: which servers count as dead, and how a restored older database is handled."""

import asyncio
import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import Gauge

from fleet.epochs import DesiredReplicas
from fleet.membership.members import DEAD_SECONDS, LEASE_SECONDS, Member, NewMember, OlderState
from fleet.reports import NodeReport, ReplicaReport
from fleet.table import ReportTable
from registry.errors import Conflict, NodeFailed, Unavailable
from runtime.gateway.peers import service
from runtime.gateway.peers.service import LOOK, SWEEP_SECONDS, Fleet
from runtime.gateway.views.fleet import FleetBlockView, FleetPassedView
from tenants.caller import EVERYBODY, Caller, Scope
from tests.eventually import PATIENCE

OWN = Member("front-1", 1, "front", "", "1.0", False)


class Members:
    """The database's members. It raises `error`, if set."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.present = [OWN]
        self.renewals, self.swept, self.drained = 0, list[str](), list[str]()
        self.clock_offset = 0.0

    def renew(self, name: str, boot: int) -> Sequence[Member]:
        self.renewals += 1
        if self.error is not None:
            raise self.error
        return self.present

    def join(self, new: NewMember) -> int:
        return 1

    def now(self) -> float:
        return time.time() - self.clock_offset

    def drain(self, name: str, draining: bool) -> None:
        self.drained.append(name)

    def sweep(self, end_rows: Callable[[str], int]) -> Mapping[str, int]:
        self.swept.append("swept")
        return {"node-1": end_rows("data-1")}


@pytest.fixture
def members() -> Members:
    return Members()


@pytest.fixture
def fleet(members: Members) -> Fleet:
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=90)
    identity: Any = SimpleNamespace(refresh=lambda: False, ends=ends)
    own = NewMember("front-1", "data", "front", "", "1.0")
    nothing: Any = SimpleNamespace(lost=lambda _: None)
    made = Fleet("tests", own, identity, cast(Any, members), nothing, ReportTable(), nothing, nothing)
    made.end_rows, made.placer = lambda _: 3, cast(Any, SimpleNamespace(row=DesiredReplicas(0, {}), is_old=False))
    return made


async def renew(fleet: Fleet, seconds: float) -> None:
    """Renew the lease after so many seconds."""
    fleet._renewed_at -= seconds
    fleet._steady_since -= seconds
    fleet._swept_at -= seconds
    await fleet._renew()
    await fleet._sweep()


async def test_no_server_is_dead_until_all_could_renew_their_leases(fleet: Fleet, members: Members) -> None:
    await renew(fleet, 0.0)
    await renew(fleet, LEASE_SECONDS + 1.0)  # the server or the database was unreachable
    for _ in range(int(DEAD_SECONDS) // 5 - 1):
        await renew(fleet, 5.0)
    assert members.swept == []
    await renew(fleet, 5.0)
    assert members.swept == ["swept"]
    await renew(fleet, SWEEP_SECONDS / 2)
    assert members.swept == ["swept"]
    await renew(fleet, SWEEP_SECONDS / 2)
    assert members.swept == ["swept"] * 2


async def test_a_restored_older_database_is_no_longer_used(
    fleet: Fleet, members: Members, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "RENEW_SECONDS", 0.001)
    noticed = asyncio.Event()
    fleet.on_older_database = noticed.set
    members.error = OlderState("older")
    staying = asyncio.create_task(fleet._stay())
    async with asyncio.timeout(PATIENCE):
        await noticed.wait()
    members.error = None
    await asyncio.sleep(0.05)
    assert (fleet.is_database_older, members.renewals) == (True, 1)
    assert "restore the newer state" in caplog.text
    with pytest.raises(Unavailable, match="older state"):
        await fleet.drain("node-1", True, EVERYBODY)
    staying.cancel()
    await asyncio.wait({staying})


async def test_a_wrong_clock_is_corrected_and_reported_in_the_view_and_once_in_the_log(
    fleet: Fleet, members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    for offset in (4.0, 600.0, 600.5, -7.0, 0.0):
        members.clock_offset = offset
        await fleet._renew()
        (own,) = fleet.view(EVERYBODY).members
        assert own.clock_offset_seconds == pytest.approx(offset, abs=0.9)
        assert own.is_clock_off == (abs(offset) > 5)
    assert fleet.now() == pytest.approx(time.time(), abs=PATIENCE)
    assert caplog.text.count("clock is not the database's") == 1
    fleet._present = [Member("node-1", 1, "node", "https://node:8443", "1.0", False)]
    report = NodeReport(
        node="node-1", boot=1, seq=1, uptime=1.0, version="1.0", address="https://node:8443", clock_offset=-600.0
    )
    fleet._reports.add(report, asyncio.get_running_loop().time())
    assert [(one.clock_offset_seconds, one.is_clock_off) for one in fleet.view(EVERYBODY).members] == [(-600.0, True)]


async def test_the_view_has_each_servers_lease_and_the_end_of_its_certificate(fleet: Fleet) -> None:
    await fleet._renew()
    nodes = [Member(f"node-{number}", 1, "node", "https://node:8443", "1.0", False, 7.0) for number in (1, 2)]
    fleet._present = [OWN, *nodes]
    now = asyncio.get_running_loop().time()
    fleet._renewed_at = now - 2.0
    for node, left in ((nodes[0], 86_400.0), (nodes[1], None)):
        fleet._reports.add(
            NodeReport(
                node=node.name, boot=1, seq=1, uptime=1.0, version="1.0", address=node.address,
                certificate_seconds=left,
            ),
            now,
        )  # fmt: skip
    front, with_end, earlier = fleet.view(EVERYBODY).members
    assert front.certificate_seconds == pytest.approx(90 * 86_400, abs=600)
    assert (with_end.certificate_seconds, earlier.certificate_seconds) == (86_400, None)
    assert with_end.lease_seconds <= 5.0


async def test_a_certificate_that_ends_is_logged_once_a_day_and_exported(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    gauge = Gauge("roundhouse_fleet_certificate_seconds", "", ["server"], registry=None)
    fleet.export_certificate(gauge)
    identity: Any = fleet.identity
    stages = ((14.1, 0, 0), (13.9, 1, 0), (13.8, 1, 0), (12.9, 2, 0), (0.1, 3, 0), (-1, 3, 1), (90, 3, 1))
    for days, warnings, errors in stages:
        identity.ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        for _ in range(3):
            fleet._refresh_certificate()
        assert caplog.text.count("certificate ends soon") == warnings
        assert caplog.text.count("certificate has expired") == errors
        (sample,) = next(iter(gauge.collect())).samples
        assert sample.labels == {"server": "front-1"}
        assert sample.value == pytest.approx(max(0, days) * 86_400, abs=600)


async def test_a_new_certificate_that_is_not_used_is_logged_once(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    causes = iter([Conflict("of another"), Conflict("of another"), Conflict("does not match")])

    def refresh() -> bool:
        if (cause := next(causes, None)) is not None:
            raise cause
        return True

    identity: Any = fleet.identity
    identity.refresh = refresh
    for _ in range(4):
        fleet._refresh_certificate()
    assert caplog.text.count("certificate is not used") == 2


async def test_the_last_node_is_drained_only_by_force(fleet: Fleet, members: Members) -> None:
    fleet._names = cast(Any, SimpleNamespace(by_node={}))
    fleet._follower = cast(Any, SimpleNamespace(set=lambda _: None))
    nodes = [Member(f"node-{number}", 1, "node", "https://10.0.0.1:8443", "1.0", number == 2) for number in (1, 2)]
    notified = list[tuple[str, ...]]()

    async def ask(*words: str) -> None:
        notified.append(words)
        raise NodeFailed("It cannot be reached.")  # it will read its row a little later

    fleet._client = cast(Any, SimpleNamespace(ask=ask))
    members.present = [OWN, *nodes]
    await fleet._renew()
    with pytest.raises(Conflict, match="--force") as refused:
        await fleet.drain("node-1", True, EVERYBODY)
    assert (refused.value.code, members.drained) == ("last_node", [])
    await fleet.drain("node-2", True, EVERYBODY)
    await fleet.drain("node-1", True, EVERYBODY, force=True)
    assert members.drained == ["node-2", "node-1"]
    assert notified == [("POST", node.name, node.address, LOOK) for node in reversed(nodes)]


async def _no_answer(*_: str) -> None: ...


async def test_two_drains_at_once_leave_a_node(fleet: Fleet, members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet._names = cast(Any, SimpleNamespace(by_node={}))
    fleet._follower = cast(Any, SimpleNamespace(set=lambda _: None))
    fleet._client = cast(Any, SimpleNamespace(ask=_no_answer))
    rows = dict.fromkeys(("node-1", "node-2"), False)

    def drain(name: str, draining: bool) -> None:
        rows[name] = draining
        nodes = [Member(name, 1, "node", "https://10.0.0.1:8443", "1.0", is_so) for name, is_so in rows.items()]
        members.present = [OWN, *nodes]

    monkeypatch.setattr(members, "drain", drain)
    drain("node-1", False)
    await fleet._renew()
    drain("node-2", True)  # at another server
    with pytest.raises(Conflict, match="--force"):
        await fleet.drain("node-1", True, EVERYBODY)
    assert rows == {"node-1": False, "node-2": True}


async def test_a_server_waits_for_the_reports_of_the_nodes_before_it_serves(fleet: Fleet, members: Members) -> None:
    """Clients would get 404 for models that it does not know yet."""
    fleet._follower = cast(Any, SimpleNamespace(set=lambda _: None))
    fleet.placer = cast(Any, SimpleNamespace(start=lambda: None))
    members.present = [OWN, Member("node-1", 1, "node", "https://10.0.0.1:8443", "1.0", False)]
    starting = asyncio.create_task(fleet.start())
    await asyncio.sleep(0.1)
    assert not starting.done()
    report = NodeReport(node="node-1", boot=1, seq=1, uptime=1.0, version="1.0", address="https://10.0.0.1:8443")
    fleet._reports.add(report, asyncio.get_running_loop().time())
    await starting
    assert fleet._task is not None
    fleet._task.cancel()


async def test_a_front_is_not_drained(fleet: Fleet, members: Members) -> None:
    fleet._follower = cast(Any, SimpleNamespace(set=lambda _: None))
    await fleet._renew()
    for force in (False, True):
        with pytest.raises(Conflict) as refused:
            await fleet.drain("front-1", True, EVERYBODY, force=force)
        assert (refused.value.code, members.drained) == ("not_a_node", [])
    await fleet.drain("front-1", False, EVERYBODY)
    assert members.drained == ["front-1"], "a former version may have drained it"


async def test_the_last_node_with_a_pinned_model_is_drained_only_by_force(fleet: Fleet, members: Members) -> None:
    fleet._follower = cast(Any, SimpleNamespace(set=lambda _: None))
    nodes = [Member(f"node-{number}", 1, "node", "https://10.0.0.1:8443", "1.0", False) for number in (1, 2)]
    fleet._client = cast(Any, SimpleNamespace(ask=_no_answer))
    models = {id_: SimpleNamespace(view=SimpleNamespace(pinned=id_ != "c")) for id_ in ("a", "b", "c")}
    fleet._names = cast(Any, SimpleNamespace(by_node={"node-1": models, "node-2": {}}))
    members.present = [OWN, *nodes]
    await fleet._renew()

    def report(seq: int, *ready: str) -> None:
        replicas = tuple(ReplicaReport(model=id_, state="ready") for id_ in ready)
        here = {"node": "node-2", "version": "1.0", "address": nodes[1].address}
        fleet._reports.add(
            NodeReport(**here, boot=1, seq=seq, uptime=1.0, replicas=replicas), asyncio.get_running_loop().time()
        )

    report(1, "a")
    with pytest.raises(Conflict, match=r"'b' in memory, pinned there\..*--force") as refused:
        await fleet.drain("node-1", True, EVERYBODY)
    assert (refused.value.code, members.drained) == ("last_node", [])
    await fleet.drain("node-2", True, EVERYBODY)
    await fleet.drain("node-1", True, EVERYBODY, force=True)
    report(2, "a", "b")
    await fleet.drain("node-1", True, EVERYBODY)
    assert members.drained == ["node-2", "node-1", "node-1"]


@pytest.mark.parametrize(
    ("nodes", "state", "draining", "expected"),
    [
        (("node-2",), "ready", False, True), (("node-2",), "loading", False, False),
        (("node-2",), "ready", True, False), (("front-1", "node-2"), "ready", False, False),
        ((), "ready", False, False),
    ],
)  # fmt: skip
async def test_a_model_has_moved_once_it_answers_on_the_nodes_of_the_plan(
    fleet: Fleet, nodes: tuple[str, ...], state: Any, draining: bool, expected: bool
) -> None:
    fleet.placer = cast(Any, SimpleNamespace(row=DesiredReplicas(1, {"chat": nodes})))
    there = {"node": "node-2", "version": "1.0", "address": "https://10.0.0.1:8443", "draining": draining}
    report = NodeReport(**there, boot=1, seq=1, uptime=1.0, replicas=(ReplicaReport(model="chat", state=state),))
    fleet._reports.add(report, asyncio.get_running_loop().time())
    assert fleet.has_moved("chat") is expected


async def test_only_administrators_see_other_teams(fleet: Fleet) -> None:
    await fleet._renew()
    block = FleetBlockView(id="l", limit="requests at once", amount=1.0, left=1.0, here=0.0, seconds=0.0)
    fleet.blocks = lambda: [block]
    for number, team in enumerate(("search", "legal")):
        fleet.passed.append(
            FleetPassedView(
                at=0.0, id=f"r{number}", team=team, model="m", adapter="", node="n", attempt=1, reason="only"
            )
        )
    seen = fleet.view(Caller("legal", "key", frozenset({Scope.MODELS})))
    assert (seen.blocks, [one.id for one in seen.passed]) == ([], ["r1"])
    seen = fleet.view(EVERYBODY)
    assert (seen.blocks, [one.id for one in seen.passed]) == ([block], ["r1", "r0"])
