"""Predict the memory after pending plans are carried out. Pure."""

from collections.abc import Iterable
from dataclasses import replace

from runtime.residency.policy import Need, Plan, Resident, Snapshot, plan
from runtime.residency.states import ModelState


def plan_all(snapshot: Snapshot, needs: Iterable[Need]) -> list[Plan]:
    """Plan each need as if the ones before it were loaded."""
    plans = []
    for need in needs:
        plans.append(plan(snapshot, need))
        snapshot = after(snapshot, need, plans[-1])
    return plans


def after(snapshot: Snapshot, need: Need, made: Plan) -> Snapshot:
    """Return the snapshot after a plan: victims gone, model ready. Unchanged if the plan loads nothing."""
    if made.verdict not in ("load", "wake"):
        return snapshot
    actions = {victim.id: victim.action for victim in made.victims}
    residents: list[Resident] = []
    slots_free = snapshot.slots_free
    for resident in snapshot.residents:
        if resident.id == need.id:
            slots_free += resident.settled()[2]
        elif resident.id not in actions:
            residents.append(resident)
        elif actions[resident.id] == "sleep":
            residents.append(resident.fallen_asleep())
        else:
            slots_free += resident.settled()[2]
    loaded = Resident(
        id=need.id, state=ModelState.READY, bytes=need.bytes, leases=0, last_used=snapshot.now, loaded_at=snapshot.now,
        min_resident=0.0, drain_deadline=0.0, load_seconds=need.load_seconds, host=need.host, devices=made.devices,
    )  # fmt: skip
    slots_free, addable = slots_free - need.slot + made.adds_slot, snapshot.slots_addable - made.adds_slot
    return replace(snapshot, residents=(*residents, loaded), slots_free=slots_free, slots_addable=addable)
