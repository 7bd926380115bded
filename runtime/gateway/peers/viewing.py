"""Views of the fleet's members. Pure."""

from fleet.membership.members import CLOCK_SECONDS, Member
from fleet.reports import NodeReport
from fleet.table import REPORT_SECONDS
from runtime.gateway.views.fleet import FleetDeviceView, FleetMemberState, FleetMemberView, FleetReplicaView


def view_member(
    member: Member,
    report: NodeReport | None,
    age: float | None,
    lease_seconds: float,
    certificate_seconds: float | None,
    clock_offset: float | None,
    *,
    is_late: bool,
) -> FleetMemberView:
    """Describe a member.

    Args:
        report: its latest report. None on a front, or if it has not reported.
        age: seconds since that report was written.
        lease_seconds: until its lease ends. Negative if it has ended.
        is_late: whether it reports but its answers begin late.
    """
    is_silent = member.role == "node" and (age is None or age > REPORT_SECONDS)
    state: FleetMemberState = "silent" if is_silent else "draining" if member.draining else "up"
    if state == "up" and is_late:
        state = "late"
    return FleetMemberView(
        name=member.name,
        role=member.role,
        state=state,
        boot=member.boot,
        version=member.version,
        address=member.address,
        report_seconds=None if age is None or member.role == "front" else round(age, 3),
        lease_seconds=round(max(0.0, lease_seconds), 3),
        certificate_seconds=None if certificate_seconds is None else round(certificate_seconds),
        clock_offset_seconds=None if clock_offset is None else round(clock_offset, 3),
        is_clock_off=clock_offset is not None and is_clock_off(clock_offset),
        devices=[
            FleetDeviceView(device.device, device.label, device.budget, device.used)
            for device in (() if report is None else report.devices)
        ],
        models=[
            FleetReplicaView(
                model=replica.model, revision=replica.revision, state=replica.state, ready=replica.ready,
                running=replica.running, waiting=replica.waiting, start_seconds=round(replica.start_seconds, 3),
            )
            for replica in (() if report is None else report.replicas)
        ],
    )  # fmt: skip


def is_clock_off(offset: float) -> bool:
    """Whether a clock's offset from the database's clock, in seconds, is large enough to warn about."""
    return abs(offset) > CLOCK_SECONDS
