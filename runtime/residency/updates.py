"""Fetch files and change recipes while the server runs."""

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
"""Brings a model's files and has the entry filled in; tells the bytes that have come and all bytes, if known."""


class ModelFetcher:
    """
    | step            | from           | to      |
    |-----------------|----------------|---------|
    | start           | ABSENT, FAILED | LOADING |
    | the files came  | LOADING        | ABSENT  |
    | they did not    | LOADING        | FAILED  |

    The model holds no memory meanwhile. How much it needs is known only afterwards, so then it is ABSENT again for the
    moment in which its load is planned.

    Args:
        fetch: None where all files are there.
        decide: called when they have come, or did not.
    """

    def __init__(self, table: Table, decide: Callable[[], None], fetch: Fetch | None) -> None:
        self._table, self._decide, self.fetch = table, decide, fetch
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def cancel(self, entry: ModelEntry) -> bool:
        """Stop fetching its files, if that is under way."""
        task = self._under_way.get(entry.id)
        if task is not None:
            task.cancel()
        return task is not None

    def start(self, entry: ModelEntry) -> bool:
        """Whether its files are missing; if so they are on their way from now on."""
        if entry.path is not None or self.fetch is None:
            return False
        entry.to(S.LOADING)
        entry.progress = Progress(phase="fetching", fraction=0.0)
        self._table.spawn(self._bring(entry, self.fetch), f"fetch-{entry.id}")
        return True

    async def _bring(self, entry: ModelEntry, fetch: Fetch) -> None:
        def report(come: int, whole: int | None) -> None:  # from the download's threads: one assignment, nothing else
            fraction = min(1.0, come / whole) if whole else 0.0
            entry.fetched = (come, whole)
            entry.progress = Progress(phase="fetching", fraction=fraction, detail=f"{come >> 20} MiB")

        task = self._under_way[entry.id] = asyncio.create_task(fetch(entry, report))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():  # the server stops
                task.cancel()
                raise
            self._did_not_come(entry, Unavailable("The download was cancelled.", code="download_cancelled"))
        except Exception as error:
            self._did_not_come(entry, map_error(error, "download"))
        else:
            entry.progress, entry.failures = None, []  # of tries before this one
            entry.to(S.ABSENT)
        finally:
            self._under_way.pop(entry.id, None)
            entry.fetched = None
        self._table.note_change()
        self._decide()

    def _did_not_come(self, entry: ModelEntry, error: RoundhouseError) -> None:
        log.error("fetching failed", extra={"model": entry.id, "cause": error.message})
        entry.progress, entry.requested_since = None, None
        entry.to(S.FAILED)
        failure = entry.fail(error)
        self._table.observer.load_failed(entry, error)
        wait = max(failure.until - failure.at, error.retry_after or 0.0)
        entry.queue.refuse(Unavailable(error.message, code=error.code, retry_after=wait))


FIELDS_WITHOUT_RELOAD = ("version", "price", "description", "owned_by", "aliases", "adapters", "replicas")
"""Recipe fields that change without a reload of the engine."""
PATIENCE = 600.0
"""Seconds for which a model stays in use before it drains for its new recipe, for which later requests wait."""


@dataclass(frozen=True, slots=True)
class RecipeExchange:
    recipe: Recipe
    fill: Callable[[ModelEntry], None]
    """Has the entry filled in with what the new recipe's files tell."""
    done: Callable[[], None] = lambda: None
    """Called once the new recipe counts."""


class RecipeExchanger:
    """
    | state                 | then                                                                             |
    |-----------------------|----------------------------------------------------------------------------------|
    | any; only what no     | the new recipe counts at once, and its engine goes on                            |
    | engine is loaded with |                                                                                  |
    | is another            |                                                                                  |
    | ABSENT, FAILED        | the new recipe counts at once                                                    |
    | READY, ASLEEP, unused | the same; its process ends, and the next request loads it anew                   |
    | READY, in use         | waits until it is unused, at most PATIENCE; then it drains: what runs finishes,  |
    |                       | what comes waits and is answered by the new one                                  |
    | LOADING, on its way   | waits until it has come, or has left                                             |
    | removed meanwhile     | nothing more: the new recipe never counts                                        |

    A further change takes the place of one that waits.
    """

    def __init__(self, table: Table, drainer: Drainer, patience: float = PATIENCE) -> None:
        self._table, self._drainer, self._patience = table, drainer, patience
        self._waiting: dict[str, RecipeExchange] = {}

    def waiting(self, model: str) -> Recipe | None:
        """The recipe that a model is about to get."""
        result = self._waiting.get(model)
        return result.recipe if result else None

    def start(self, entry: ModelEntry, exchange: RecipeExchange) -> None:
        """Give the model another recipe as soon as the present one is not in use."""
        if _same_engine(entry.recipe, exchange.recipe):
            self._waiting.pop(entry.id, None)
            self._count(entry, exchange)
            return
        under_way = entry.id in self._waiting
        self._waiting[entry.id] = exchange
        if not under_way and not self._at_once(entry):
            self._table.spawn(self._wait(entry), f"exchange-{entry.id}")

    def forget(self, model: str) -> None:
        """Forget a model that leaves for ever."""
        if self._waiting.pop(model, None) is not None:
            self._table.note_change()

    async def _wait(self, entry: ModelEntry) -> None:
        self._table.call_later(self._patience)
        until = entry.clock() + self._patience
        while entry.id in self._waiting and not self._at_once(entry, forced=entry.clock() >= until):
            await self._table.change()

    def _at_once(self, entry: ModelEntry, forced: bool = False) -> bool:
        """Exchange the recipe if that may be now.

        Nothing else runs between the look at the state and the exchange.
        """
        there = entry.state in (S.READY, S.ASLEEP)
        if entry.state not in (S.ABSENT, S.FAILED) and not there:
            return False
        if there and (entry.queue.running or entry.queue.waiting) and not forced:
            return False
        exchange = self._waiting.pop(entry.id)
        if there:
            self._drainer.dismiss(entry)
            self._table.spawn(self._drainer.leave(entry, "changed recipe"), f"changed-{entry.id}")
        entry.path, entry.broken, entry.failures = None, None, []
        entry.after_load = entry.margin = 0
        entry.slept = entry.measured_first_sleep = entry.measured_sleep = entry.measured_wake = None
        exchange.fill(entry)
        self._count(entry, exchange)
        return True

    def _count(self, entry: ModelEntry, exchange: RecipeExchange) -> None:
        entry.recipe = exchange.recipe
        entry.queue.change(exchange.recipe)
        log.info("the recipe changed", extra={"model": entry.id, "version": exchange.recipe.version})
        exchange.done()
        self._table.note_change()


def _same_engine(before: Recipe, now: Recipe) -> bool:
    return before.model_copy(update={name: getattr(now, name) for name in FIELDS_WITHOUT_RELOAD}) == now
