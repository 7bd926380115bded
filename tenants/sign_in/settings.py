"""The file of `--oidc`: an OpenID Connect provider, and the rights of its groups.

issuer: https://login.example/realms/company
client_id: roundhouse
client_secret_env: ROUNDHOUSE_OIDC_SECRET
audience: https://models.example
groups:
  - {group: ml-platform, team: ops, scopes: [all]}
  - {group: search, team: search, scopes: [infer, usage, adapters]}
"""

import base64
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from registry.base.wording import quoted
from registry.errors import Forbidden, Unfit
from tenants.caller import PERSON_MARK, SCOPES, Person, Scope
from tenants.keys.records import TEAM

LARGEST = 1 << 20
"""Largest file in bytes."""
LONGEST_SECRET = 4096
ALL = "all"
ANYONE = "*"
"""Matches everyone whom the provider lets sign in."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class GroupRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rights of the members of one group."""

    group: str
    team: str
    scopes: tuple[str, ...] = (Scope.INFER.value,)

    @property
    def granted(self) -> frozenset[Scope]:
        return SCOPES if ALL in self.scopes else frozenset(map(Scope, self.scopes))


class OidcSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A provider and its groups.

    Attributes:
        issuer: exactly as in the provider's discovery document and tokens.
        client_secret_env, client_secret_file: where to read the secret. Neither for a public client, which has none.
        audience: of access tokens for this server, as the provider writes it. None to refuse access tokens.
        groups: the first entry that matches a group of the person sets the team. The scopes of all matching entries of
            that team are combined.
        groups_claim: the claim that lists groups. A dot leads into an object, as in `realm_access.roles`.
        scopes: scopes requested from the provider.
        label: the rest of the button's text "Sign in with …".
        ends_session: also sign out at the provider, if it supports that.
    """

    issuer: str
    client_id: str
    groups: tuple[GroupRule, ...]
    client_secret_env: str | None = None
    client_secret_file: str | None = None
    audience: str | None = None
    groups_claim: str = "groups"
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    label: str = "your company's account"
    ends_session: bool = True

    def client_secret(self) -> str | None:
        """Return the secret, read again each time. None for a public client, '' if it is missing."""
        if self.client_secret_file is not None:
            with suppress(OSError, ValueError), Path(self.client_secret_file).open(encoding="utf-8") as file:
                return file.read(LONGEST_SECRET).strip()
            return ""
        return None if self.client_secret_env is None else os.environ.get(self.client_secret_env, "").strip()


def read_oidc(path: Path) -> OidcSettings:
    """Read and check the file. Raises Unfit with every fault."""
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1)
    except OSError as error:
        raise _unfit(
            path, [f"it cannot be read: {error.strerror or error}; name the YAML file of the provider"]
        ) from None
    if len(text) > LARGEST:
        raise _unfit(path, ["it is larger than 1 MiB; name the YAML file of the provider"])
    try:
        settings: OidcSettings = msgspec.yaml.decode(text, type=OidcSettings)
    except (ValueError, RecursionError) as error:
        raise _unfit(path, [f"{error}; see docs/secure.md for an example"]) from None
    if faults := list(_faults(settings)):
        raise _unfit(path, faults)
    return settings


def _faults(settings: OidcSettings) -> list[str]:
    faults = []
    if not is_safe(settings.issuer):
        faults.append(f"issuer: {quoted(settings.issuer)} is not an https URL; http works only on this machine")
    if not settings.client_id:
        faults.append("client_id: it is empty; write the client's id at the provider")
    if settings.client_secret_env is not None and settings.client_secret_file is not None:
        faults.append("write client_secret_env or client_secret_file, not both")
    elif settings.client_secret() == "":
        where = settings.client_secret_env or settings.client_secret_file
        faults.append(f"there is no client secret in {where}; set it, or leave the line out for a public client")
    if settings.audience == "":
        faults.append("audience: it is empty; write the one of your access tokens, or leave the line out")
    elif settings.audience == settings.client_id:
        faults.append("audience: it is the client's id, so ID tokens would be accepted; give this server its own")
    if "openid" not in settings.scopes:
        faults.append("scopes: 'openid' is missing; without it a provider sends no ID token")
    if not settings.groups:
        faults.append("groups: there are none, so nobody could sign in; name one group, its team and scopes")
    for rule in settings.groups:
        if not TEAM.match(rule.team):
            faults.append(f"groups: {quoted(rule.team)} is not a team id, such as 'search'")
        unknown = [scope for scope in rule.scopes if scope != ALL and scope not in SCOPES]
        if unknown or not rule.scopes:
            words = quoted(unknown[0]) if unknown else "an empty list"
            faults.append(f"groups: {words} is not a scope of {quoted(rule.group)}; write {', '.join(Scope)} or {ALL}")
    return faults


def is_safe(url: str) -> bool:
    """Whether this is an https URL, or an http URL on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    if not host or parts.username or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)


def _unfit(path: Path, faults: list[str]) -> Unfit:
    return Unfit(f"{path} cannot be used to sign people in.", faults, code="bad_oidc_file")


NAMES = ("preferred_username", "email", "name", "sub")
"""Claims that may name a person, in order of preference."""
LONGEST_NAME = 128
MOST_GROUPS = 10_000
"""Most groups of one person that are considered."""


def person_of(settings: OidcSettings, claims: Mapping[str, object]) -> Person:
    """Return the person with these claims. Raises Forbidden if none of their groups is in the file."""
    groups = set(groups_of(claims, settings.groups_claim))
    rules = [rule for rule in settings.groups if rule.group == ANYONE or rule.group in groups]
    if not rules:
        raise Forbidden(
            "You are signed in, but none of your groups may use this server. Ask its operator to add one to the file "
            "of --oidc.",
            code="no_group",
        )
    team = rules[0].team
    granted = (rule.granted for rule in rules if rule.team == team)
    return Person(id_of(settings.issuer, str(claims["sub"])), _name(claims), team, frozenset().union(*granted))


def groups_of(claims: Mapping[str, object], claim: str) -> Iterator[str]:
    """Yield the groups in a claim, which is a list of strings or one string. Dots lead into objects."""
    claimed = value_of(claims, claim)
    values = claimed[:MOST_GROUPS] if isinstance(claimed, list) else [claimed]
    for value in values:
        if isinstance(value, str):
            yield value


def value_of(claims: Mapping[str, object], claim: str) -> object:
    """Return the value of a claim. Its whole name is tried first, because some providers use URLs as names."""
    if claim in claims:
        return claims[claim]
    value: object = claims
    for part in claim.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def id_of(issuer: str, subject: str) -> str:
    """Return a person's id, used in place of a key's id: '@' and 7 letters or digits.

    A provider's subjects are unique within its issuer. Key ids contain no '@'.
    """
    digest = hashlib.sha256(f"{issuer}\0{subject}".encode()).digest()
    return PERSON_MARK + base64.b32encode(digest)[:7].decode().lower()


def _name(claims: Mapping[str, object]) -> str:
    for claim in NAMES:
        value = claims.get(claim)
        if isinstance(value, str) and value and value.isprintable():
            return value[:LONGEST_NAME]
    return "someone"
