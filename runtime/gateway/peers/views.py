"""Views of the fleet's members, and of models and adapters of other nodes for lists of models."""

from msgspec.structs import replace

from fleet.membership.members import CLOCK_SECONDS, Member
from fleet.reports import NodeReport
from fleet.table import REPORT_SECONDS
from registry.catalog import Catalog
from registry.records import Adapter, Version
from runtime.gateway.models import redacted
from runtime.gateway.names import Names
from runtime.gateway.peers.names import PeerModel, PeerNames, find_remote
from runtime.gateway.views.fleet import FleetDeviceView, FleetMemberState, FleetMemberView, FleetReplicaView
from runtime.gateway.views.values import AdapterCardView, ModelView, card_on
from tenants.caller import Caller


class PeerCards:
    """own: names of this server, which take precedence. None on a front."""

    def __init__(self, own: Names | None, peers: PeerNames) -> None:
        self._own, self._peers = own, peers

    def all(self, caller: Caller) -> list[ModelView | AdapterCardView]:
        """List models of other nodes that the caller may use, then adapters."""
        catalog = self._peers.names.visible_to(caller)
        own = frozenset[str]() if self._own is None else frozenset(self._own.catalog.recipes)
        models = [model for id_, model in self._peers.models.items() if id_ in catalog.recipes and id_ not in own]
        cards = [
            _adapter_card(adapter, catalog.spelled(adapter.key), model)
            for model in models
            for adapter in catalog.adapters(model.recipe.id)
        ]
        return [*(_model_card(model, catalog, caller) for model in models), *cards]

    def find(self, name: str, caller: Caller) -> ModelView | AdapterCardView | None:
        """The card from another node, or None if no other node has it. Raises Forbidden and, on a front, NotFound."""
        resolved = find_remote(self._own, self._peers, name, caller)
        if resolved is None:
            return None
        model, catalog = self._peers.models[resolved.recipe.id], self._peers.names.visible_to(caller)
        if resolved.version is None:
            return _model_card(model, catalog, caller)
        adapter = next(adapter for adapter in catalog.adapters(model.recipe.id) if adapter.key == resolved.version.key)
        return _adapter_card(adapter, catalog.spelled(adapter.key), model, resolved.version)


def _model_card(model: PeerModel, catalog: Catalog, caller: Caller) -> ModelView:
    adapters = [catalog.spelled(adapter.key) for adapter in catalog.adapters(model.recipe.id)]
    return redacted(replace(model.view, adapters=adapters), caller)


def _adapter_card(adapter: Adapter, name: str, model: PeerModel, version: Version | None = None) -> AdapterCardView:
    view = model.view
    fields = {
        "max_model_len": view.max_model_len,
        "model_type": view.model_type,
        "model_ability": view.model_ability,
    }
    return card_on(adapter, name, model.recipe, fields, version)


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
