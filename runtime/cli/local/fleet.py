"""Check that a server can join its fleet, before anything is started."""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from runtime.cli.failures import RefusedError, UsageError

if TYPE_CHECKING:
    from runtime.config.settings import Settings

ALONE = ("front", "shared_port", "fleet_listen", "fleet_address", "fleet_certificates", "fleet_key", "fleet_name")
"""Settings that have no effect without a fleet."""


def check_settings(settings: "Settings") -> None:
    """Raise UsageError for fleet settings that contradict each other."""
    if settings.fleet is None:
        for name in ALONE:
            if getattr(settings, name):
                raise UsageError(f"--{name.replace('_', '-')} has no effect without a fleet. Add --fleet NAME.")
        return
    if settings.database is None or settings.database.startswith("sqlite"):
        raise UsageError(
            "The servers of a fleet share one PostgreSQL. Add --database postgresql+psycopg://user@host/name."
        )
    if settings.front and settings.fleet_listen:
        raise UsageError("Other servers send nothing to a front. Leave out --fleet-listen or --front.")
    if settings.shared_port and not settings.front:
        raise UsageError("Only fronts can share a port. Leave out --shared-port, or add --front.")
    if not settings.front and not (settings.fleet_listen and settings.fleet_address):
        raise UsageError("A node needs --fleet-listen HOST:PORT and --fleet-address https://HOST:PORT; or add --front.")
    _check_identity(settings)


def _check_identity(settings: "Settings") -> None:
    """Raise UsageError for a key and certificates that contradict each other, or for neither beyond loopback."""
    from runtime.config.settings import is_loopback

    identity, address = settings.fleet_identity, settings.fleet_address
    if settings.fleet_key is not None and settings.fleet_certificates is not None:
        raise UsageError("A server uses a certificate or the key. Leave out --fleet-certificates or --fleet-key.")
    if identity == "certificate" and settings.fleet_name is not None:
        raise UsageError("A certificate contains the server's name. Leave out --fleet-name, or add --fleet-key FILE.")
    scheme = "https" if identity == "certificate" else "http"
    if address is not None and not address.startswith(f"{scheme}://"):
        raise UsageError(
            f"With {'a certificate' if scheme == 'https' else '--fleet-key'} a node's address begins with {scheme}: "
            f"--fleet-address {scheme}://HOST:PORT."
        )
    if identity == "pepper":
        hosts = [settings.host] if address is None else [urlsplit(address).hostname or "", _host(settings.fleet_listen)]
        if not all(map(is_loopback, hosts)):
            raise UsageError(
                "Servers on several machines need certificates (roundhouse fleet ca issue), or --fleet-key FILE on a "
                "closed network. Without either, a fleet is limited to loopback."
            )


def _host(listen: str | None) -> str:
    return (listen or "").rpartition(":")[0].strip("[]")


def check_joining(settings: "Settings") -> None:
    """Raise UsageError for a fleet that this server cannot join, RefusedError if its database does not answer."""
    import datetime
    from contextlib import closing

    from fleet.tls import FleetTls
    from registry.errors import RoundhouseError, Unavailable
    from runtime.gateway.peers.opening import identity_of, member_of, members_of
    from tenants.keys.secret import load_pepper
    from tenants.keys.table import KeyTable
    from tenants.storage.opening import open_tables

    place = settings.keys
    try:
        identity = identity_of(settings)
        fault = None
        if isinstance(identity, FleetTls):
            fault = identity.certificate.fault(datetime.datetime.now(datetime.UTC))
        if fault is not None:
            raise UsageError(f"The certificate in {settings.fleet_folder} cannot be used: {fault}.")
        with closing(open_tables(place.data_dir, place.database)) as tables:
            KeyTable(tables, load_pepper(place.data_dir, place.pepper))  # all servers need one pepper
        with closing(members_of(settings)) as members:
            members.check(member_of(settings, identity))
    except Unavailable as error:
        raise RefusedError(error.message, code=error.code) from None
    except RoundhouseError as error:
        raise UsageError(error.message, code=error.code) from None
