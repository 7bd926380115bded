"""A fleet as a front sees it: a node with two GPUs, a drained one, and a silent one that is late."""

from typing import Any

from runtime.gateway.views.fleet import (
    FleetBlockView,
    FleetDeviceView,
    FleetMemberView,
    FleetPassedView,
    FleetReplicaView,
    FleetView,
)

GIB = 2**30
DAY = 86_400


def member(name: str, **given: Any) -> FleetMemberView:
    usual = {
        "role": "node", "state": "up", "boot": 1, "version": "1.0", "address": f"https://{name}:8443",
        "report_seconds": 0.4, "lease_seconds": 8.2, "certificate_seconds": 80 * DAY,
        "clock_offset_seconds": 0.01, "is_clock_off": False, "devices": [], "models": [],
    }  # fmt: skip
    return FleetMemberView(name=name, **{**usual, **given})


def replica(model: str, **given: Any) -> FleetReplicaView:
    usual = {"revision": "1f2e", "state": "ready", "ready": 1, "running": 2, "waiting": 1, "start_seconds": 0.0}
    return FleetReplicaView(model=model, **{**usual, **given})


MEMBERS = [
    member("front-1", role="front", report_seconds=None, certificate_seconds=90 * DAY),
    member(
        "node-1",
        clock_offset_seconds=0.0021,
        devices=[
            FleetDeviceView("cuda:0", "H100", 60 * GIB, 30 * GIB),
            FleetDeviceView("cuda:1", "H100", 20 * GIB, 20 * GIB),
        ],
        models=[replica("chat", ready=2), replica("embed", state="loading", ready=0, running=0, start_seconds=12.0)],
    ),
    member(
        "node-2",
        state="draining",
        certificate_seconds=3 * DAY,
        devices=[FleetDeviceView("cpu", "cpu", 8 * GIB, 0)],
        models=[replica("chat")],
    ),
    member(
        "node-3",
        state="silent",
        report_seconds=4.5,
        certificate_seconds=None,
        clock_offset_seconds=-600.0,
        is_clock_off=True,
    ),
]
FLEET = FleetView(
    name="models", server="front-1", role="front", boot=1, certificate_ends="2027-02-26 06:00", is_joined=True,
    nodes=3, fronts=1, dropped_headers=0, ignored_reports={}, members=MEMBERS, epoch=12,
    desired={"chat": ["node-1", "node-2"], "gone": []},
    blocks=[
        FleetBlockView(
            id="l1", limit="tokens per minute of team 'search'", amount=100_000.0, left=97_500.0, here=2_500.0,
            seconds=41.0,
        )
    ],
    passed=[
        FleetPassedView(
            at=1_795_000_000.0, id="req-0123456789abcdef", team="search", model="chat", adapter="legal", node="node-1",
            attempt=2, reason="adapter",
        )
    ],
)  # fmt: skip
