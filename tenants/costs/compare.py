"""Costs of the same traffic at providers' prices, from a table with dates.

    - {provider: openai, model: gpt-x-mini, for: ["starter-chat"], from: 2026-01-01, input: 0.15, output: 0.60}

`for` lists patterns of our model ids. Prices are per million tokens, hour of audio and thousand pairs. If several rows
price the same provider's model, the last one in effect on a day applies.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from registry.errors import BadRequest
from registry.storage.database import Database
from tenants.costs.prices import MILLION, PriceList
from tenants.ledger.report import Grouping, UsageFilter, UsageSum, day_of, used

LARGEST = 1 << 20
Money = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class ProviderPrice(BaseModel):
    """A provider's price of one model from a date on, in the server's currency."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    provider: str = Field(min_length=1, max_length=100)
    model: str = Field(min_length=1, max_length=100)
    models: tuple[str, ...] = Field(alias="for", min_length=1)
    begin: date = Field(alias="from")
    input: Money = 0.0
    cached_input: Money | None = None
    output: Money = 0.0
    audio_hour: Money = 0.0
    pairs: Money = 0.0

    @property
    def prices(self) -> PriceList:
        cached = self.input if self.cached_input is None else self.cached_input
        amounts = (self.input, cached, self.output, self.audio_hour, self.pairs)
        return PriceList(*(round(price * MILLION) for price in amounts))


@dataclass(frozen=True, slots=True)
class PriceComparison:
    """A provider's price against ours, in millionths. Savings are in per cent, None if theirs is zero."""

    provider: str
    model: str
    theirs: int
    ours: int
    own: int

    @property
    def saving(self) -> float | None:
        return None if not self.theirs else 100 * (1 - self.ours / self.theirs)

    @property
    def own_saving(self) -> float | None:
        return None if not self.theirs else 100 * (1 - self.own / self.theirs)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields with money in whole units of the currency."""
        money = {name: getattr(self, name) / MILLION for name in ("theirs", "ours", "own")}
        return {**asdict(self), **money, "saving_percent": self.saving, "own_saving_percent": self.own_saving}


def read_prices(path: Path) -> list[ProviderPrice]:
    """Read and check the table of prices. Raises BadRequest that names its faults."""
    try:
        if path.stat().st_size > LARGEST:
            raise BadRequest(f"{path} is larger than a table of prices.")
        return TypeAdapter(list[ProviderPrice]).validate_python(yaml.safe_load(path.read_text(encoding="utf-8")) or [])
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:10])
        raise BadRequest(f"In the table of prices {path}: {faults}") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # ValueError: such as for 2026-02-30
        cause = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise BadRequest(f"The table of prices {path} cannot be read: {cause}.") from None


def compared(
    database: Database, rows: Sequence[ProviderPrice], begin: int, end: int, team: str | None
) -> list[PriceComparison]:
    """Compare day by day, at the prices in effect on each day. Raises BadRequest, Unavailable."""
    days = used(database, UsageFilter(begin, end, (Grouping.DAY, Grouping.MODEL), team))
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for one in days:
        day, model = one.names
        for key, row in _of_day(rows, str(model), int(day)).items():
            for index, amount in enumerate((_theirs(row, one), one.cost_micro, one.own_micro)):
                sums[key][index] += amount
    return [PriceComparison(*key, *amounts) for key, amounts in sorted(sums.items())]


def _of_day(rows: Sequence[ProviderPrice], model: str, day: int) -> dict[tuple[str, str], ProviderPrice]:
    prices: dict[tuple[str, str], ProviderPrice] = {}
    for row in sorted(rows, key=lambda row: row.begin):
        if day_of(row.begin.isoformat())[0] <= day and any(fnmatchcase(model, one) for one in row.models):
            prices[row.provider, row.model] = row
    return prices


def _theirs(row: ProviderPrice, one: UsageSum) -> int:
    return row.prices.cost(
        prompt=one.prompt_tokens,
        cached=one.cached_tokens,
        output=one.completion_tokens,
        audio_ms=one.audio_ms,
        pairs=one.pairs,
    )
