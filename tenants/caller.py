"""The caller of a request: all facts about its key."""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from fnmatch import fnmatchcase
from typing import Self

from registry.names import DEFAULT_TEAM


class ServiceClass(IntEnum):
    """Lower goes first."""

    label: str
    """The form for people."""
    CRITICAL = 0
    INTERACTIVE = 1
    BATCH = 2

    @classmethod
    def of(cls, label: str) -> Self:
        """The class of this name. Raises ValueError for another word."""
        for one in cls:
            if one.label == label:
                return one
        raise ValueError(f"a class is one of {', '.join(CLASSES)}")


for _one in ServiceClass:
    _one.label = _one.name.lower()
CLASSES = tuple(one.label for one in ServiceClass)


EVERY = ("*",)
"""Patterns that every name fits."""


class Scope(StrEnum):
    """A permission of a key. None includes another."""

    INFER = "infer"
    """Ask models, and see which there are."""
    ADAPTERS = "adapters"
    """Register, change and remove adapters."""
    PATHS = "paths"
    """Name folders of the server's machine as sources of adapters and models."""
    MODELS = "models"
    """Operate the server: load, unload, pin, status, metrics."""
    USAGE = "usage"
    """See what was used."""
    ADMIN = "admin"
    """Manage teams and keys."""


SCOPES = frozenset(Scope)


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request. Without keys everybody is the team `default` and may do everything."""

    team: str = DEFAULT_TEAM
    key: str | None = None
    """The key's id, never the key."""
    scopes: frozenset[Scope] = SCOPES
    models: tuple[str, ...] = EVERY
    """Patterns of model ids, with `*`, `?` and `[...]`."""
    adapters: tuple[str, ...] = EVERY
    """Patterns of adapter names; one with a ':' is held against `base:name`."""
    salt: str = field(default="", repr=False)
    """Cache salt of the team: prompts with different salts share no cache. '' shares with all others without one."""
    weight: float = 1.0
    """The team's part of a contended model, beside the others'."""
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    """Class of requests that name none."""
    ceiling: ServiceClass = ServiceClass.CRITICAL
    """The highest class that it may ask for."""
    timeout: float | None = None
    """Seconds until the deadline of requests that name none."""
    line: str | None = None
    """The key from which this one came by rotations, the first of them; None: it came from none."""

    person: str = field(default="", repr=False)
    """The name of a person without a key, for their own pages: it is never stored or logged."""

    @property
    def is_limited(self) -> bool:
        """Whether there are names that this caller does not see."""
        return self.models != EVERY or self.adapters != EVERY

    @property
    def metered(self) -> str | None:
        """The key whose limits hold: all of a line of rotations share those of the first."""
        return self.line or self.key

    def sees(self, model: str, adapter: str | None = None) -> bool:
        """Whether it may use this model, and on it this adapter."""
        if not self.is_limited:
            return True
        model = model.partition("@")[0]  # a former version is seen as the model is
        if not any(fnmatchcase(model, pattern) for pattern in self.models):
            return False
        return adapter is None or any(
            fnmatchcase(f"{model}:{adapter}" if ":" in pattern else adapter, pattern) for pattern in self.adapters
        )


PERSON_MARK = "@"
"""Begins a person's id, and no key's."""


@dataclass(frozen=True, slots=True)
class Person:
    """A person who signed in at the company's provider, without a key."""

    id: str
    """Stands where a key's id stands: '@' and 7 characters."""
    name: str
    """Name for the person's own pages; never stored."""
    team: str
    scopes: frozenset[Scope]


EVERYBODY = Caller()
"""The caller of an open server without keys."""
VISITOR = Caller(scopes=frozenset((Scope.INFER,)), ceiling=ServiceClass.INTERACTIVE)
"""A request without a key on an open server that has keys: inference only."""
ANONYMOUS = Caller("", scopes=frozenset(), models=(), adapters=())
"""A request without a key, where none is needed, on a server that has keys."""
