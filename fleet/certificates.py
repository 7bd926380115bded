"""The fleet's certificates: its own authority, and one certificate for each server.

| file            | content                                                   | on                          |
|-----------------|-----------------------------------------------------------|-----------------------------|
| `authority.key` | the authority's private key, which signs certificates     | the authority only          |
| `authority.pem` | its certificate, with which servers verify each other     | the authority, every server |
| `server.pem`    | a server's private key and certificate, in one file       | that server                 |
| `server.key`    | the private key, if another tool makes certificates; then | that server                 |
|                 | `server.pem` holds only the certificate                   |                             |

A server's file is replaced as a whole, so a running server never reads a key without its certificate. A certificate
contains the server's name twice: as its subject, for people, and as its only DNS name, which TLS checks.
"""

import datetime
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fleet.reports import NODE_NAME
from registry.base.wording import quoted
from registry.errors import BadRequest, Conflict, NotFound
from registry.storage.files import make_private, write_text

AUTHORITY_KEY, AUTHORITY, SERVER, SERVER_KEY = "authority.key", "authority.pem", "server.pem", "server.key"
AUTHORITY_DAYS, SERVER_DAYS = 3650, 90
NAME = re.compile(NODE_NAME)
NAME_RULE = "lower-case letters, digits, dots and hyphens, at most 63, such as node-1"
SLACK = datetime.timedelta(minutes=1)
"""Head start of a certificate's validity, because clocks differ."""


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """Facts about a server's certificate."""

    name: str
    begins: datetime.datetime
    ends: datetime.datetime

    def fault(self, now: datetime.datetime) -> str | None:
        """Return why it cannot be used at a given time, or None if it can."""
        if now < self.begins:
            return f"it is not yet valid: it begins at {self.begins:%Y-%m-%d %H:%M} UTC, or this clock is wrong"
        if now >= self.ends:
            return f"it expired at {self.ends:%Y-%m-%d %H:%M} UTC: roundhouse fleet ca renew"
        return None


def make_authority(folder: Path, days: int = AUTHORITY_DAYS) -> None:
    """Make an authority. Raises Conflict if the folder has one, whose servers would then refuse each other."""
    if (folder / AUTHORITY_KEY).exists() or (folder / AUTHORITY).exists():
        raise Conflict(f"{folder} has an authority already. Name another folder with --authority.")
    key, name = _new_key(), _subject("Roundhouse fleet")
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    make_private(folder)
    write_text(folder / AUTHORITY_KEY, _private(key))
    write_text(folder / AUTHORITY, _public(certificate))


def issue(authority: Path, name: str, folder: Path, days: int = SERVER_DAYS) -> ServerCertificate:
    """Make a server's key and certificate in a folder, with the authority's certificate. Replaces a damaged one.

    Raises BadRequest for a bad name, NotFound without an authority, Conflict if the folder is another server's.
    """
    if not NAME.match(name):
        raise BadRequest(f"{quoted(name)} is not a valid server name: {NAME_RULE}.")
    if _is_whole(folder / SERVER) and (present := read(folder).name) != name:
        raise Conflict(f"{folder} has the certificate of '{present}'. Name another folder with --out.")
    key, issuer = _authority(authority)
    own = _new_key()
    purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    certificate = (
        _builder(_subject(name), issuer.subject, own.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(purposes, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    make_private(folder)
    write_text(folder / AUTHORITY, _public(issuer))
    write_text(folder / SERVER, _private(own) + _public(certificate))
    return _facts(certificate)


def renew(authority: Path, folder: Path, days: int = SERVER_DAYS) -> ServerCertificate:
    """Replace a server's key and certificate by new ones. Raises as `read` and `issue`."""
    return issue(authority, read(folder).name, folder, days)


def read(folder: Path) -> ServerCertificate:
    """Read the server's certificate in a folder.

    Raises NotFound, Conflict if it is unreadable, damaged or names no server.
    """
    file = folder / SERVER
    try:
        facts = _facts(x509.load_pem_x509_certificate(file.read_bytes()))
    except FileNotFoundError:
        raise NotFound(
            f"There is no certificate {file}. Make one: roundhouse fleet ca issue NAME --out {folder}."
        ) from None
    except OSError as error:
        raise Conflict(f"The certificate {file} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise Conflict(f"The certificate {file} is damaged. Make a new one: roundhouse fleet ca issue NAME.") from None
    except (x509.ExtensionNotFound, IndexError):
        raise Conflict(
            f"The certificate {file} has no DNS name. Make one with the server's name as DNS name."
        ) from None
    if not NAME.match(facts.name):
        raise Conflict(f"The certificate {file} names {quoted(facts.name)}, which is no server name: {NAME_RULE}.")
    return facts


def _is_whole(file: Path) -> bool:
    """Return whether a file has a certificate; False if it is missing or damaged."""
    try:
        x509.load_pem_x509_certificate(file.read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    return True


def _facts(certificate: x509.Certificate) -> ServerCertificate:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return ServerCertificate(
        names.get_values_for_type(x509.DNSName)[0],
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )


def _authority(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    try:
        key = serialization.load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), None)
        certificate = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes())
    except FileNotFoundError:
        raise NotFound(f"{folder} has no authority. Make one: roundhouse fleet ca init --authority {folder}.") from None
    except ValueError:
        raise Conflict(f"The authority in {folder} is damaged. Restore its files from a backup.") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise Conflict(
            f"{AUTHORITY_KEY} and {AUTHORITY} in {folder} do not belong together. Restore both from one backup."
        )
    return key, certificate


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SLACK)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _private(key: ec.EllipticCurvePrivateKey) -> str:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()


def _public(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
