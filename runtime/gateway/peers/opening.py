"""The composition of a server's part in a fleet."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from adapters.service import AdapterService
from console.sessions import SECONDS
from console.state import Console
from fleet.certificates import NAME, NAME_RULE
from fleet.grants import BlockTable
from fleet.membership.at_once import AtOnceTable
from fleet.membership.members import MemberTable, NewMember, Role, open_members, schema_of
from fleet.membership.sessions import SessionTable
from fleet.shared_limits import SharedLimits
from fleet.signatures import FleetKey, key_of_pepper, read_key
from fleet.table import ReportTable
from fleet.tls import FleetTls
from registry.base.wording import quoted
from registry.errors import BadRequest, Unavailable
from registry.state.database import State
from registry.state.shared.opening import SharedTables, open_shared
from registry.storage.database import Database
from registry.storage.files import server_id
from runtime.config.device import Device
from runtime.config.settings import Settings
from runtime.gateway.adapters import Adapters
from runtime.gateway.launch.model_set import ModelSet
from runtime.gateway.models import Models
from runtime.gateway.names import Names
from runtime.gateway.peers.backend import PeerBackend
from runtime.gateway.peers.connection import PeerClient
from runtime.gateway.peers.conversations import PeerConversations
from runtime.gateway.peers.names import PeerNames
from runtime.gateway.peers.placing import NodeReplicas, Placer
from runtime.gateway.peers.planning import FleetPlanning
from runtime.gateway.peers.pulling import AdapterPuller, RouterPuller
from runtime.gateway.peers.reporting import Reporter, RequestTimer
from runtime.gateway.peers.service import Fleet
from runtime.gateway.peers.sharing import SharedNames
from runtime.gateway.peers.views import PeerCards
from runtime.gateway.routing.store import RouterStore
from runtime.gateway.views.fleet import FleetBlockView
from runtime.residency.manager import NOT_RESIDENT, ResidencyManager
from tenants.keys.secret import load_pepper
from tenants.ledger.ledger import Ledger
from tenants.limits.history import spending_of
from tenants.watch import KeyWatch

log = logging.getLogger("roundhouse.fleet")


@dataclass(frozen=True, slots=True)
class FleetParts:
    fleet: Fleet
    backend: PeerBackend
    shared: SharedNames
    conversations: PeerConversations
    timer: RequestTimer


@dataclass(frozen=True, slots=True)
class FleetTables:
    """The tables that the servers of a fleet share."""

    members: MemberTable
    names: SharedTables


@dataclass(frozen=True, slots=True)
class OwnParts:
    """The parts of this server that a fleet needs."""

    names: Names
    models: Models
    residency: ResidencyManager
    device: Device
    state: State
    service: AdapterService
    adapters: Adapters
    routers: RouterStore
    model_set: ModelSet

    def has_weights(self, model: str) -> bool:
        """Whether a model can be loaded here, as far as known."""
        entry = self.residency.entries.get(model)
        return entry is not None and entry.broken is None


def open_fleet(settings: Settings, tables: FleetTables, own: OwnParts) -> FleetParts:
    """Open this server's part in the fleet, on the event loop."""
    identity = identity_of(settings, tables.members.now)
    client, reports, names = PeerClient(identity), ReportTable(), PeerNames(own.state)
    own_names = None if settings.front else own.names
    member, cards = member_of(settings, identity), PeerCards(own_names, names)
    members, is_front, timer = tables.members, settings.front, RequestTimer()
    fleet = Fleet(settings.fleet or "", member, identity, members, client, reports, names, cards)
    if is_front:
        fleet.placer = Placer(member.name, members.desired, reports, lambda: names.by_node, None, None)
    else:
        reporter = fleet.reporter = Reporter(
            fleet,
            own.names,
            own.models,
            own.residency,
            own.device,
            lambda: own.service.stored_digests,
            timer.times_of,
        )
        fleet.placer = Placer(
            member.name, members.desired, reports, lambda: {**names.by_node, member.name: reporter.models()},
            reporter.report, _replicas(own.residency),
        )  # fmt: skip
    fleet.planning = FleetPlanning(fleet.placer, members.desired, own_names, names)
    files = None if is_front else AdapterPuller(own.service, own.adapters, own.names, names, reports, client)
    router_files = RouterPuller(own.routers, names, reports, client)
    model_set = None if is_front else own.model_set
    shared = SharedNames(
        tables.names, own.state, own.names, names, own.adapters, own.routers, files, router_files, model_set
    )
    fleet.read_names = shared.catch_up
    backend = PeerBackend(own_names, names, reports, client, own.adapters.is_stored, own.has_weights)
    backend.passed = fleet.passed.append
    conversations = PeerConversations(member.name, fleet.nodes, reports, client)
    return FleetParts(fleet, backend, shared, conversations, timer)


def _blocks(limits: SharedLimits) -> list[FleetBlockView]:
    views = []
    for meter in limits.meters():
        level, described = meter.level(limits.clock()), meter.described
        unit = described.kind.unit
        views.append(
            FleetBlockView(
                id=meter.id, limit=described.words, amount=meter.limit / unit, left=level.remaining / unit,
                here=max(0, meter.block.left) / unit, seconds=round(level.seconds, 1),
            )
        )  # fmt: skip
    for count in limits.counts():
        level = count.level(limits.clock())
        views.append(
            FleetBlockView(
                id=count.id, limit=count.described.words, amount=count.limit, left=level.remaining, here=count.unused,
                seconds=0.0,
            )
        )  # fmt: skip
    return sorted(views, key=lambda view: view.limit)


def tables_of(settings: Settings) -> FleetTables:
    """Open the tables that servers share. Blocks. Raises as `open_members`."""
    members = members_of(settings)
    try:
        members.read_clock()
        return FleetTables(members, open_shared(settings.database or "", schema_of(settings.fleet or "")))
    except BaseException:
        members.close()
        raise


def give_back_unspent(database: Database, server: str, ledger: Ledger) -> None:
    """Return unspent budget that an earlier run held when it was killed or when the database was unreachable.

    Blocks. If this fails, the budget stays unused until the next start or the end of its period.
    """
    if ledger.database is None:  # there are no limits to return to
        return
    try:
        returned = BlockTable(database, server).give_back_unspent(spending_of(ledger.database, server))
    except Unavailable as error:
        log.warning("what an earlier run left of budgets is not given back", extra={"cause": error.message})
        return
    if returned:
        log.info("an earlier run's rest of budgets was given back", extra={"limits": len(returned)})


async def share(
    fleet: Fleet, database: Database, limits: SharedLimits, console: Console, keys: KeyWatch, ledger: Ledger
) -> None:
    """Connect limits, console sessions, the ledger's clock and the closing of dead servers' rows to the fleet."""
    server = fleet.own.server
    await asyncio.to_thread(give_back_unspent, database, server, ledger)
    at_once = AtOnceTable(database, server)
    blocks = BlockTable(database, server)
    limits.open(blocks, at_once, fleet.nodes, fleet.own.name)
    fleet.blocks = partial(_blocks, limits)
    console.sessions.share(SessionTable(database, SECONDS), fleet.fleet)
    if console.sign_in is not None:
        console.sign_in.share(keys.derive("sign-in"))

    def end_rows(server: str) -> int:
        at_once.free(server)
        return ledger.interrupt_server(server)

    fleet.end_rows = end_rows
    ledger.clock = fleet.now

    def refuse() -> None:
        for user in (keys, ledger, limits):
            user.refuse_database()

    fleet.on_older_database = refuse


def members_of(settings: Settings) -> MemberTable:
    """Open the table of members. Blocks. Raises as `open_members`."""
    return open_members(settings.database or "sqlite://", settings.fleet or "")


def identity_of(settings: Settings, clock: Callable[[], float] = time.time) -> FleetTls | FleetKey:
    """Read this server's certificate or the fleet's key. clock: the database's clock.

    Raises NotFound, Conflict, BadRequest, Unavailable.
    """
    if settings.fleet_identity == "certificate":
        return FleetTls(settings.fleet_folder)
    name = settings.fleet_name or socket.gethostname().lower()
    if not NAME.match(name):
        raise BadRequest(f"{quoted(name)} is not a valid server name: add --fleet-name. {NAME_RULE}.")
    if settings.fleet_key is not None:
        return FleetKey(name, read_key(settings.fleet_key), clock)
    place = settings.keys
    return FleetKey(name, key_of_pepper(load_pepper(place.data_dir, place.pepper)), clock, is_local=True)


def member_of(settings: Settings, identity: FleetTls | FleetKey) -> NewMember:
    """Describe this server as a member."""
    address = None if settings.front else settings.fleet_address
    return new_member(identity.name, server_id(settings.data_dir), address)


def new_member(name: str, server: str, address: str | None) -> NewMember:
    """Describe a server that joins. address: of its port for the fleet, or None on a front."""
    role: Role = "front" if address is None else "node"
    return NewMember(name, server, role, address or "", version("roundhouse"))


def _replicas(residency: ResidencyManager) -> NodeReplicas:
    """The actions that a plan may require of this node. Each only starts its work."""
    unloading = set[asyncio.Task[None]]()  # keeps running tasks from being collected

    def unload(model: str) -> None:
        task = asyncio.create_task(residency.unload(residency.get(model)), name=f"unload {model}")
        unloading.add(task)
        task.add_done_callback(ended)

    def ended(task: asyncio.Task[None]) -> None:
        unloading.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a model that is to be on other nodes stays", extra={"cause": str(error)})

    def has_room(model: str) -> bool:
        entry = residency.entries.get(model)
        if entry is None:
            return False
        plan = residency.plan(entry)
        return plan.verdict in ("load", "wake") and not plan.victims

    return NodeReplicas(
        is_resident=lambda model: model in residency.entries and residency.get(model).state not in NOT_RESIDENT,
        has_room=has_room,
        load=lambda model: residency.request_load(residency.get(model)),
        unload=unload,
    )
