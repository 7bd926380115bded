"""The choice of the lines that run next, and of their number. Pure: no clock, no I/O.

1. A model takes no more lines at a time than its `Room` says, running and waiting ones together.
2. Among batches the higher `Level` goes first: the less time is left beyond what the batch needs, the higher it is.
3. Late batches go by the ends of their windows. Among teams of another level the one goes first that had least work
   of the model for its weight (`TeamShares`).
4. Among a team's batches of a level: the higher priority, then the earlier end of the window, then the older one.
   Slack does not order batches: it grows as soon as a batch goes first, and the next one would take its turn.
5. Within a batch: the adapters that are in a place, then the name with most lines, so that one swap serves many.
6. Lines that ran in an engine that died come one at a time for each model, so that the one that kills is found.
7. Lines of class batch give their turns up for people (rule 11 of `runtime.scheduling.placement`), so they may fill
   what people leave. Where that cost much work lately (`lost`), they leave `RESERVED` places more while people come.
8. While people use a model, lines begin one after the other (`pace`): a request that comes waits for one of them in the
   gateway, and not for all that were taken at once.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from batches.records import BatchRecord
from tenants.caller import Caller

LEAST_AHEAD, MOST_AHEAD = 2, 16
"""Lines beyond what a model runs, which wait so that it is full between two looks: a quarter of those, within this."""
RESERVED = 8
"""Places that a model keeps free of lines while people's requests come, if its lines lose too much work."""
PACE_SECONDS = 0.002
"""A little longer than the gateway's work on a line before it waits for its turn."""


class Level(IntEnum):
    """A batch's urgency. Lower goes first."""

    LATE = 0
    """Under 5 % of its window is slack: its lines are of class interactive, and may take all that the model runs."""
    PRESSED = 1
    """Under 10 %: as many lines as half of what the model runs are of class interactive."""
    SOON = 2
    """Under 25 %: models are loaded for it at once."""
    IDLE = 3
    """Only idle capacity."""


_LIMITS = {Level.LATE: 0.05, Level.PRESSED: 0.10, Level.SOON: 0.25}
"""Slack below which a batch has the level."""
RELIEF = 0.20


@dataclass(frozen=True, slots=True)
class Traffic:
    """A model's capacity at once, and the use of it by others."""

    capacity: int
    """Requests that it runs at once."""
    others: int = 0
    """People's requests that run or wait."""
    is_quiet: bool = True
    """No such request came in the last seconds."""
    is_resident: bool = True
    may_load: bool = True
    """A load would evict nobody that interactive requests used lately."""
    most: int | None = None
    """Lines at a time, whatever the level: a provider's bound; None: the figures above count."""
    is_held_off: bool = False
    """A load would evict a model that does lines and was loaded a short while ago."""
    can_fill: bool = False
    """Also while people's requests come, lines may fill what those leave."""


@dataclass(frozen=True, slots=True)
class NamedRoom:
    key: str
    """The key of the model's room."""
    traffic: Traffic
    is_placed: bool = True
    """True if the adapter is in a place, or none is needed."""
    words: str = ""
    """Why it has no room, if it has none."""
    rate: float = 0.0
    """Work per second with all places taken (`models.work`); 0: it was never measured."""
    load_seconds: float = 0.0
    """Seconds until it can begin."""
    is_remote: bool = False
    """Whether another server of the database has the model: it takes the lines, and says why they wait."""


class Rooms(Protocol):
    """The room of each model for lines."""

    def room(self, name: str, caller: Caller) -> NamedRoom:
        """The model that a name means, and what it has now. Never raises: an unknown name is a line's own error."""
        ...


def look_ahead(traffic: Traffic) -> int:
    """Lines that may wait for a turn, beyond those that a model runs."""
    if traffic.most is not None or not (traffic.is_quiet or (traffic.can_fill and traffic.capacity > traffic.others)):
        return 0
    return min(MOST_AHEAD, max(LEAST_AHEAD, traffic.capacity // 4))


def room_for(traffic: Traffic, level: Level) -> int:
    """Lines that may run or wait at the model for a batch of this level, all lines together."""
    if traffic.most is not None:
        return traffic.most
    if not traffic.is_resident and (
        (not traffic.may_load and level > Level.SOON) or (traffic.is_held_off and level is not Level.LATE)
    ):
        return 0
    free = max(0, traffic.capacity - traffic.others) + look_ahead(traffic)
    if not (traffic.is_quiet or traffic.can_fill):
        free -= RESERVED
    least = {Level.LATE: traffic.capacity, Level.PRESSED: traffic.capacity // 2}.get(level, 0)
    return max(free, least)


def pace(rooms: Iterable[Traffic]) -> float:
    """Seconds between the beginnings of two lines that are taken together."""
    return 0.0 if all(traffic.is_quiet for traffic in rooms) else PACE_SECONDS


def slack(batch: BatchRecord, now: float) -> float:
    """Part of its window that is left after its forecast end; without a forecast it is taken to end now."""
    end = now if batch.forecast is None else max(now, batch.forecast.likely)
    return (batch.deadline - end) / batch.window


def level_of(slack: float, before: Level = Level.IDLE) -> Level:
    """The level of a batch that had the level `before`.

    It leaves a level only with `RELIEF` more slack than made it enter: a higher level soon gives slack, and without it
    that would be lost again.
    """
    level = next((level for level, limit in _LIMITS.items() if slack < limit), Level.IDLE)
    return before if level > before and slack < _LIMITS[before] + RELIEF else level


@dataclass(frozen=True, slots=True)
class LineGroup:
    """Lines of a batch that ask for the same name and may run now."""

    name: str
    room: str
    """Key of the model whose room they take."""
    count: int
    suspects: int = 0
    """Lines that ran in an engine that died; not in `count`."""
    is_placed: bool = False
    """True if the adapter is in a place, or none is needed."""
    line_work: float = 1.0
    """Expected work of one of them (`models.work`)."""


@dataclass(frozen=True, slots=True)
class BatchWork:
    """A batch that may run lines."""

    id: str
    team: str
    weight: float
    level: Level
    deadline: float
    created: float
    priority: int
    groups: Sequence[LineGroup]


@dataclass(frozen=True, slots=True)
class RoomUse:
    """A model as the lines of this server use it."""

    limits: Mapping[Level, int]
    """Lines that may be there, by the level of the batch that wants to add one."""
    running: int = 0
    has_suspect: bool = False
    """A line that ran in an engine that died is there."""
    raised: int = 0
    """Lines of class interactive among those that run."""
    half: int = 0
    """Half of what the model runs."""


@dataclass(frozen=True, slots=True)
class LineClaim:
    """Lines to take."""

    batch: str
    name: str
    room: str
    count: int
    is_suspect: bool = False
    is_raised: bool = False
    """They are of class interactive."""


@dataclass(slots=True)
class _Pick:
    work: BatchWork
    left: dict[str, int]
    suspects: dict[str, int]
    order: list[LineGroup] = field(default_factory=list)


def order_of(level: Level, share: float, priority: int, deadline: float) -> tuple[float, float, float]:
    """Order within a level; the lowest goes first."""
    return (deadline, share, -priority) if level is Level.LATE else (share, -priority, deadline)


class TeamShares:
    """Work that teams had of each model, over their weights.

    As `runtime.scheduling.fair.ShareGroup`: a team that had no lines for a while joins at the lowest of those that
    have some, so it is owed nothing. While two teams have lines, their shares differ by at most the work of one look's
    largest lines over their weights.
    """

    def __init__(self) -> None:
        self._shares: dict[str, dict[str, float]] = {}

    def join(self, teams: Mapping[str, Collection[str]]) -> None:
        """Set which teams have lines for which models now."""
        self._shares = {room: self._joined(room, names) for room, names in teams.items()}

    def _joined(self, room: str, teams: Collection[str]) -> dict[str, float]:
        before = self._shares.get(room, {})
        stayed = [before[team] for team in teams if team in before]
        level = min(stayed, default=max(before.values(), default=0.0))
        return {team: before.get(team, level) for team in teams}

    def charge(self, room: str, team: str, work: float, weight: float) -> None:
        """Work that a team gets; negative: that it was charged, and did not have."""
        shares = self._shares.get(room, {})
        if team in shares:
            shares[team] += work / weight

    def of(self, room: str, team: str) -> float:
        return self._shares.get(room, {}).get(team, 0.0)


def choose(
    works: Sequence[BatchWork], rooms: Mapping[str, RoomUse], shares: TeamShares | None = None
) -> list[LineClaim]:
    """Lines to take now, in the order in which they should come. shares: as they are before these lines."""
    used = Counter({key: room.running for key, room in rooms.items()})
    raised = Counter({key: room.raised for key, room in rooms.items()})
    suspects = {key for key, room in rooms.items() if room.has_suspect}
    taken: defaultdict[tuple[str, str], float] = defaultdict(float)
    shares = shares or TeamShares()
    picks = [_pick(work) for work in works]
    claims = Counter[tuple[str, str, str, bool, bool]]()
    while True:
        best: tuple[tuple[object, ...], _Pick, LineGroup, bool] | None = None
        for pick in picks:
            found = _next_group(pick, rooms, used, suspects)
            if found is None:
                continue
            work, (group, is_suspect) = pick.work, found
            share = shares.of(group.room, work.team) + taken[group.room, work.team]
            rank = work.level, *order_of(work.level, share, work.priority, work.deadline), work.created, work.id
            if best is None or rank < best[0]:
                best = rank, pick, group, is_suspect
        if best is None:
            return [
                LineClaim(batch, name, key, count, is_suspect, is_raised)
                for (batch, name, key, is_suspect, is_raised), count in claims.items()
            ]
        _, pick, group, is_suspect = best
        if is_suspect:
            pick.suspects[group.name] -= 1
            suspects.add(group.room)
        else:
            pick.left[group.name] -= 1
        used[group.room] += 1
        is_raised = pick.work.level is Level.LATE or (
            pick.work.level is Level.PRESSED and raised[group.room] < rooms[group.room].half
        )
        raised[group.room] += is_raised
        taken[group.room, pick.work.team] += group.line_work / pick.work.weight
        claims[pick.work.id, group.name, group.room, is_suspect, is_raised] += 1


def _pick(work: BatchWork) -> _Pick:
    order = sorted(work.groups, key=lambda group: (not group.is_placed, -group.count, group.name))
    return _Pick(
        work, {group.name: group.count for group in order}, {group.name: group.suspects for group in order}, order
    )


def _next_group(
    pick: _Pick, rooms: Mapping[str, RoomUse], used: Mapping[str, int], suspects: set[str]
) -> tuple[LineGroup, bool] | None:
    """The first group with a line that fits; True: a suspect of it."""
    for group in pick.order:
        if used[group.room] >= rooms[group.room].limits[pick.work.level]:
            continue
        if pick.left[group.name] > 0:
            return group, False
        if pick.suspects[group.name] > 0 and group.room not in suspects:
            return group, True
    return None
