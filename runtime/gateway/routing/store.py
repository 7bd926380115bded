"""All routers: their versions in the state, their content in files, and both in memory."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from registry.base.wording import nearest, quoted
from registry.bounds import Bounds
from registry.errors import BadRequest, NotFound, RoundhouseError, TooLarge, Unavailable, Unfit
from registry.files.sources import locate
from registry.names import ADAPTER
from registry.recipes.fields import HubSource
from registry.recipes.router import RouterSpec
from registry.records import RouterKey, RouterRecord, RouterVersion
from registry.state.adapters import RouterTable
from registry.state.database import State
from registry.state.versions import check_alias
from routing.intents.kinds import Kind
from routing.routers.content import Router, RouterContent, RouterContentStore, models_in
from runtime.gateway.names import Names

log = logging.getLogger("roundhouse.gateway")
FILE = "recipe file"
"""The source of versions that recipe files add."""


class RouterVersionView(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    digest: str
    created: float
    bytes: int
    source: str


class RouterView(msgspec.Struct, frozen=True, kw_only=True):
    """A router: its current or requested version, all versions, aliases, and its definition."""

    object: Literal["router"] = "router"
    name: str
    version: str
    digest: str
    versions: list[RouterVersionView]
    aliases: dict[str, str]
    models: list[str]
    """The fitted models among 'intents' and 'complexity'."""
    threshold: float | None
    """Below which its intents abstain, or that the expected acceptance must reach; None: nothing is fitted."""
    definition: dict[str, Any]
    prices: dict[str, float] = {}
    """Prices of a million tokens of the targets that the caller may use, as decisions compare them."""


@dataclass(frozen=True, slots=True)
class RouterAddition:
    """The result of adding a router."""

    router: RouterView
    is_new: bool


class RouterStore:
    """One writer at a time. Reads come from memory once `ready` has loaded a version."""

    def __init__(self, folder: Path, state: State, names: Names, bounds: Bounds) -> None:
        self._contents, self._state, self._names, self._bounds = RouterContentStore(folder), state, names, bounds
        self._changing = asyncio.Lock()
        self._records: Mapping[str, RouterRecord] = {}
        self._ready: dict[str, Router] = {}
        """Loaded routers, by digest."""
        self.is_shared = False
        """Whether other servers of a fleet share the routers, so that files of their additions are copied."""
        self.adds_from_files = True
        """False on a front, since other servers cannot copy files from it."""
        self._in_files: dict[str, str] = {}
        """Digests of the definitions in recipe files, by name."""
        self.faults: dict[str, str] = {}
        """Routers in files that could not be added, with the reason."""

    # --- look up ----------------------------------------------------------------------------------------------------
    def find(self, name: object) -> Router | None:
        """The router for `name`, `name@v2` or `name@alias`. None if there is no router of this name.

        Raises NotFound for an unknown version. Models take precedence: a router is unused once a recipe gives its name
        to a model.
        """
        version = self._version_of(name)
        return None if version is None else self._router(version)

    async def ready(self, name: object) -> Router | None:
        """Like `find`, but reads files in a thread, since fitted models may have 128 MiB."""
        version = self._version_of(name)
        if version is None:
            return None
        await self._read(version)
        return self._router(version)

    def is_router(self, name: object) -> bool:
        """Whether it names a router. Reads no files. Raises NotFound for an unknown version."""
        return self._version_of(name) is not None

    def _version_of(self, name: object) -> RouterVersion | None:
        if not isinstance(name, str):
            return None
        head, at, ref = name.partition("@")
        record = self._records.get(head)
        if record is None or self._names.is_model(head):
            return None
        return record.version(ref if at else None)

    def _router(self, version: RouterVersion) -> Router:
        router = self._ready.get(version.digest)
        if router is None:
            router = self._build(version)
        elif router.tag != version.tag:
            router = router.with_tag(version.tag)
        self._ready[version.digest] = router
        return router

    async def _read(self, version: RouterVersion) -> None:
        if version.digest not in self._ready:
            self._ready[version.digest] = await asyncio.to_thread(self._build, version)

    def _build(self, version: RouterVersion) -> Router:
        if self._is_missing(version):
            raise Unavailable("The files of this router are being copied from another server.", retry_after=1)
        return self._contents.read(version.digest).router(version.tag)

    def all(self) -> list[RouterView]:
        """Routers whose files are readable. `open` has logged the others."""
        views = list[RouterView]()
        for record in self._records.values():
            with contextlib.suppress(Unfit, Unavailable):
                views.append(self._view(record, record.current))
        return views

    def names(self) -> list[str]:
        return list(self._records)

    def show(self, name: str) -> RouterView:
        record = self._record(name)
        return self._view(record, record.current)

    async def version(self, name: str) -> RouterView:
        """View the version for `name@v2` or `name@alias`, or the current one for `name`. Raises NotFound."""
        record, version = self._version(name)
        await self._read(version)
        return self._view(record, version)

    async def model(self, name: str, kind: Kind) -> bytes:
        """A fitted model of a version as a file. Raises NotFound."""
        _, version = self._version(name)
        data = (await asyncio.to_thread(self._contents.read, version.digest)).model(kind)
        if data is None:
            raise NotFound(f"Router '{name}' has no {kind} fitted: roundhouse routers fit.", code="router_not_found")
        return data

    def _record(self, name: str) -> RouterRecord:
        record = self._records.get(name)
        if record is None:
            names = ", ".join(nearest(name, list(self._records))) or "none yet"
            raise NotFound(f"There is no router {quoted(name)}. There are: {names}.", code="router_not_found")
        return record

    def _version(self, name: str) -> tuple[RouterRecord, RouterVersion]:
        head, at, ref = name.partition("@")
        record = self._record(head)
        return record, record.version(ref if at else None)

    def _view(self, record: RouterRecord, version: RouterVersion) -> RouterView:
        router = self._router(version)
        fitted = {"intents": router.intents, "complexity": router.complexity}
        return RouterView(
            name=record.key.name,
            version=version.tag,
            digest=version.digest,
            versions=[
                RouterVersionView(version=v.tag, digest=v.digest, created=v.created, bytes=v.bytes, source=v.source)
                for v in record.versions
            ],
            aliases={alias: f"v{number}" for alias, number in record.aliases.items()},
            threshold=router.threshold,
            models=[kind for kind, model in fitted.items() if model is not None],
            definition=router.spec.model_dump(mode="json", exclude={"source", "version"}, exclude_defaults=True),
        )

    # --- changes ----------------------------------------------------------------------------------------------------
    async def open(self, given: Iterable[RouterSpec]) -> None:
        """Read all routers, at startup and after recipe files were read again."""
        self.refresh()
        self.faults, self._in_files = {}, {}
        for record in self._records.values():
            if self._is_missing(record.current):
                continue
            with self._skip_faulty(record.key.name):
                await self._read(record.current)
                self._names.check_router(record.key.name)
        given = tuple(given)
        if given and not self.adds_from_files:
            left_out = [spec.id for spec in given]
            log.warning(
                "routers in a front's recipe files are left out: give the files to a node, or add the routers with "
                "roundhouse routers add",
                extra={"routers": left_out},
            )
        for spec in given if self.adds_from_files else ():
            with self._skip_faulty(spec.id):
                await self._add_from_file(spec)
        async with self._changing:
            await self._tidy()

    @contextlib.contextmanager
    def _skip_faulty(self, name: str) -> Iterator[None]:
        """Record an error as this router's fault, so that the others load."""
        try:
            yield
        except RoundhouseError as error:
            faults = "; ".join(error.faults) if isinstance(error, Unfit) else ""
            self.faults[name] = f"{error.message} {faults}".strip()
            log.error("a router is left out", extra={"router": name, "cause": self.faults[name]})

    async def _add_from_file(self, spec: RouterSpec) -> None:
        """Add a version if the file's content is new. A rolled-back version stays rolled back."""
        models = await asyncio.to_thread(_models_of, spec, self._bounds.fitted_bytes)
        content = RouterContent(spec, models)
        self._in_files[spec.id] = content.digest
        record = self._records.get(spec.id)
        if record is None or all(version.digest != content.digest for version in record.versions):
            await self.add(content, FILE)
        elif self.is_shared and not self._contents.has(content.digest):
            async with self._changing:
                await asyncio.to_thread(self._contents.write, content)

    async def put(self, spec: RouterSpec, alias: str | None = None) -> RouterAddition:
        """Add a router or a new version, which keeps the fitted models."""
        async with self._changing:
            models = await asyncio.to_thread(_models_of, spec, self._bounds.fitted_bytes)
            if not models and (record := self._records.get(spec.id)) is not None:
                models = (await asyncio.to_thread(self._contents.read, record.current.digest)).models
            return await self._add(RouterContent(spec, models), "request", alias)

    async def fit(self, name: str, kind: Kind, data: bytes) -> RouterAddition:
        """Add a version with another fitted model. Raises Unfit if that is invalid."""
        async with self._changing:  # the model is added to the version that is current now
            record = self._record(name)
            content = await asyncio.to_thread(self._contents.read, record.current.digest)
            return await self._add(content.with_model(kind, data), f"fitted {kind}")

    async def add(self, content: RouterContent, source: str, alias: str | None = None) -> RouterAddition:
        """Store a version unchanged, without taking over fitted models."""
        async with self._changing:
            return await self._add(content, source, alias)

    async def _add(self, content: RouterContent, source: str, alias: str | None = None) -> RouterAddition:
        """Write files and then the state, under the lock. `open` removes files left by a crash."""
        name = content.spec.id
        self._check(name)
        self._check_targets(content.spec)
        if alias is not None:
            check_alias(alias)
        router = await asyncio.to_thread(content.router, "v0")  # raises Unfit before anything is written
        self._check_room(content)
        await asyncio.to_thread(self._contents.mark, [content.digest])
        await asyncio.to_thread(self._contents.write, content)
        async with self._names.registering:
            self._check(name)  # again, since a model may have taken the name meanwhile
            key, register = RouterKey(name), self._state.routers.register
            is_new = await asyncio.to_thread(register, key, content.digest, content.size, source, alias)
            await asyncio.to_thread(self._contents.unmark)
            self._ready[content.digest] = router
            try:
                await self._prune(key)
            except RoundhouseError as error:  # the version is stored; the router's next one prunes again
                log.warning("old versions of a router stay for now", extra={"cause": error.message})
            self.refresh()
        return RouterAddition(self.show(name), is_new)

    async def _prune(self, key: RouterKey) -> None:
        """Remove old versions beyond the bound, and all files that no version uses any more."""
        record, most = self._state.routers.get(key), self._bounds.router_versions
        from_files = [version for version in record.versions if version.source == FILE]
        kept = {version.digest for version in from_files[-1:]}  # or its file would add it again at the next start
        kept.add(self._in_files.get(key.name, ""))
        aliased = set(record.aliases.values())
        if any(old.number not in aliased and old.digest not in kept for old in record.versions[:-most]):
            await asyncio.to_thread(self._contents.mark, [version.digest for version in record.versions])
            await asyncio.to_thread(self._state.routers.prune, key, most, kept)
            await self._tidy(record)

    async def _tidy(self, *before: RouterRecord) -> None:
        """Remove files that no version uses. Called with the lock, as an addition is not in the state yet.

        before: the routers as they were before versions were removed. Servers of a fleet also delete what other servers
        removed, unless the fleet has never had a router, as in an empty database.
        """
        stored, removed = (
            {version.digest for record in records for version in record.versions}
            for records in (self._state.routers.all(), before)
        )
        used = stored | self._state.routers.reserved
        keep = not self.is_shared or not await asyncio.to_thread(self._state.routers.ever)
        if left := await asyncio.to_thread(self._contents.tidy, used, removed, keep_others=keep):
            log.error(
                "there are routers that the state does not know: it was lost, or is in another database (--database). "
                "Their files are kept. If nothing needs them, delete their folders",
                extra={"folder": str(self._contents.folder), "routers": left},
            )

    def _check(self, name: str) -> None:
        if not ADAPTER.match(name):
            raise BadRequest(f"{quoted(name)} is not a valid router name.", param="id")
        self._names.check_router(name)

    def _check_targets(self, spec: RouterSpec) -> None:
        """Raises Unfit (bad_router) for a target that is a router."""
        routers = {spec.id, *self._records}
        names = [target.name for target in spec.targets if target.name.partition("@")[0] in routers]
        if faults := [f"targets: {quoted(name)} is a router" for name in names if not self._names.is_model(name)]:
            message = "The router cannot be used: a router's target is a model, an adapter or a provider's model."
            raise Unfit(message, faults, code="bad_router")

    def _check_room(self, content: RouterContent) -> None:
        """Raises TooLarge."""
        stored = {version.digest: version.bytes for record in self._records.values() for version in record.versions}
        if content.digest not in stored and sum(stored.values()) + content.size > self._bounds.routers_bytes:
            raise TooLarge(
                f"All versions of all routers may hold {self._bounds.routers_bytes} bytes together "
                "(--bounds routers_bytes), and hold "
                f"{sum(stored.values())}: remove a router that nobody uses."
            )

    async def remove(self, name: str, *, force: bool = False) -> None:
        """Remove a router, even if its files are unreadable."""
        async with self._changing:
            record = self._record(name)
            await asyncio.to_thread(self._contents.mark, [version.digest for version in record.versions])
            try:
                await asyncio.to_thread(self._state.routers.delete, record.key, force=force)
            except RoundhouseError:
                await asyncio.to_thread(self._contents.unmark)
                raise
            self.refresh()
            await self._tidy(record)

    async def change(self, name: str, change: Callable[[RouterTable, RouterKey], RouterRecord]) -> RouterView:
        """Change aliases or the current version by a method of the table. Raises NotFound, Conflict, BadRequest."""
        async with self._changing:
            await asyncio.to_thread(change, self._state.routers, self._record(name).key)
            self.refresh()
        return await self.version(name)

    # --- other servers of the fleet ---------------------------------------------------------------------------------
    def _is_missing(self, version: RouterVersion) -> bool:
        return self.is_shared and not self._contents.has(version.digest)

    def missing(self) -> list[RouterVersion]:
        """Versions whose files another server has."""
        return [
            version for record in self._records.values() for version in record.versions if self._is_missing(version)
        ]

    async def packed(self, digest: str) -> bytes:
        """Files of a version, for another server. Raises NotFound."""
        try:
            return (await asyncio.to_thread(self._contents.read, digest)).packed()
        except Unfit:
            raise NotFound("The files of this router are not here.", code="router_not_found") from None

    async def take_copy(self, version: RouterVersion, data: bytes) -> None:
        """Store what another server has packed. Raises Unfit (wrong_copy), Unavailable (disk_full)."""
        content = await asyncio.to_thread(RouterContent.unpacked, data, version.digest)
        async with self._changing:
            await asyncio.to_thread(self._contents.write, content)

    def refresh(self) -> None:
        """Read the versions from the state again, as other servers may change them."""
        self._records = {record.key.name: record for record in self._state.routers.all()}
        used = {version.digest for record in self._records.values() for version in record.versions}
        self._ready = {digest: router for digest, router in self._ready.items() if digest in used}


def _models_of(spec: RouterSpec, most: int) -> tuple[tuple[Kind, bytes], ...]:
    if spec.source is None:
        return ()
    if isinstance(spec.source, HubSource):
        raise BadRequest("A router's source is a path or a package, not a hub.", param="source")
    return models_in(locate(spec.source), most)
