"""Teams, keys and limits of a running server, changed over HTTP: what a change did counts once its answer is there."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from registry.base.threads import Threads
from tenants.watch import KeyWatch

if TYPE_CHECKING:  # a server without keys loads no database
    from tenants.keys.accounts import AccountTable
    from tenants.keys.table import KeyTable
    from tenants.limits.table import LimitTable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tables:
    keys: "KeyTable"
    accounts: "AccountTable"
    limits: "LimitTable"


class Administration:
    def __init__(self, watch: KeyWatch) -> None:
        self._watch = watch
        self._threads = Threads("database of teams")

    async def do(self, work: Callable[[Tables], T]) -> T:
        """In a thread; the first use makes the tables. Raises what the work raises, Unavailable, QueueFull."""
        keys, database = await self._watch.tables()
        from tenants.keys.accounts import AccountTable
        from tenants.limits.table import LimitTable

        done = await self._threads.run(work, Tables(keys, AccountTable(database), LimitTable(database)))
        await self._watch.look()
        return done
