"""A team's view of adapters, and the one that it means by a name.

    written      means
    name         the team's own; if it never had one of this name, the one that the team `default` shares
    team/name    one of that team: the team's own, or one that is shared

So a name that was a team's own never comes to mean another team's weights, also not after its own were deleted.
"""

from collections.abc import Collection, Iterable
from copy import copy

from registry.names import DEFAULT_TEAM
from registry.records import Adapter, AdapterKey


class TeamAdapters:
    """Immutable; `of` gives what another team sees, in O(1).

    Args:
        ever: names that adapters have, or had.
        bases: models that are served: adapters of others have no name.
    """

    def __init__(self, adapters: Iterable[Adapter], ever: Iterable[AdapterKey], bases: Collection[str]) -> None:
        self.team = DEFAULT_TEAM
        self._sees_all = False
        self.all = {adapter.key: adapter for adapter in adapters}
        self.ever = frozenset(ever) | self.all.keys()
        self._existed = {(key.team, key.name) for key in self.ever}
        self._named: dict[tuple[str, str], tuple[AdapterKey, ...]] = {}
        for key in self.all:
            if key.base in bases:
                owned = (key.team, key.name)
                self._named[owned] = (*self._named.get(owned, ()), key)

    def of(self, team: str, sees_all: bool = False) -> "TeamAdapters":
        """sees_all: also what others do not share, as administrators do."""
        visible = copy(self)
        visible.team, visible._sees_all = team, sees_all
        return visible

    def sees(self, key: AdapterKey) -> bool:
        """May the team use an adapter that is there, and know of it?"""
        return self._sees_all or key.team == self.team or self.all[key].shared

    def visible(self, base: str | None = None) -> tuple[Adapter, ...]:
        """The adapters that the team sees, on all bases or on one (an id)."""
        return tuple(a for a in self.all.values() if (base is None or a.key.base == base) and self.sees(a.key))

    def find(self, spelling: str, base: str | None = None) -> tuple[AdapterKey, ...]:
        """The adapters that a name may mean, on all served bases or on one."""
        team, slash, name = spelling.rpartition("/")
        if slash:
            return self._of(team, name, base)
        existed = self.existed(name, base) if base else (self.team, name) in self._existed
        return self._of(self.team if existed else DEFAULT_TEAM, name, base)

    def existed(self, name: str, base: str) -> bool:
        """Has, or had, the team itself an adapter of this name?"""
        return AdapterKey(base, name, self.team) in self.ever

    def _of(self, team: str, name: str, base: str | None) -> tuple[AdapterKey, ...]:
        keys = self._named.get((team, name), ())
        return tuple(key for key in keys if (base is None or key.base == base) and self.sees(key))

    def spelled(self, key: AdapterKey) -> str:
        """A name as the team writes it: `name`, or `team/name`."""
        return key.name if key in self.find(key.name) else f"{key.team}/{key.name}"

    def names(self, base: str | None = None) -> list[str]:
        """Return the names of served adapters that the team sees, as it writes them.

        They are in the order of registration: ordering by name and team would reveal hidden ones.
        """
        served = (key for key in self.all if key in self._named.get((key.team, key.name), ()))
        return [self.spelled(key) for key in served if (base is None or key.base == base) and self.sees(key)]

    def without_model(self, base: str, spelling: str) -> tuple[AdapterKey, ...]:
        """One whose base is served no more: it has no name, and can still be removed."""
        team, _, name = spelling.rpartition("/")
        key = AdapterKey(base, name, team or self.team)
        return (key,) if key in self.all and self.sees(key) else ()

    def is_name(self, spelling: str, base: str | None) -> bool:
        """Whether any team calls an adapter so: new shared names may not be the same."""
        team, slash, name = spelling.rpartition("/")
        return any(
            key.name == name and (not slash or key.team == team) and base in (None, key.base) for key in self.all
        )
