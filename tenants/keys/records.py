"""Teams and keys as they are kept, free of the database."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from registry.base.wording import quoted
from registry.errors import BadRequest
from tenants.caller import EVERY, Scope, ServiceClass

TEAM = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
PATTERN = re.compile(r"[A-Za-z0-9._/:*?\[\]!-]{1,128}\Z")
LONGEST_NAME, MOST_PATTERNS = 128, 64
LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1000.0
MOST_SECONDS = 86_400.0
"""Longest timeout of a request."""
MOST_HOURS = 8_760
"""Longest life of a stored response: a year."""
LIMITABLE = frozenset((Scope.INFER, Scope.USAGE))
"""Scopes that a key with patterns may have: the others reach every model and adapter."""


@dataclass(frozen=True, slots=True)
class Team:
    id: str
    name: str
    created: float
    archived: float | None = None
    weight: float = 1.0
    """Share of a contended model, relative to the other teams'."""
    timezone: str = "UTC"
    """Clock that the days and months of its budgets begin by."""
    store_texts: bool = False
    """Keep prompts and answers of its last requests in memory, for the console."""
    response_hours: int = 0
    """Hours for which its answers of Responses are stored; 0: they are not."""


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """Settings of a new key. Raises BadRequest."""

    team: str
    name: str = ""
    scopes: frozenset[Scope] = frozenset((Scope.INFER,))
    models: tuple[str, ...] = EVERY
    adapters: tuple[str, ...] = EVERY
    seconds: float | None = None
    """Seconds until it expires; None: never."""
    service_class: ServiceClass | None = None
    ceiling: ServiceClass | None = None
    timeout: float | None = None
    account: str | None = None
    """The service account that it is for."""

    def __post_init__(self) -> None:
        check_name(self.name)
        if not self.scopes:
            raise BadRequest(f"A key needs a scope: {', '.join(Scope)}.", param="scopes")
        if self.seconds is not None and not 0 < self.seconds < 1e10:
            raise BadRequest("A key expires after now.", param="expires")
        if self.timeout is not None and not 0 < self.timeout <= MOST_SECONDS:
            raise BadRequest(f"A timeout is more than 0 and at most {MOST_SECONDS:.0f} seconds.", param="timeout")
        default, ceiling = self.service_class, self.ceiling
        if default is not None and ceiling is not None and default < ceiling:
            raise BadRequest("The class of a key is not above its ceiling.", param="ceiling")
        for param, patterns in (("models", self.models), ("adapters", self.adapters)):
            _check_patterns(param, patterns)
        reach = self.scopes - LIMITABLE
        if reach and (self.models, self.adapters) != (EVERY, EVERY):
            raise BadRequest(
                f"A key with the scope '{min(reach)}' reaches every model and adapter. "
                "Leave the patterns out, or make a second key for it.",
                param="scopes",
            )


@dataclass(frozen=True, slots=True)
class Key:
    """A key that was made; never its text."""

    id: str
    team: str
    name: str
    scopes: frozenset[Scope]
    models: tuple[str, ...]
    adapters: tuple[str, ...]
    created: float
    expires: float | None = None
    revoked: float | None = None
    replaces: str | None = None
    """The key that it was made from by rotation."""
    service_class: ServiceClass | None = None
    """Class of requests that name none; None: interactive."""
    ceiling: ServiceClass | None = None
    """The highest class that it may ask for; None: interactive, or `service_class` where that is higher."""
    timeout: float | None = None
    """Seconds until the deadline of requests that name none; None: as long as it takes."""
    account: str | None = None
    """The service account that it was made for."""

    @property
    def classes(self) -> tuple[ServiceClass, ServiceClass]:
        """The class of requests that name none, and the highest."""
        default = ServiceClass.INTERACTIVE if self.service_class is None else self.service_class
        if self.ceiling is None:
            return default, min(default, ServiceClass.INTERACTIVE)
        return max(default, self.ceiling), self.ceiling

    def state(self, now: float) -> Literal["active", "expired", "revoked"]:
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "active"


def check_team(id_: str) -> None:
    """Raises BadRequest."""
    if not TEAM.match(id_):
        raise BadRequest(
            f"{quoted(id_)} is not a team id: write 1 to 64 of a-z, 0-9, '_' and '-'; begin with a letter or digit.",
            param="team",
        )


def check_name(name: str) -> None:
    """Raises BadRequest."""
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise BadRequest(f"A name is at most {LONGEST_NAME} printable characters.", param="name")


def check_weight(weight: float) -> None:
    """Raises BadRequest."""
    if not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise BadRequest(f"A weight is {LEAST_WEIGHT} to {MOST_WEIGHT:.0f}; teams have 1.", param="weight")


def check_hours(hours: int) -> None:
    """Raises BadRequest."""
    if not 0 <= hours <= MOST_HOURS:
        raise BadRequest(f"Responses are stored for 1 to {MOST_HOURS} hours; 0 stores none.", param="response_hours")


def _check_patterns(param: str, patterns: Sequence[str]) -> None:
    if not 0 < len(patterns) <= MOST_PATTERNS:
        raise BadRequest(f"Give 1 to {MOST_PATTERNS} patterns, or '*' for all.", param=param)
    for pattern in patterns:
        if not PATTERN.match(pattern):
            raise BadRequest(f"{quoted(pattern)} is not a pattern of names, such as 'sql-*'.", param=param)
