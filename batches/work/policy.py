"""Chooses the lines that run next, and how many. Pure: no clock, no I/O.

1. A model takes at most as many lines as its `NamedRoom` allows, running and waiting ones together.
2. Batches with a higher `Level` go first. The level rises as the spare time in a batch's window shrinks.
3. Late batches are ordered by the ends of their windows. At other levels, the team goes first that has had the least
   work of the model relative to its weight (`TeamShares`).
4. Among a team's batches of a level: higher priority first, then the earlier end of the window, then the older one.
   Slack does not order batches: it grows as soon as a batch goes first, so batches would alternate.
5. Within a batch: adapters that are in a place first, then the name with most lines, so that one swap serves many.
6. Lines whose engine died run one at a time for each model, to find the one that kills it.
7. Lines of class batch give up their turns for people (rule 11 of `runtime.scheduling.placement`), so they may use all
   idle capacity. If that has cost much work lately (`LostWork`), they leave `RESERVED` more places free while people
   send requests.
8. While people use a model, lines start one after the other (`pace`), so that a new request waits in the gateway for
   one of them and not for all that were claimed together.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from batches.records import BatchRecord
from tenants.caller import Caller

LEAST_AHEAD, MOST_AHEAD = 2, 16
"""Lines that wait so that the model stays busy between two updates: a quarter of its capacity, within these bounds."""
RESERVED = 8
"""Places that a model keeps free of lines while people send requests, if its lines lose too much work."""
PACE_SECONDS = 0.002
"""Slightly longer than the gateway's work on a line before it waits for its turn."""


class Level(IntEnum):
    """The urgency of a batch. Lower goes first."""

    LATE = 0
    """Slack under 5 % of its window: its lines are of class interactive, and may use the whole model."""
    PRESSED = 1
    """Slack under 10 %: lines up to half of the model's capacity are of class interactive."""
    SOON = 2
    """Slack under 25 %: models are loaded for it at once."""
    IDLE = 3
    """Uses idle capacity only."""


_LIMITS = {Level.LATE: 0.05, Level.PRESSED: 0.10, Level.SOON: 0.25}
"""Slack below which a batch has the level, as a fraction of its window."""
RELIEF = 0.20


@dataclass(frozen=True, slots=True)
class Traffic:
    """A model's capacity, and how much of it others use."""

    capacity: int
    """Requests that it runs concurrently."""
    others: int = 0
    """Running and waiting requests of people."""
    is_quiet: bool = True
    """Whether people sent no request in the last seconds."""
    is_resident: bool = True
    may_load: bool = True
    """Whether a load would evict no model that interactive requests used lately."""
    most: int | None = None
    """Most concurrent lines at any level, for a provider. None to use the figures above."""
    is_held_off: bool = False
    """Whether a load would evict a model that runs lines and was loaded recently."""
    can_fill: bool = False
    """Whether lines may use idle capacity even while people send requests."""


@dataclass(frozen=True, slots=True)
class NamedRoom:
    key: str
    """The key of the model's room."""
    traffic: Traffic
    is_placed: bool = True
    """Whether the adapter is in a place, or none is needed."""
    words: str = ""
    """Why it has no room, if it has none."""
    rate: float = 0.0
    """Work per second with all places taken (`models.tasks.kind.work_of`). 0 if it was never measured."""
    load_seconds: float = 0.0
    """Seconds until it can start."""
    is_remote: bool = False
    """Whether the model is on another server of the database, which runs the lines and says why they wait."""


class Rooms(Protocol):
    """Provides the room of each model for lines."""

    def room(self, name: str, caller: Caller) -> NamedRoom:
        """Return the room of the model that a name refers to. Never raises: an unknown name is the line's own error."""
        ...


def look_ahead(traffic: Traffic) -> int:
    """Return how many lines may wait for a turn, in addition to those that a model runs."""
    if traffic.most is not None or not (traffic.is_quiet or (traffic.can_fill and traffic.capacity > traffic.others)):
        return 0
    return min(MOST_AHEAD, max(LEAST_AHEAD, traffic.capacity // 4))


def room_for(traffic: Traffic, level: Level) -> int:
    """Return how many lines may run or wait at the model for a batch of this level, in total."""
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
    """Return the seconds between the starts of two lines that are claimed together."""
    return 0.0 if all(traffic.is_quiet for traffic in rooms) else PACE_SECONDS


def slack(batch: BatchRecord, now: float) -> float:
    """Return the fraction of its window after the late end of its forecast, or after now without a forecast.

    Not the likely end: rates change with traffic and with the level itself, faster than forecasts.
    """
    end = now if batch.forecast is None else max(now, batch.forecast.late)
    return (batch.deadline - end) / batch.window


def level_of(slack: float, before: Level = Level.IDLE) -> Level:
    """Return the level of a batch that had the level `before`.

    It drops to a lower level only with `RELIEF` more slack than the bound for entering: a higher level soon increases
    the slack, which would otherwise be lost again.
    """
    level = next((level for level, limit in _LIMITS.items() if slack < limit), Level.IDLE)
    return before if level > before and slack < _LIMITS[before] + RELIEF else level


@dataclass(frozen=True, slots=True)
class LineGroup:
    """Lines of a batch that name the same model and may run now."""

    name: str
    room: str
    """Key of the model's room."""
    count: int
    suspects: int = 0
    """Lines whose engine died while they ran. Not included in `count`."""
    is_placed: bool = False
    """Whether the adapter is in a place, or none is needed."""
    line_work: float = 1.0
    """Expected work per line (`models.tasks.kind.work_of`)."""


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
    """How the lines of this server use a model."""

    limits: Mapping[Level, int]
    """Most lines that may be there, by the level of the batch that adds one."""
    running: int = 0
    has_suspect: bool = False
    """Whether a line whose engine died is there."""
    raised: int = 0
    """Running lines of class interactive."""
    half: int = 0
    """Half of the model's capacity."""


@dataclass(frozen=True, slots=True)
class LineClaim:
    batch: str
    name: str
    room: str
    count: int
    is_suspect: bool = False
    is_raised: bool = False
    """Whether they are of class interactive."""


@dataclass(slots=True)
class _Pick:
    work: BatchWork
    left: dict[str, int]
    order: list[LineGroup] = field(default_factory=list)


def order_of(level: Level, share: float, priority: int, deadline: float) -> tuple[float, float, float]:
    """Return the sort key within a level. The lowest goes first."""
    return (deadline, share, -priority) if level is Level.LATE else (share, -priority, deadline)


class TeamShares:
    """Work that teams have had of each model, divided by their weights.

    Works like `runtime.scheduling.fair.ShareGroup`: a team that had no lines for a while joins at the lowest share of
    those that have some, so it is owed nothing. While two teams have lines, their shares differ by at most the work of
    one update's largest lines divided by their weights.
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
        """Charge work to a team. Negative to refund work that it was charged but did not get."""
        shares = self._shares.get(room, {})
        if team in shares:
            shares[team] += work / weight

    def of(self, room: str, team: str) -> float:
        return self._shares.get(room, {}).get(team, 0.0)


def choose(
    works: Sequence[BatchWork], rooms: Mapping[str, RoomUse], shares: TeamShares | None = None
) -> list[LineClaim]:
    """Return the lines to claim now, in order. shares: before these lines."""
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
            candidate = _next_group(pick, rooms, used, suspects)
            if candidate is None:
                continue
            work, (group, is_suspect) = pick.work, candidate
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
    return _Pick(work, {group.name: group.count for group in order}, order)


def _next_group(
    pick: _Pick, rooms: Mapping[str, RoomUse], used: Mapping[str, int], suspects: set[str]
) -> tuple[LineGroup, bool] | None:
    """Return the first group with a line that fits, and whether that line is a suspect."""
    for group in pick.order:
        if used[group.room] >= rooms[group.room].limits[pick.work.level]:
            continue
        if pick.left[group.name] > 0:
            return group, False
        if group.suspects > 0 and group.room not in suspects:
            return group, True
    return None


# --- lost work -------------------------------------------------------------------------------------------------------
MOST_LOST = 0.05
"""Largest fraction of an hour's line work that may be lost. The bounds below are lower: one burst takes many turns."""
REVOKE_BELOW, FILL_BELOW = 0.04, 0.03
HOUR, MINUTE = 3600.0, 60.0


@dataclass(slots=True)
class _Minute:
    since: float
    ran: float = 0.0
    lost: float = 0.0


class LostWork:
    """Seconds that lines of one model ran in the last hour, and how much of that was lost to people's requests.

    | fraction of the work lost | lines                                                               |
    |---------------------------|---------------------------------------------------------------------|
    | below `FILL_BELOW`        | use all idle capacity, and give up their turns                      |
    | below `REVOKE_BELOW`      | leave `RESERVED` more places free while people send requests        |
    | more                      | also keep their turns to the end, so further people have to wait    |
    """

    def __init__(self) -> None:
        self._minutes: deque[_Minute] = deque()

    def add(self, seconds: float, now: float, *, is_lost: bool) -> None:
        """Record that a line ran for `seconds` until now."""
        if not self._minutes or now - self._minutes[-1].since >= MINUTE:
            self._minutes.append(_Minute(now))
        newest = self._minutes[-1]
        newest.ran += seconds
        newest.lost += seconds if is_lost else 0.0

    def part(self, now: float) -> float:
        """Return the fraction of the last hour's work that was lost, 0 if there was no work."""
        while self._minutes and now - self._minutes[0].since > HOUR:
            self._minutes.popleft()
        ran = sum(minute.ran for minute in self._minutes)
        return sum(minute.lost for minute in self._minutes) / ran if ran else 0.0
