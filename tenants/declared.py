"""Teams as a file declares them, for who keeps configuration in git: names, weights, zones and limits; never keys.

    teams:
      - id: search
        name: Search and ranking
        weight: 2
        limits:
          - {kind: tokens_per_minute, amount: 60000}
          - {kind: spend_per_month, amount: 250, mode: warn, model: starter-chat}

What is left out stays as it is. `limits`, where it is there, are all limits of that team; its keys' limits stay. Teams
that the file does not name stay too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import msgspec

from registry.errors import BadRequest
from registry.json import NOT_JSON
from registry.wording import plain
from tenants.keys.records import Team, check_name, check_team, check_weight
from tenants.keys.table import KeyTable
from tenants.limits.periods import zone_of
from tenants.limits.records import Kind, Limit, Mode, amount_of
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
    """Raises BadRequest for whatever could not be applied as a whole."""
    try:
        found: DeclaredTeams = msgspec.yaml.decode(text, type=DeclaredTeams)
    except NOT_JSON as error:
        raise BadRequest(f"The file declares no teams: {error}") from None
    if len({team.id for team in found.teams}) < len(found.teams):
        raise BadRequest("The file names a team twice.", param="id")
    for team in found.teams:
        check_team(team.id)
        check_name(team.name or "")
        check_weight(1.0 if team.weight is None else team.weight)
        zone_of("UTC" if team.timezone is None else team.timezone)
        limits = [_place(limit.of(team.id)) for limit in team.limits or ()]
        if len(set(limits)) < len(limits):
            raise BadRequest(f"The file gives '{team.id}' two limits of one kind and model.", param="limits")
    return found


def changes(declared: DeclaredTeams, keys: KeyTable, limits: LimitTable) -> Iterator[TeamChange]:
    """What is to be made so that all is as declared; nothing where it is. They are to be made in this order."""
    there = {team.id: team for team in keys.list_teams()}
    for team in declared.teams:
        yield from _of_team(team, there.get(team.id), keys)
        if team.limits is not None:
            yield from _of_limits(team.id, [limit.of(team.id) for limit in team.limits], limits)


def _of_team(wanted: DeclaredTeam, found: Team | None, keys: KeyTable) -> Iterator[TeamChange]:
    if found is None:
        weight = 1.0 if wanted.weight is None else wanted.weight
        make = partial(keys.create_team, wanted.id, wanted.name or "", weight, wanted.timezone or "UTC")
        yield TeamChange(f"{wanted.id}: new", make)
        return
    if found.archived:
        yield TeamChange(f"{wanted.id}: restored", partial(keys.archive, wanted.id, False))
    if wanted.name is not None and (wanted.name or wanted.id) != found.name:
        yield TeamChange(
            f"{wanted.id}: name {found.name} -> {wanted.name or wanted.id}",
            partial(keys.edit_team, wanted.id, name=wanted.name),
        )
    if wanted.weight not in (None, found.weight):
        words = f"{wanted.id}: weight {found.weight:g} -> {wanted.weight:g}"
        yield TeamChange(words, partial(keys.edit_team, wanted.id, weight=wanted.weight))
    if wanted.timezone not in (None, found.timezone):
        words = f"{wanted.id}: timezone {found.timezone} -> {wanted.timezone}"
        yield TeamChange(words, partial(keys.edit_team, wanted.id, timezone=wanted.timezone))


def _of_limits(team: str, wanted: list[Limit], limits: LimitTable) -> Iterator[TeamChange]:
    """A limit that is set takes the place of the one that is alike, as `roundhouse limits set` does."""
    kept = limits.all("team", team)
    for limit in wanted:
        alike = [one for one in kept if _place(one) == _place(limit)]
        if len(alike) != 1 or (alike[0].amount, alike[0].mode) != (limit.amount, limit.mode):
            before = ", ".join(f"{plain(one.shown)} ({one.mode})" for one in alike) or "none"
            words = f"{team}: {limit.words}: {before} -> {plain(limit.shown)} ({limit.mode})"
            yield TeamChange(words, partial(limits.set, limit))
    for one in kept:
        if _place(one) not in map(_place, wanted):
            words = f"{team}: {one.words}: {plain(one.shown)} ({one.mode}) -> none"
            yield TeamChange(words, partial(limits.remove, one.id))


def _place(limit: Limit) -> tuple[Kind, str, bool]:
    """Of limits that are alike in this one takes another's place."""
    return limit.kind, limit.model, limit.mode is Mode.WARN
