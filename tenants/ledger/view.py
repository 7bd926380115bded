"""Usage that the caller may see."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from registry.base.threads import Threads
from registry.errors import Forbidden, NotFound
from registry.storage.database import Database
from tenants.caller import Caller, Scope
from tenants.costs.compare import PriceComparison, ProviderPrice, compared, read_prices
from tenants.costs.daily import Day, day_of_team
from tenants.ledger.ledger import Ledger
from tenants.ledger.lookup import LedgerRow, judge, rows_of
from tenants.ledger.report import Grouping, UsageFilter, UsageSum, check_team, parse_groupings, span, used


class UsedView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Usage of one group. The first fields are present if they were grouped by."""

    team_id: str | msgspec.UnsetType = msgspec.UNSET
    api_key_id: str | msgspec.UnsetType = msgspec.UNSET
    model: str | msgspec.UnsetType = msgspec.UNSET
    adapter: str | msgspec.UnsetType = msgspec.UNSET
    service_class: str | msgspec.UnsetType = msgspec.UNSET
    endpoint: str | msgspec.UnsetType = msgspec.UNSET
    hour: int | msgspec.UnsetType = msgspec.UNSET
    day: int | msgspec.UnsetType = msgspec.UNSET
    requests: int
    interrupted: int
    input_tokens: int
    input_cached_tokens: int
    output_tokens: int
    audio_seconds: float
    queue_seconds: float
    total_seconds: float
    pairs: int
    device_seconds: float
    """Share of device time that is charged to these requests."""
    cold_start_seconds: float
    cost: float
    """Cost at the recipes' list prices."""
    own_cost: float
    """Cost at the machine's price."""
    lost_cost: float
    """Highest possible cost of interrupted requests. It counts against budgets."""
    accepted: int
    rejected: int
    cost_per_accepted: float | None


class UsageReportView(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "usage"
    start_time: int
    end_time: int
    currency: str
    group_by: list[str]
    data: list[UsedView]


class UsageReport:
    """prices: file with providers' prices, read on every use. None without one."""

    def __init__(self, ledger: Ledger, currency: str = "USD", prices: Path | None = None) -> None:
        self._ledger, self.currency, self._table = ledger, currency, prices
        self.threads = Threads("ledger", each=3)  # a report takes seconds

    def database(self) -> Database:
        """Return the database with the sums. Raises NotFound (no_ledger)."""
        if self._ledger.database is None:
            raise NotFound(
                "This server does not count usage now: its tables do not exist yet, or could not be created. "
                "See its log.",
                code="no_ledger",
            )
        return self._ledger.database

    async def written(self) -> Database:
        """Return the database once it has all requests that ended so far. Raises NotFound (no_ledger)."""
        database = self.database()
        await self._ledger.flush()
        return database

    async def ask(
        self, caller: Caller, team: str | None, day: str | None, begin: str | None, end: str | None, by: list[str]
    ) -> UsageReportView:
        """Return usage of the caller's team, or with scope `admin` of any team or all.

        Raises NotFound (no_ledger, team_not_found), BadRequest, Forbidden, Unavailable.
        """
        database = self.database()
        team = self.visible_team(caller, team)
        groupings = parse_groupings(by)
        first, last = span(day, begin, end, self._ledger.clock())
        await self._ledger.flush()
        if team not in (None, caller.team):
            await self.threads.run_for(caller.team, check_team, database, team)
        sums = await self.threads.run_for(caller.team, used, database, UsageFilter(first, last, groupings, team))
        data = [_view(groupings, one) for one in sums]
        return UsageReportView(
            start_time=first, end_time=last, currency=self.currency, group_by=list(groupings), data=data
        )

    def visible_team(self, caller: Caller, team: str | None) -> str | None:
        """Return the team whose usage this caller may see, None for all. Raises Forbidden."""
        if Scope.ADMIN in caller.scopes:
            return team
        if team not in (None, caller.team):
            raise Forbidden(
                "This key sees only its own team's usage: leave 'team_id' out, or send a key with the scope 'admin'.",
                code="insufficient_scope",
                param="team_id",
            )
        return caller.team

    async def day(self, caller: Caller, team: str | None, date: str | None) -> Day:
        """Return a team's day. Defaults: the caller's team, and yesterday in its time zone. Raises as `ask`."""
        database = self.database()
        team = self.visible_team(caller, team) or caller.team
        await self._ledger.flush()
        prices = await self._prices()
        return await self.threads.run_for(caller.team, day_of_team, database, team, date, self.currency, prices)

    async def compare(
        self, caller: Caller, team: str | None, day: str | None, begin: str | None, end: str | None
    ) -> list[PriceComparison]:
        """Return the cost at providers' prices. Raises as `ask`, and NotFound (no_prices) without a table of prices."""
        database = self.database()
        team = self.visible_team(caller, team)
        if not (prices := await self._prices()):
            raise NotFound("No table of providers' prices was given: see --provider-prices.", code="no_prices")
        first, last = span(day, begin, end, self._ledger.clock())
        await self._ledger.flush()
        if team not in (None, caller.team):
            await self.threads.run_for(caller.team, check_team, database, team)
        return await self.threads.run_for(caller.team, compared, database, prices, first, last, team)

    async def of_request(self, team: str | None, request: str) -> list[LedgerRow]:
        """Return a request's rows, newest first; empty without a ledger. team: None for all. Raises Unavailable."""
        if self._ledger.database is None:
            return []
        await self._ledger.flush()
        return await self.threads.run_for(team or "", rows_of, self._ledger.database, request, team)

    async def _prices(self) -> list[ProviderPrice]:
        """Read prices in a thread, because a large table takes seconds."""
        if self._table is None:
            return []
        return await asyncio.to_thread(read_prices, self._table)

    async def judge(self, caller: Caller, request: str, accepted: bool) -> str | None:
        """Store a verdict. Returns the model that answered, or None if the verdict is unchanged.

        Raises NotFound, Conflict, Unavailable.
        """
        database = await self.written()
        return await self.threads.run_for(caller.team, judge, database, caller.team, request, accepted)


def _view(groupings: Sequence[Grouping], one: UsageSum) -> UsedView:
    return UsedView(
        **{FIELDS[word]: name for word, name in zip(groupings, one.names, strict=True)},  # type: ignore[arg-type]
        requests=one.requests,
        interrupted=one.interrupted,
        input_tokens=one.prompt_tokens,
        input_cached_tokens=one.cached_tokens,
        output_tokens=one.completion_tokens,
        audio_seconds=one.audio_ms / 1e3,
        queue_seconds=one.queue_ms / 1e3,
        total_seconds=one.total_ms / 1e3,
        pairs=one.pairs,
        device_seconds=one.device_us / 1e6,
        cold_start_seconds=one.cold_ms / 1e3,
        cost=one.cost_micro / 1e6,
        own_cost=one.own_micro / 1e6,
        lost_cost=one.lost_micro / 1e6,
        accepted=one.accepted,
        rejected=one.rejected,
        cost_per_accepted=one.cost_micro / 1e6 / one.accepted if one.accepted else None,
    )


FIELDS = {
    "team": "team_id", "key": "api_key_id", "model": "model", "adapter": "adapter", "class": "service_class",
    "endpoint": "endpoint", "hour": "hour", "day": "day",
}  # fmt: skip
"""Groupings of sums, and the field for each."""
