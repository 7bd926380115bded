"""What the state holds about adapters and loads: frozen records, free of the database."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from registry.errors import NotFound
from registry.names import DEFAULT_TEAM, DIGEST_PREFIX, VERSION

PROBE_BYTES = 160
"""Of UTF-8, that a probe may expect: the beginning of an answer is enough."""


ROUTERS = "@routers"
"""In the place of a base, for a router: no model's id begins with '@'."""


class AdapterKey(NamedTuple):
    """One adapter: its base model's id, its own name, and whose it is. A team may have the same name on two bases.

    Routers have versions, aliases and a way back as adapters do, and are kept as such, with `ROUTERS` as their base.
    """

    base: str
    name: str
    team: str = DEFAULT_TEAM

    def __str__(self) -> str:
        return self.name if self.base == ROUTERS else f"{self.base}:{self.label}"

    @property
    def label(self) -> str:
        """One name that is the same for everybody: `name` of the team `default`, `team/name` of any other."""
        return self.name if self.team == DEFAULT_TEAM else f"{self.team}/{self.name}"

    @property
    def what(self) -> str:
        """For messages: 'Adapter' or 'Router'."""
        return "Router" if self.base == ROUTERS else "Adapter"


@dataclass(frozen=True, slots=True)
class Probe:
    """A prompt, and what the greedy answer to it must begin with."""

    prompt: str
    expected: str


@dataclass(frozen=True, slots=True)
class NewVersion:
    """What is known of content that was read, normalised and stored."""

    digest: str
    """'sha256:' and 64 hex digits."""
    rank: int
    bytes: int
    source: str
    """Where it came from, in words for people: a path, a hub id with its revision, or 'upload'."""
    probe: Probe | None = None


@dataclass(frozen=True, slots=True)
class Version:
    """One registered content of an adapter. Numbers start at 1 and are never used twice for one name."""

    key: AdapterKey
    number: int
    digest: str
    created: float
    """Seconds since the epoch."""
    rank: int
    bytes: int
    source: str
    probe: Probe | None = None

    @property
    def tag(self) -> str:
        """'v3'."""
        return f"v{self.number}"


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter with all its versions, oldest first, and the aliases that point to them."""

    key: AdapterKey
    created: float
    pinned: bool
    current: Version
    versions: tuple[Version, ...]
    aliases: Mapping[str, int] = field(default_factory=dict)
    """Alias to version number."""
    shared: bool = False
    """All teams may use it, and not only its own."""

    def version(self, ref: str | None = None) -> Version:
        """The version that `ref` names: None (the current one), 'v3', 'sha256:…' (12 digits or more) or an alias.

        Raises NotFound (code adapter_version_not_found) with what exists.
        """
        if ref is None:
            return self.current
        if VERSION.match(ref):
            version = self._numbered(int(ref[1:]))
        elif DIGEST_PREFIX.match(ref):
            version = next((v for v in reversed(self.versions) if v.digest.startswith(ref)), None)
            if len({v.digest for v in self.versions if v.digest.startswith(ref)}) > 1:
                raise NotFound(
                    f"Digest {ref} fits more than one version of '{self.key}'. Write more digits of it.",
                    code="adapter_version_not_found",
                )
        else:
            number = self.aliases.get(ref)
            version = None if number is None else self._numbered(number)
        if version is None:
            aliases = ", ".join(sorted(self.aliases)[:10]) or "none"
            newest = ", ".join(v.tag for v in self.versions[-10:])
            raise NotFound(
                f"{self.key.what} '{self.key}' has no version '{ref}'. Its newest versions: {newest}. "
                f"Its aliases: {aliases}.",
                code="adapter_version_not_found",
            )
        return version

    def _numbered(self, number: int) -> Version | None:
        return next((v for v in self.versions if v.number == number), None)


@dataclass(frozen=True, slots=True)
class RegisteredVersion:
    """The answer to a registration. `created` is False when the current version already had this content."""

    adapter: Adapter
    version: Version
    created: bool


class LoadKey(NamedTuple):
    """What a measured load depends on. `device`: the kind of device ('cpu', 'NVIDIA H200'), not its index."""

    model: str
    recipe_version: int
    engine_version: str
    device: str


@dataclass(frozen=True, slots=True)
class LoadMeasurement:
    """What loads of this kind have cost so far."""

    resident_bytes: int
    """After the load, see `registry.learning`."""
    margin_bytes: int
    """What was held beyond that while it served, as far as it has not faded."""
    seconds: Mapping[str, float]
    """Phase to seconds: a running mean in which the newest load weighs 0.3."""
    count: int
    updated: float
    host_bytes: int | None = None
    """In host memory beside the device, after the last load; None: not known."""


@dataclass(frozen=True, slots=True)
class SleepMeasurement:
    """What sleeps of this kind have cost so far."""

    device_bytes: int
    """Held asleep, the last time."""
    host_bytes: int
    seconds: Mapping[Literal["first", "sleep", "wake"], float]
    """A running mean, as that of loads. first: of the first sleep in a process, which takes longest; sleep: of later
    ones. No wake: it has never woken."""
    count: int
    """Sleeps."""
    updated: float
