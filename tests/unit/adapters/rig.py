"""Adapter registration with everything that belongs to it, in a new data directory."""

from pathlib import Path

from adapters.service import AdapterService
from adapters.types import Base
from registry.bounds import Bounds
from registry.recipes.fields import PathSource
from registry.records import AdapterKey, RegisteredVersion, Version
from registry.state.database import State
from tests.unit.adapters.makers import write_adapter


class Rig:
    """A service over a new data directory. `leases` are the digests in use.

    Its checking processes start at the first checks, unless `warm_up` starts them, as most tests need one or none.
    """

    def __init__(self, data: Path, base: Base, bounds: Bounds | None = None) -> None:
        self.data, self.base, self.leases = data, base, set[str]()
        data.mkdir(exist_ok=True)
        self.state = State(data)
        self.service = AdapterService(data, self.state, leased=self.leases.__contains__, bounds=bounds)
        self._start_checkers, self.service.checker.start = self.service.checker.start, _nothing  # type: ignore[method-assign]

    async def warm_up(self) -> None:
        await self._start_checkers()

    async def add(self, name: str, folder: Path, seed: int, **options: object) -> RegisteredVersion:
        write_adapter(folder / f"{name}-{seed}", seed=seed)
        source = PathSource(path=str(folder / f"{name}-{seed}"))
        return await self.service.register(name, self.base, source, **options)  # type: ignore[arg-type]

    def version(self, selector: str) -> Version:
        """Return the version for 'name', 'name@v3', 'name@sha256:…' or 'name@alias'."""
        name, at, ref = selector.partition("@")
        return self.service.show(AdapterKey(self.base.id, name)).version(ref if at else None)

    def on_disk(self) -> set[str]:
        return {path.name for path in (self.data / "store").iterdir()}


async def _nothing() -> None:
    """Do nothing, instead of starting the checking processes."""
