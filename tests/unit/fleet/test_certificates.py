"""Certificates of a fleet are made and renewed, and refused if they are another fleet's or not valid now."""

import asyncio
import datetime
import ipaddress
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from fleet import certificates
from fleet.certificates import AUTHORITY, SERVER, SERVER_KEY, issue, make_authority, read, renew
from fleet.tls import FleetTls
from registry.errors import BadRequest, Conflict, NotFound, RoundhouseError

NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    make_authority(tmp_path / "authority")
    return tmp_path / "authority"


def server(authority: Path, name: str, days: int = 30) -> Path:
    folder = authority.parent / name
    issue(authority, name, folder, days)
    return folder


async def talk(listening: FleetTls, calling: FleetTls, name: str) -> str:
    """Return what the calling side reads, or 'refused' if either side refuses."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        names = [value for kind, value in writer.get_extra_info("peercert")["subjectAltName"] if kind == "DNS"]
        writer.write(names[0].encode())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=listening.server) as listener:
        port = listener.sockets[0].getsockname()[1]
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=calling.client, server_hostname=name)
            text = (await reader.read()).decode()
            writer.close()
        except (ssl.SSLError, ConnectionError):
            return "refused"
        return text or "refused"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (None, "has no DNS name"),
        ([x509.IPAddress(ipaddress.ip_address("10.0.0.5"))], "has no DNS name"),
        ([x509.DNSName("Node_1.example")], "'Node_1.example', which is no server name"),
    ],
)
def test_another_tools_certificate_must_name_the_server(
    authority: Path, names: list[x509.GeneralName] | None, message: str
) -> None:
    folder = server(authority, "node-1")
    key, issuer = certificates._authority(authority)
    builder = certificates._builder(issuer.subject, issuer.subject, key.public_key(), 1)
    if names is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    (folder / SERVER).write_text(certificates._public(builder.sign(key, hashes.SHA256())))
    with pytest.raises(Conflict, match=message):
        read(folder)


async def test_two_servers_of_a_fleet_accept_each_other_by_name(authority: Path) -> None:
    listening, calling = FleetTls(server(authority, "node-1")), FleetTls(server(authority, "front-1"))
    assert await talk(listening, calling, "node-1") == "front-1"


async def test_a_server_at_anothers_address_is_refused(authority: Path) -> None:
    listening, calling = FleetTls(server(authority, "node-2")), FleetTls(server(authority, "front-1"))
    assert await talk(listening, calling, "node-1") == "refused"


async def test_another_fleet_is_refused_and_the_log_names_the_cause(
    authority: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_authority(tmp_path / "others")
    issue(tmp_path / "others", "front-1", tmp_path / "foreign")
    foreign, folder = tmp_path / "foreign", server(authority, "node-1")
    trusting = FleetTls(foreign)
    trusting.client.load_verify_locations(folder / AUTHORITY)  # it accepts the node, but the node does not accept it
    with caplog.at_level(logging.WARNING, "roundhouse.fleet"):
        assert await talk(FleetTls(folder), trusting, "node-1") == "refused"
    assert [vars(record)["cause"] for record in caplog.records] != []
    assert "certificate" in vars(caplog.records[0])["cause"]


async def test_an_expired_certificate_is_refused(authority: Path, caplog: pytest.LogCaptureFixture) -> None:
    listening, late = FleetTls(server(authority, "node-1")), server(authority, "front-1", days=0)
    with caplog.at_level(logging.WARNING, "roundhouse.fleet"):
        assert await talk(listening, FleetTls(late), "node-1") == "refused"
    assert "expired" in vars(caplog.records[0])["cause"]
    assert "expired" in (read(late).fault(datetime.datetime.now(datetime.UTC)) or "")


async def test_a_certificate_that_is_not_valid_yet_is_refused_and_named(
    authority: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = FleetTls(server(authority, "node-1"))
    monkeypatch.setattr(certificates, "SLACK", -datetime.timedelta(hours=1))
    early = FleetTls(server(authority, "front-1"))
    with caplog.at_level(logging.WARNING, "roundhouse.fleet"):
        assert await talk(listening, early, "node-1") == "refused"
    assert "not yet valid" in vars(caplog.records[0])["cause"]


async def test_a_client_without_a_certificate_is_refused(authority: Path) -> None:
    listening, bare = FleetTls(server(authority, "node-1")), FleetTls(server(authority, "front-1"))
    bare.client = ssl.create_default_context(cafile=str(authority / AUTHORITY))
    assert await talk(listening, bare, "node-1") == "refused"


async def test_a_renewed_certificate_is_used_from_the_next_connection(authority: Path) -> None:
    folder = server(authority, "node-1", days=0)
    listening, calling = FleetTls(folder), FleetTls(server(authority, "front-1"))
    assert not listening.refresh()
    assert await talk(listening, calling, "node-1") == "refused"
    before = (folder / SERVER).read_bytes()
    assert renew(authority, folder).name == "node-1"
    assert (folder / SERVER).read_bytes() != before
    assert listening.refresh()
    assert await talk(listening, calling, "node-1") == "front-1"


async def test_a_key_in_a_separate_file_is_used(authority: Path) -> None:
    """cert-manager writes them so."""
    folder = server(authority, "node-1")
    text = (folder / SERVER).read_text()
    begin = text.index("-----BEGIN CERTIFICATE")
    (folder / SERVER).write_text(text[begin:])
    (folder / SERVER_KEY).write_text(text[:begin])
    listening, calling = FleetTls(folder), FleetTls(server(authority, "front-1"))
    assert await talk(listening, calling, "node-1") == "front-1"
    assert not listening.refresh()
    other = (server(authority, "other") / SERVER).read_text()
    (folder / SERVER_KEY).write_text(other[: other.index("-----BEGIN CERTIFICATE")])
    with pytest.raises(Conflict, match="cannot be used"):
        listening.refresh()


@pytest.mark.parametrize("name", [AUTHORITY, SERVER, SERVER_KEY])
def test_a_renewed_file_that_cannot_be_read_is_refused(authority: Path, name: str) -> None:
    """Any other error would end the server's membership (`Fleet._stay`)."""
    folder = server(authority, "node-1")
    tls = FleetTls(folder)
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()  # tests may run as root, which can read all files
    with pytest.raises(Conflict, match="cannot be read: Is a directory"):
        tls.refresh()


def test_the_validity_of_a_certificate_is_read(authority: Path) -> None:
    certificate = read(server(authority, "node-1"))
    assert certificate.name == "node-1"
    assert certificate.fault(datetime.datetime.now(datetime.UTC)) is None
    assert "not yet valid" in (certificate.fault(NOW - datetime.timedelta(hours=1)) or "")
    assert "expired" in (certificate.fault(NOW + datetime.timedelta(days=31)) or "")


@pytest.mark.parametrize("name", ["", "Node", "a b", "-a", "a" * 64, "a\n", "ä"])
def test_an_invalid_name_of_a_server_is_refused(authority: Path, name: str) -> None:
    with pytest.raises(BadRequest, match="lower-case letters"):
        issue(authority, name, authority.parent / "out")


def _other_server(authority: Path) -> None:
    issue(authority, "node-2", server(authority, "node-1"))


def _damaged(authority: Path) -> None:
    (server(authority, "node-1") / SERVER).write_text("no certificate")
    renew(authority, authority.parent / "node-1")


def _torn(authority: Path) -> None:
    make_authority(authority.parent / "second")
    (authority / AUTHORITY).write_bytes((authority.parent / "second" / AUTHORITY).read_bytes())
    issue(authority, "node-1", authority.parent / "out")


@pytest.mark.parametrize(
    ("work", "kind", "words"),
    [
        (make_authority, Conflict, "has an authority already"),
        (lambda authority: issue(authority.parent / "none", "a", authority.parent / "a"), NotFound, "fleet ca init"),
        (lambda authority: renew(authority, authority.parent / "none"), NotFound, "fleet ca issue"),
        (_other_server, Conflict, "has the certificate of 'node-1'"),
        (_damaged, Conflict, "is damaged"),
        (_torn, Conflict, "do not belong together"),
    ],
)
def test_certificates_that_cannot_be_made_are_refused_with_the_cause(
    authority: Path, work: Callable[[Path], object], kind: type[RoundhouseError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        work(authority)


def test_a_damaged_certificate_is_replaced_as_its_error_advises(authority: Path) -> None:
    folder = server(authority, "node-1")
    (folder / SERVER).write_text("no certificate")
    with pytest.raises(Conflict, match="fleet ca issue NAME"):
        read(folder)
    assert issue(authority, "node-1", folder) == read(folder)
    FleetTls(folder)


def test_private_keys_are_readable_only_by_their_owner(authority: Path) -> None:
    folder = server(authority, "node-1")
    for file in (authority / certificates.AUTHORITY_KEY, folder / SERVER):
        assert file.stat().st_mode & 0o077 == 0


def test_a_folder_of_another_server_is_not_renewed(authority: Path) -> None:
    folder = server(authority, "node-1")
    tls = FleetTls(folder)
    (folder / SERVER).write_bytes((server(authority, "node-2") / SERVER).read_bytes())
    with pytest.raises(Conflict, match="this server is 'node-1'"):
        tls.refresh()
