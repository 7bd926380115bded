"""Fetch files and change recipes while the server is running."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from models.messages import Progress
from registry.errors import RoundhouseError, Unavailable
from registry.recipes.definition import Recipe
from runtime.residency.drainer import Drainer
from runtime.residency.entry import ModelEntry
from runtime.residency.table import S, Table, log, map_error

Fetch = Callable[[ModelEntry, Callable[[int, int | None], None]], Coroutine[None, None, None]]
"""Fetches a model's files and fills in the entry. Reports the bytes received, and the total if known."""


class ModelFetcher:
    """Fetches the files of models.

    | step            | from           | to      |
    |-----------------|----------------|---------|
    | start           | ABSENT, FAILED | LOADING |
    | success         | LOADING        | ABSENT  |
    | failure         | LOADING        | FAILED  |

    The model holds no memory during the fetch. Its needs are known only afterwards, so it is ABSENT again until its
    load is planned.

    Args:
        decide: called after success or failure.
    """

    def __init__(self, table: Table, decide: Callable[[], None], fetch: Fetch) -> None:
        self._table, self._decide, self.fetch = table, decide, fetch
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def cancel(self, entry: ModelEntry) -> bool:
        """Stop fetching its files; return whether a fetch was in progress."""
        task = self._under_way.get(entry.id)
        if task is not None:
            task.cancel()
        return task is not None

    def start(self, entry: ModelEntry) -> bool:
        """Start fetching its files if they are missing; return whether they are."""
        if entry.path is not None:
            return False
        entry.to(S.LOADING)
        entry.progress = Progress(phase="fetching", fraction=0.0)

        def report(received: int, total: int | None) -> None:  # called in the download's threads, so assigns only
            fraction = min(1.0, received / total) if total else 0.0
            entry.fetched = (received, total)
            entry.progress = Progress(phase="fetching", fraction=fraction, detail=f"{received >> 20} MiB")

        task = self._under_way[entry.id] = asyncio.create_task(self.fetch(entry, report))
        self._table.spawn(self._end(entry, task), f"fetch-{entry.id}")
        return True

    async def _end(self, entry: ModelEntry, task: asyncio.Task[None]) -> None:
        """Wait for a fetch, and note how it ended."""
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():  # the server is stopping
                task.cancel()
                raise
            self._fail(entry, Unavailable("The download was cancelled.", code="download_cancelled"))
        except Exception as error:
            self._fail(entry, map_error(error, "download"))
        else:
            entry.progress, entry.failures = None, []  # earlier failures no longer count
            entry.to(S.ABSENT)
        finally:
            self._under_way.pop(entry.id, None)
            entry.fetched = None
        self._table.note_change()
        self._decide()

    def _fail(self, entry: ModelEntry, error: RoundhouseError) -> None:
        log.error("fetching failed", extra={"model": entry.id, "cause": error.message})
        entry.progress, entry.requested_since = None, None
        entry.to(S.FAILED)
        failure = entry.fail(error)
        self._table.observer.load_failed(entry, error)
        wait = max(failure.until - failure.at, error.retry_after or 0.0)
        entry.queue.refuse(Unavailable(error.message, code=error.code, retry_after=wait))


FIELDS_WITHOUT_RELOAD = (
    "version", "price", "description", "owned_by", "aliases", "adapters", "replicas", "system", "stop",
)  # fmt: skip
"""Recipe fields that can change without reloading the engine."""
PATIENCE = 600.0
"""Seconds that a model may stay in use before it drains for its new recipe."""


@dataclass(frozen=True, slots=True)
class RecipeExchange:
    recipe: Recipe
    fill: Callable[[ModelEntry], None]
    """Fills in the entry from the files of the new recipe."""
    done: Callable[[], None] = lambda: None
    """Called once the new recipe is in effect."""


class RecipeExchanger:
    """Replaces the recipes of models.

    | state                 | effect of a new recipe                                                           |
    |-----------------------|----------------------------------------------------------------------------------|
    | any; only FIELDS_     | takes effect at once, and the engine keeps running                               |
    | WITHOUT_RELOAD differ |                                                                                  |
    | ABSENT, FAILED        | takes effect at once                                                             |
    | READY, ASLEEP, unused | the same; its process ends, and the next request loads it again                  |
    | READY, in use         | waits until it is unused, at most PATIENCE; then drains: running requests        |
    |                       | finish, new ones wait and are answered with the new recipe                       |
    | LOADING, leaving      | waits until it has loaded or left                                                |
    | removed meanwhile     | none                                                                             |

    A further change replaces one that waits.
    """

    def __init__(self, table: Table, drainer: Drainer, patience: float = PATIENCE) -> None:
        self._table, self._drainer, self._patience = table, drainer, patience
        self._waiting: dict[str, RecipeExchange] = {}

    def waiting(self, model: str) -> Recipe | None:
        """Return the recipe that waits to replace a model's current one."""
        result = self._waiting.get(model)
        return result.recipe if result else None

    def start(self, entry: ModelEntry, exchange: RecipeExchange) -> None:
        """Replace the model's recipe as soon as the current one is not in use."""
        if _same_engine(entry.recipe, exchange.recipe):
            self._waiting.pop(entry.id, None)
            self._apply(entry, exchange)
            return
        was_waiting = entry.id in self._waiting
        self._waiting[entry.id] = exchange
        if not was_waiting and not self._exchange_now(entry):
            self._table.spawn(self._wait(entry), f"exchange-{entry.id}")

    def forget(self, model: str) -> None:
        """Discard the waiting recipe of a model that is being removed."""
        if self._waiting.pop(model, None) is not None:
            self._table.note_change()

    async def _wait(self, entry: ModelEntry) -> None:
        self._table.call_later(self._patience)
        until = entry.clock() + self._patience
        while entry.id in self._waiting and not self._exchange_now(entry, forced=entry.clock() >= until):
            await self._table.change()

    def _exchange_now(self, entry: ModelEntry, forced: bool = False) -> bool:
        """Exchange the recipe if the state allows it; return whether it did.

        Nothing else runs between the check of the state and the exchange.
        """
        is_resident = entry.state in (S.READY, S.ASLEEP)
        if entry.state not in (S.ABSENT, S.FAILED) and not is_resident:
            return False
        if is_resident and (entry.queue.running or entry.queue.waiting) and not forced:
            return False
        exchange = self._waiting.pop(entry.id)
        if is_resident:
            self._drainer.dismiss(entry)
            self._table.spawn(self._drainer.leave(entry, "changed recipe"), f"changed-{entry.id}")
        entry.path, entry.broken, entry.failures = None, None, []
        entry.after_load = entry.margin = 0
        entry.slept = entry.measured_first_sleep = entry.measured_sleep = entry.measured_wake = None
        exchange.fill(entry)
        self._apply(entry, exchange)
        return True

    def _apply(self, entry: ModelEntry, exchange: RecipeExchange) -> None:
        entry.recipe = exchange.recipe
        entry.queue.change(exchange.recipe)
        log.info("the recipe changed", extra={"model": entry.id, "version": exchange.recipe.version})
        exchange.done()
        self._table.note_change()


def _same_engine(before: Recipe, now: Recipe) -> bool:
    return before.model_copy(update={name: getattr(now, name) for name in FIELDS_WITHOUT_RELOAD}) == now
