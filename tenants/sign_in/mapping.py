"""From the claims of an ID token to a person with a team and scopes. No I/O, no clock."""

import base64
import hashlib
from collections.abc import Iterator, Mapping

from registry.errors import Forbidden
from tenants.caller import PERSON_MARK, Person
from tenants.sign_in.settings import ANYONE, OidcSettings

NAMES = ("preferred_username", "email", "name", "sub")
"""Claims that name a person, the best first."""
LONGEST_NAME = 128
MOST_GROUPS = 10_000
"""Groups of one person that are looked at."""


def person_of(settings: OidcSettings, claims: Mapping[str, object]) -> Person:
    """The person with these claims. Raises Forbidden where no group of theirs is in the file."""
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
    """The groups in a claim: a list of texts, or one text. A name with dots leads into objects."""
    found = value_of(claims, claim)
    values = found[:MOST_GROUPS] if isinstance(found, list) else [found]
    for value in values:
        if isinstance(value, str):
            yield value


def value_of(claims: Mapping[str, object], claim: str) -> object:
    """The value of a claim, by its whole name first: some providers name claims by URLs."""
    if claim in claims:
        return claims[claim]
    value: object = claims
    for part in claim.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def id_of(issuer: str, subject: str) -> str:
    """A person's id, in place of a key's id: '@' and 7 letters or digits.

    A provider's subject is unique within its issuer. Key ids have no '@'.
    """
    digest = hashlib.sha256(f"{issuer}\0{subject}".encode()).digest()
    return PERSON_MARK + base64.b32encode(digest)[:7].decode().lower()


def _name(claims: Mapping[str, object]) -> str:
    for claim in NAMES:
        value = claims.get(claim)
        if isinstance(value, str) and value and value.isprintable():
            return value[:LONGEST_NAME]
    return "someone"
