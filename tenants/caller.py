"""The caller of a request: its team, key, permissions and defaults."""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from fnmatch import fnmatchcase
from typing import Self

from registry.names import DEFAULT_TEAM


class ServiceClass(IntEnum):
    """Priority class of a request. Lower values run first."""

    label: str
    """The class as users write it, such as `batch`."""
    CRITICAL = 0
    INTERACTIVE = 1
    BATCH = 2

    @classmethod
    def of(cls, label: str) -> Self:
        """Return the class with this label. Raises ValueError if there is none."""
        for one in cls:
            if one.label == label:
                return one
        raise ValueError(f"a class is one of {', '.join(CLASSES)}")


for _one in ServiceClass:
    _one.label = _one.name.lower()
CLASSES = tuple(one.label for one in ServiceClass)


EVERY = ("*",)
"""Patterns that match every name."""


class Scope(StrEnum):
    """A permission of a key. No scope implies another."""

    INFER = "infer"
    """Send requests to models, and list the models."""
    ADAPTERS = "adapters"
    """Register, change and remove adapters."""
    PATHS = "paths"
    """Name folders on the server as sources of adapters and models."""
    MODELS = "models"
    """Operate the server: load, unload, pin, status, metrics."""
    USAGE = "usage"
    """Read usage and costs."""
    ADMIN = "admin"
    """Manage teams and keys."""


SCOPES = frozenset(Scope)


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request. Without keys, everyone is team `default` with all permissions."""

    team: str = DEFAULT_TEAM
    key: str | None = None
    """The key's id, never the key."""
    scopes: frozenset[Scope] = SCOPES
    models: tuple[str, ...] = EVERY
    """Patterns of model ids, with `*`, `?` and `[...]`."""
    adapters: tuple[str, ...] = EVERY
    """Patterns of adapter names. A pattern with a ':' is matched against `base:name`."""
    salt: str = field(default="", repr=False)
    """The team's cache salt: prompts with different salts share no cache. Empty salts share one cache."""
    weight: float = 1.0
    """The team's share of a contended model, relative to other teams."""
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    """Class of requests that do not name one."""
    ceiling: ServiceClass = ServiceClass.CRITICAL
    """The highest class that the caller may request."""
    timeout: float | None = None
    """Seconds until the deadline of requests that do not set one."""
    line: str | None = None
    """The first key of this key's rotation chain. None if the key was never rotated."""

    person: str = field(default="", repr=False)
    """Name of a person who signed in, for their own pages. Never stored or logged."""

    @property
    def is_limited(self) -> bool:
        """Whether some names are hidden from this caller."""
        return self.models != EVERY or self.adapters != EVERY

    @property
    def metered(self) -> str | None:
        """The key whose limits apply: all keys of a rotation chain share the limits of the first."""
        return self.line or self.key

    def sees(self, model: str, adapter: str | None = None) -> bool:
        """Whether the caller may use this model, and this adapter on it."""
        if not self.is_limited:
            return True
        model = model.partition("@")[0]  # old versions have the model's visibility
        if not any(fnmatchcase(model, pattern) for pattern in self.models):
            return False
        return adapter is None or any(
            fnmatchcase(f"{model}:{adapter}" if ":" in pattern else adapter, pattern) for pattern in self.adapters
        )


PERSON_MARK = "@"
"""Prefix of a person's id. No key's id starts with it."""


@dataclass(frozen=True, slots=True)
class Person:
    """A person who signed in at the identity provider, without a key."""

    id: str
    """Used in place of a key's id: '@' and 7 characters."""
    name: str
    """Name for the person's own pages; never stored."""
    team: str
    scopes: frozenset[Scope]


EVERYBODY = Caller()
"""The caller of an open server without keys."""
VISITOR = Caller(scopes=frozenset((Scope.INFER,)), ceiling=ServiceClass.INTERACTIVE)
"""A request without a key on an open server that has keys: inference only."""
ANONYMOUS = Caller("", scopes=frozenset(), models=(), adapters=())
"""A request without a key to a path that needs none, on a server that has keys."""
