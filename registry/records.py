"""Frozen records of the state: versioned names, measured loads and sleeps."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, Literal, NamedTuple, TypeVar

from registry.errors import NotFound
from registry.names import DEFAULT_TEAM, DIGEST_PREFIX, VERSION

PROBE_BYTES = 160
"""Longest expected answer of a probe, in UTF-8 bytes. The beginning of an answer is enough."""

Key = TypeVar("Key", bound=tuple[str, ...])
V = TypeVar("V", bound="NumberedVersion")


class NumberedVersion:
    """One registered version. Numbers start at 1 and are never reused."""

    __slots__ = ()
    number: int
    digest: str

    @property
    def tag(self) -> str:
        """'v3'."""
        return f"v{self.number}"


class Versioned(ABC, Generic[Key, V]):
    """A name with versions, oldest first, the current one, and aliases."""

    __slots__ = ()
    key: Key
    created: float
    current: V
    versions: tuple[V, ...]
    aliases: Mapping[str, int]

    @property
    @abstractmethod
    def title(self) -> str:
        """Subject of error messages, such as "Adapter 'chat:legal'"."""

    @abstractmethod
    def unknown_version(self, ref: str, advice: str) -> NotFound:
        """The error for a version that does not exist."""

    def version(self, ref: str | None = None) -> V:
        """Return the version that `ref` names.

        `ref` is None (the current version), 'v3', 'sha256:…' (12 digits or more) or an alias.
        Raises NotFound with the versions and aliases that exist.
        """
        if ref is None:
            return self.current
        if VERSION.match(ref):
            match = self._numbered(int(ref[1:]))
        elif DIGEST_PREFIX.match(ref):
            match = next((v for v in reversed(self.versions) if v.digest.startswith(ref)), None)
            if len({v.digest for v in self.versions if v.digest.startswith(ref)}) > 1:
                raise self.unknown_version(ref, "The digest fits more than one version: write more digits of it.")
        else:
            number = self.aliases.get(ref)
            match = None if number is None else self._numbered(number)
        if match is None:
            aliases = ", ".join(sorted(self.aliases)[:10]) or "none"
            newest = ", ".join(v.tag for v in self.versions[-10:])
            raise self.unknown_version(ref, f"Its newest versions: {newest}. Its aliases: {aliases}.")
        return match

    def _numbered(self, number: int) -> V | None:
        return next((v for v in self.versions if v.number == number), None)


# --- adapters --------------------------------------------------------------------------------------------------------
class AdapterKey(NamedTuple):
    """An adapter's base, name and team. A name may be used on two bases."""

    base: str
    name: str
    team: str = DEFAULT_TEAM

    def __str__(self) -> str:
        return f"{self.base}:{self.label}"

    @property
    def label(self) -> str:
        """The name shown to everyone: `name` for team `default`, else `team/name`."""
        return self.name if self.team == DEFAULT_TEAM else f"{self.team}/{self.name}"


class UsedNames(frozenset[AdapterKey]):
    """Names that adapters have or ever had, of which there may be many more than adapters."""

    @cached_property
    def owned(self) -> frozenset[tuple[str, str]]:
        """Team and name of each. With 100,000 names this takes 30 ms, so it is not repeated for each catalog."""
        return frozenset((key.team, key.name) for key in self)


@dataclass(frozen=True, slots=True)
class Probe:
    """A prompt, and the text with which the greedy answer to it must begin."""

    prompt: str
    expected: str


@dataclass(frozen=True, slots=True)
class NewVersion:
    """Content that has been read, normalised and stored."""

    digest: str
    """'sha256:' and 64 hex digits."""
    rank: int
    bytes: int
    source: str
    """Origin: a path, a hub id with its revision, or 'upload'."""
    probe: Probe | None = None
    base_origin: str | None = None
    """`registry.recipes.fields.origin` of its base; None if unknown."""


@dataclass(frozen=True, slots=True)
class Version(NumberedVersion):
    """One registered version of an adapter."""

    key: AdapterKey
    number: int
    digest: str
    created: float
    """Seconds since the epoch."""
    rank: int
    bytes: int
    source: str
    probe: Probe | None = None
    base_origin: str | None = None
    """See `NewVersion`. None also for versions that older servers registered."""


@dataclass(frozen=True, slots=True)
class Adapter(Versioned[AdapterKey, Version]):
    """An adapter with all its versions and aliases."""

    key: AdapterKey
    created: float
    pinned: bool
    current: Version
    versions: tuple[Version, ...]
    aliases: Mapping[str, int] = field(default_factory=dict)
    """Alias to version number."""
    shared: bool = False
    """Whether all teams may use it, not only its own."""

    @property
    def title(self) -> str:
        return f"Adapter '{self.key}'"

    def unknown_version(self, ref: str, advice: str) -> NotFound:
        return NotFound(f"Adapter '{self.key}' has no version '{ref}'. {advice}", code="adapter_version_not_found")


@dataclass(frozen=True, slots=True)
class RegisteredVersion:
    """Result of a registration. `created` is true if the content was not current before."""

    adapter: Adapter
    version: Version
    created: bool
    unreferenced: tuple[str, ...] = ()
    """Digests that no adapter has any more, because their versions were pruned."""


# --- routers ---------------------------------------------------------------------------------------------------------
class RouterKey(NamedTuple):
    name: str


@dataclass(frozen=True, slots=True)
class RouterVersion(NumberedVersion):
    """One definition of a router with its fitted models."""

    number: int
    digest: str
    created: float
    bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class RouterRecord(Versioned[RouterKey, RouterVersion]):
    """A router with all its versions and aliases."""

    key: RouterKey
    created: float
    current: RouterVersion
    versions: tuple[RouterVersion, ...]
    aliases: Mapping[str, int] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"Router '{self.key.name}'"

    def unknown_version(self, ref: str, advice: str) -> NotFound:
        return NotFound(f"Router '{self.key.name}' has no version '{ref}'. {advice}", code="router_version_not_found")


# --- measured loads and sleeps ---------------------------------------------------------------------------------------
class LoadKey(NamedTuple):
    """The conditions of a measurement. `device` is the kind of device, not its index."""

    model: str
    recipe_version: int
    engine_version: str
    device: str


@dataclass(frozen=True, slots=True)
class LoadMeasurement:
    """Cost of loading a model under one `LoadKey`, over all loads so far."""

    resident_bytes: int
    """Bytes after the load; see `registry.learning`."""
    margin_bytes: int
    """Peak memory beyond `resident_bytes` while the model served, after decay."""
    seconds: Mapping[str, float]
    """Phase to seconds, as a running mean in which the newest load has weight 0.3."""
    count: int
    host_bytes: int | None = None
    """Host memory used in addition to the device after the last load; None if unknown."""


@dataclass(frozen=True, slots=True)
class SleepMeasurement:
    """Cost of putting a model to sleep under one `LoadKey`, over all sleeps so far."""

    device_bytes: int
    """Device memory still in use during the last sleep."""
    host_bytes: int
    seconds: Mapping[Literal["first", "sleep", "wake"], float]
    """Running means, as for loads. `first` is the first sleep of a process, which takes longest; `sleep` covers the
    later ones. `wake` is missing until the first wake."""
    count: int
    """Number of sleeps."""
