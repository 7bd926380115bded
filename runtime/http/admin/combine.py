"""`POST /v1/adapters/combine`: one adapter from several of one base; `/merge`: one model of base and adapter."""

from typing import Annotated

from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from adapters.compose.jobs import MOST_PARTS, Method
from registry.names import AdapterName
from runtime.gateway.combine import MERGED, Combination
from runtime.http.admin.adapters import Name
from runtime.http.admin.answers import json_answer, registration_answer
from runtime.http.middleware import CurrentContext, CurrentGateway
from runtime.http.sending import Route


class PartBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str = Field(description="as in requests: name, name@version, base:name, team/name")
    weight: float = Field(ge=-10, le=10, allow_inf_nan=False, description="what its change of the base counts")


class CombineBody(BaseModel):
    """Combine adapters of one base into a new version of `name`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: AdapterName
    adapters: Annotated[list[PartBody], Field(min_length=2, max_length=MOST_PARTS)]
    method: Method = "linear"
    density: float = Field(default=0.5, gt=0, le=1, description="the share of values that ties and dare keep")
    halves: bool = Field(default=False, description="combine the halves A and B apart: faster, and rough")
    seed: int = Field(default=0, ge=0, lt=2**32, description="of what dare drops")
    alias: str | None = Field(default=None, description="an alias that is pointed at the new version")


async def combine(gateway: CurrentGateway, context: CurrentContext, body: CombineBody) -> Response:
    parts = tuple((part.name, part.weight) for part in body.adapters)
    combination = Combination(body.name, parts, body.method, body.density, body.halves, body.seed, body.alias)
    return registration_answer(await gateway.services.combiner.combine(combination, context.caller))


async def merge(gateway: CurrentGateway, context: CurrentContext, name: Name) -> Response:
    """Write base and adapter as one model into the server's data directory. It takes the base's memory once more."""
    folder = gateway.services.settings.data_dir / MERGED
    return json_answer(await gateway.services.combiner.merge(name, context.caller, folder))


ROUTES: list[Route] = [
    ("/v1/adapters/combine", combine, ["POST"]),
    ("/v1/adapters/{name:path}/merge", merge, ["POST"]),
]
