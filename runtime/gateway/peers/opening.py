"""From settings to a server's part in a fleet."""

from dataclasses import dataclass

from fleet.membership.members import MemberTable, NewMember, open_members
from fleet.table import ReportTable
from fleet.tls import FleetTls
from registry.storage.files import server_id
from runtime.config.settings import Settings
from runtime.gateway.names import Names
from runtime.gateway.peers.backend import PeerBackend
from runtime.gateway.peers.cards import PeerCards
from runtime.gateway.peers.connection import PeerClient
from runtime.gateway.peers.names import PeerNames
from runtime.gateway.peers.service import Fleet, new_member


@dataclass(frozen=True, slots=True)
class FleetParts:
    fleet: Fleet
    backend: PeerBackend


def open_fleet(settings: Settings, members: MemberTable, own: Names) -> FleetParts:
    """On the event loop. own: the names of this server."""
    tls = FleetTls(settings.fleet_folder)
    client, reports, names = PeerClient(tls), ReportTable(), PeerNames()
    own_names = None if settings.front else own
    member, cards = member_of(settings, tls), PeerCards(own_names, names)
    fleet = Fleet(settings.fleet or "", member, tls, members, client, reports, names, cards)
    return FleetParts(fleet, PeerBackend(own_names, names, reports, client))


def members_of(settings: Settings) -> MemberTable:
    """Blocks. Raises as `open_members`."""
    return open_members(settings.database or "sqlite://", settings.fleet or "")


def member_of(settings: Settings, tls: FleetTls) -> NewMember:
    """What this server says of itself."""
    address = None if settings.front else settings.fleet_address
    return new_member(tls.certificate.name, server_id(settings.data_dir), address)
