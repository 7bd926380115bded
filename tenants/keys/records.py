"""Teams and keys as they are stored. Imports no database."""

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
"""Longest timeout of a request, in seconds."""
MOST_HOURS = 8_760
"""Longest lifetime of a stored response, in hours: a year."""
LIMITABLE = frozenset((Scope.INFER, Scope.USAGE))
"""Scopes that a key with patterns may have. The other scopes reach every model and adapter."""


@dataclass(frozen=True, slots=True)
class Team:
    id: str
    name: str
    created: float
    archived: float | None = None
    weight: float = 1.0
    """Share of a contended model, relative to other teams."""
    timezone: str = "UTC"
    """Time zone in which the days and months of its budgets begin."""
    store_texts: bool = False
    """Keep prompts and answers of its latest requests in memory, for the console."""
    response_hours: int = 0
    """Hours for which its answers of the Responses API are stored. 0 to store none."""


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """The settings of a new key. Raises BadRequest."""

    team: str
    name: str = ""
    scopes: frozenset[Scope] = frozenset((Scope.INFER,))
    models: tuple[str, ...] = EVERY
    adapters: tuple[str, ...] = EVERY
    seconds: float | None = None
    """Seconds until it expires. None for never."""
    service_class: ServiceClass | None = None
    ceiling: ServiceClass | None = None
    timeout: float | None = None
    account: str | None = None
    """The service account that owns the key."""

    def __post_init__(self) -> None:
        check_name(self.name)
        if not self.scopes:
            raise BadRequest(f"A key needs a scope: {', '.join(Scope)}.", param="scopes")
        if self.seconds is not None and not 0 < self.seconds < 1e10:
            raise BadRequest("The expiry of a key must be in the future.", param="expires")
        if self.timeout is not None and not 0 < self.timeout <= MOST_SECONDS:
            raise BadRequest(f"A timeout is more than 0 and at most {MOST_SECONDS:.0f} seconds.", param="timeout")
        default, ceiling = self.service_class, self.ceiling
        if default is not None and ceiling is not None and default < ceiling:
            raise BadRequest("The class of a key must not be above its ceiling.", param="ceiling")
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
    """A key that was created, without its text."""

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
    """The key that was rotated to create this one."""
    service_class: ServiceClass | None = None
    """Class of requests that do not name one. None for interactive."""
    ceiling: ServiceClass | None = None
    """The highest class that it may request. None for interactive, or `service_class` if that is higher."""
    timeout: float | None = None
    """Seconds until the deadline of requests that do not set one. None for no deadline."""
    account: str | None = None
    """The service account that owns the key."""

    @property
    def classes(self) -> tuple[ServiceClass, ServiceClass]:
        """The class of requests that do not name one, and the highest class."""
        default = ServiceClass.INTERACTIVE if self.service_class is None else self.service_class
        if self.ceiling is None:
            return default, min(default, ServiceClass.INTERACTIVE)
        return max(default, self.ceiling), self.ceiling

    def state(self, now: float) -> Literal["active", "expired", "revoked"]:
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "active"


def check_team(id_: str) -> None:
    """Raise BadRequest if this is not a team id."""
    if not TEAM.match(id_):
        raise BadRequest(
            f"{quoted(id_)} is not a team id: write 1 to 64 of a-z, 0-9, '_' and '-'; begin with a letter or digit.",
            param="team",
        )


def check_name(name: str) -> None:
    """Raise BadRequest if the name is too long or not printable."""
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise BadRequest(f"A name is at most {LONGEST_NAME} printable characters.", param="name")


def check_weight(weight: float) -> None:
    """Raise BadRequest if the weight is out of range."""
    if not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise BadRequest(f"A weight is {LEAST_WEIGHT} to {MOST_WEIGHT:.0f}; teams have 1.", param="weight")


def check_hours(hours: int) -> None:
    """Raise BadRequest if the hours are out of range."""
    if not 0 <= hours <= MOST_HOURS:
        raise BadRequest(f"Responses are stored for 1 to {MOST_HOURS} hours; 0 stores none.", param="response_hours")


def _check_patterns(param: str, patterns: Sequence[str]) -> None:
    if not 0 < len(patterns) <= MOST_PATTERNS:
        raise BadRequest(f"Give 1 to {MOST_PATTERNS} patterns, or '*' for all.", param=param)
    for pattern in patterns:
        if not PATTERN.match(pattern):
            raise BadRequest(f"{quoted(pattern)} is not a pattern of names, such as 'sql-*'.", param=param)
