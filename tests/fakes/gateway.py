"""What the gateway gives to queues and residency, for tests in which it plays no part."""

from collections.abc import Callable, Sequence

from registry.records import Probe
from runtime.residency.entry import ModelEntry
from runtime.scheduling.effects import Step


class NoAdapters:
    """An `AdapterRegistry` in which every file is right and no version has a probe. It ignores all events."""

    async def check(self, digest: str) -> None: ...

    def probes(self, digest: str) -> Sequence[Probe | None]:
        return ()

    def dropped(self, digest: str) -> None: ...

    def note(self, step: Step, seconds: float, outcome: str) -> None: ...

    def swapped(self, digest: str, evicted: str | None, staging: float, placing: float) -> None: ...


async def no_fetch(entry: ModelEntry, on_progress: Callable[[int, int | None], None]) -> None:
    raise AssertionError(f"the files of {entry.id} are not missing")


async def no_revision(entry: ModelEntry) -> None:
    """Leave the revision as it is: no file changes."""
