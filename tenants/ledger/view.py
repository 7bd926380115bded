"""What was used, as far as the caller may see it."""

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec

from registry.errors import Forbidden, NotFound
from tenants.caller import Caller, Scope
from tenants.ledger.keeping import Ledger

if TYPE_CHECKING:
    from registry.storage.database import Database


class UsedView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sum; the first fields are there where it was asked by them."""

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


class UsageReportView(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "usage"
    start_time: int
    end_time: int
    group_by: list[str]
    data: list[UsedView]


class UsageReport:
    def __init__(self, ledger: Ledger, currency: str = "USD") -> None:
        self._ledger, self.currency = ledger, currency

    def database(self) -> "Database":
        """Where the sums are. Raises NotFound (no_ledger)."""
        if self._ledger.database is None:
            raise NotFound(
                "This server keeps no ledger yet: it begins with the first team or key (roundhouse teams create).",
                code="no_ledger",
            )
        return self._ledger.database

    async def ask(
        self, caller: Caller, team: str | None, day: str | None, begin: str | None, end: str | None, by: list[str]
    ) -> UsageReportView:
        """Sums of the caller's team; with the scope `admin` of one team or of all.

        Raises NotFound (no_ledger), BadRequest, Forbidden, Unavailable.
        """
        database = self.database()
        from tenants.ledger.dates import span
        from tenants.ledger.report import Question, parsed_by, used

        if Scope.ADMIN not in caller.scopes:
            if team not in (None, caller.team):
                raise Forbidden("This key sees what its own team used.", code="insufficient_scope", param="team_id")
            team = caller.team
        asked = parsed_by(by)
        first, last = span(day, begin, end, time.time())
        await self._ledger.written()
        found = await asyncio.to_thread(used, database, Question(first, last, asked, team))
        data = [
            UsedView(
                **{FIELDS[word]: name for word, name in zip(asked, one.names, strict=True)},  # type: ignore[arg-type]
                requests=one.requests,
                interrupted=one.interrupted,
                input_tokens=one.prompt_tokens,
                input_cached_tokens=one.cached_tokens,
                output_tokens=one.completion_tokens,
                audio_seconds=one.audio_ms / 1e3,
                queue_seconds=one.queue_ms / 1e3,
                total_seconds=one.total_ms / 1e3,
            )
            for one in found
        ]
        return UsageReportView(start_time=first, end_time=last, group_by=list(asked), data=data)


FIELDS = {
    "team": "team_id", "key": "api_key_id", "model": "model", "adapter": "adapter", "class": "service_class",
    "endpoint": "endpoint", "hour": "hour", "day": "day",
}  # fmt: skip
"""What sums are by, and the field that tells it."""
