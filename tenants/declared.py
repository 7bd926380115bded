"""Teams declared in a file: names, weights, time zones and limits, but never keys.

    teams:
      - id: search
        name: Search and ranking
        weight: 2
        limits:
          - {kind: tokens_per_minute, amount: 60000}
          - {kind: spend_per_month, amount: 250, mode: warn, model: starter-chat}

Fields that are left out stay as they are. If `limits` is present, it replaces all limits of the team but not those of
its keys. Teams that are not in the file are not changed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import msgspec

from registry.errors import BadRequest
from tenants.keys.records import Team, check_name, check_team, check_weight
from tenants.keys.table import KeyTable
from tenants.limits.records import Kind, Limit, Mode, amount_of, zone_of
from tenants.limits.table import LimitTable


class DeclaredLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: Kind
    amount: int | float | str
    mode: Mode = Mode.ENFORCE
    model: str = ""

    def of(self, team: str) -> Limit:
        return Limit("", "team", team, self.kind, amount_of(self.kind, str(self.amount)), self.mode, self.model)


class DeclaredTeam(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    name: str | None = None
    weight: float | None = None
    timezone: str | None = None
    limits: tuple[DeclaredLimit, ...] | None = None


class DeclaredTeams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    teams: tuple[DeclaredTeam, ...]


@dataclass(frozen=True, slots=True)
class TeamChange:
    words: str
    make: Callable[[], object]


def read(text: bytes) -> DeclaredTeams:
    """Parse and check the file. Raises BadRequest if any part of it could not be applied."""
    try:
        declared: DeclaredTeams = msgspec.yaml.decode(text, type=DeclaredTeams)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"The file declares no teams: {error}") from None
    if len({team.id for team in declared.teams}) < len(declared.teams):
        raise BadRequest("The file names a team twice.", param="id")
    for team in declared.teams:
        check_team(team.id)
        check_name(team.name or "")
        check_weight(1.0 if team.weight is None else team.weight)
        zone_of("UTC" if team.timezone is None else team.timezone)
        limits = [_identity(limit.of(team.id)) for limit in team.limits or ()]
        if len(set(limits)) < len(limits):
            raise BadRequest(f"The file gives '{team.id}' two limits of one kind and model.", param="limits")
    return declared


def changes(declared: DeclaredTeams, keys: KeyTable, limits: LimitTable) -> Iterator[TeamChange]:
    """Yield the changes, in order, that make the tables match the file."""
    existing = {team.id: team for team in keys.list_teams()}
    for team in declared.teams:
        yield from _of_team(team, existing.get(team.id), keys)
        if team.limits is not None:
            yield from _of_limits(team.id, [limit.of(team.id) for limit in team.limits], limits)


def _of_team(declared: DeclaredTeam, existing: Team | None, keys: KeyTable) -> Iterator[TeamChange]:
    if existing is None:
        weight = 1.0 if declared.weight is None else declared.weight
        make = partial(keys.create_team, declared.id, declared.name or "", weight, declared.timezone or "UTC")
        yield TeamChange(f"{declared.id}: new", make)
        return
    if existing.archived:
        yield TeamChange(f"{declared.id}: restored", partial(keys.archive, declared.id, False))
    if declared.name is not None and (declared.name or declared.id) != existing.name:
        yield TeamChange(
            f"{declared.id}: name {existing.name} -> {declared.name or declared.id}",
            partial(keys.edit_team, declared.id, name=declared.name),
        )
    if declared.weight not in (None, existing.weight):
        words = f"{declared.id}: weight {existing.weight:g} -> {declared.weight:g}"
        yield TeamChange(words, partial(keys.edit_team, declared.id, weight=declared.weight))
    if declared.timezone not in (None, existing.timezone):
        words = f"{declared.id}: timezone {existing.timezone} -> {declared.timezone}"
        yield TeamChange(words, partial(keys.edit_team, declared.id, timezone=declared.timezone))


def _of_limits(team: str, declared: list[Limit], limits: LimitTable) -> Iterator[TeamChange]:
    """Set limits, replacing those with the same identity, as `roundhouse limits set` does."""
    existing = limits.all("team", team)
    for limit in declared:
        alike = [one for one in existing if _identity(one) == _identity(limit)]
        if len(alike) != 1 or (alike[0].amount, alike[0].mode) != (limit.amount, limit.mode):
            before = ", ".join(f"{one.display(one.amount)} ({one.mode})" for one in alike) or "none"
            words = f"{team}: {limit.words}: {before} -> {limit.display(limit.amount)} ({limit.mode})"
            yield TeamChange(words, partial(limits.set, limit))
    for one in existing:
        if _identity(one) not in map(_identity, declared):
            words = f"{team}: {one.words}: {one.display(one.amount)} ({one.mode}) -> none"
            yield TeamChange(words, partial(limits.remove, one.id))


def _identity(limit: Limit) -> tuple[Kind, str, bool]:
    """Return a limit's identity. Setting a limit replaces the one with the same identity."""
    return limit.kind, limit.model, limit.mode is Mode.WARN
