"""Usage and costs in the format of OpenAI's SDK: `GET /v1/organization/usage/...`. A team is a project."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import Response

from registry.errors import BadRequest
from runtime.http.admin.bodies import json_answer
from runtime.http.audio.endpoints import TASKS
from runtime.http.middleware import CurrentGateway
from runtime.http.route import RouteGroup
from runtime.http.schema import ANY_OBJECT, BOOLEAN, COUNT, MANAGEMENT, STRING, array, component, nullable, record
from tenants.caller import Scope

if TYPE_CHECKING:
    from tenants.ledger.organization import UsageBucket, UsageQuery

usage_route = partial(RouteGroup("Organization"), scope=Scope.ADMIN, errors=(*MANAGEMENT, 503))
PAGE = component(
    "UsagePage",
    record(
        {
            "object": {"const": "page"},
            "data": array(
                record(
                    {
                        "object": {"const": "bucket"},
                        "start_time": COUNT,
                        "end_time": COUNT,
                        "results": array(ANY_OBJECT),
                    }
                )
            ),
            "has_more": BOOLEAN,
            "next_page": nullable(STRING),
        }
    ),
)

COMPLETIONS = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate", "/generate_stream", "/",
    "/v2/chat", "/api/chat", "/api/generate",
)  # fmt: skip
EMBEDDINGS = (
    "/v1/embeddings", "/v1/embed", "/v2/embed", "/embed", "/infinity/embeddings", "/api/embed", "/api/embeddings",
)  # fmt: skip
_LISTS = ("project_ids", "api_key_ids", "models", "group_by", "line_items")
_GROUPS, _MORE_GROUPS = ("project_id", "user_id", "api_key_id", "model"), ("batch", "service_tier")
_BATCH = {"true": True, "false": False}
_SINGLE = ("start_time", "end_time", "bucket_width", "limit", "page", "batch")


def _numbers(row: Mapping[str, Any], kind: str) -> dict[str, Any]:
    counts = {"object": f"organization.usage.{kind}.result", "num_model_requests": row["requests"]}
    if kind == "audio_transcriptions":
        return {**counts, "seconds": round(row["audio_ms"] / 1e3)}
    counts["input_tokens"] = row["prompt_tokens"]
    if kind == "embeddings":
        return counts
    cached = row["cached_tokens"]
    return {
        **counts, "output_tokens": row["completion_tokens"], "input_cached_tokens": cached,
        "input_uncached_tokens": row["prompt_tokens"] - cached,
    }  # fmt: skip


def _bucket(bucket: "UsageBucket", kind: str) -> dict[str, Any]:
    groups = dict.fromkeys((*_GROUPS, *(_MORE_GROUPS if kind == "completions" else ())))
    results = [
        {**groups, **{name: row[name] for name in (*_GROUPS, *_MORE_GROUPS) if name in row}, **_numbers(row, kind)}
        for row in bucket.results
    ]
    return {"object": "bucket", "start_time": bucket.begin, "end_time": bucket.end, "results": results}


def _costs(bucket: "UsageBucket", currency: str) -> dict[str, Any]:
    results = []
    for row in bucket.results:
        audio = not row["prompt_tokens"] + row["completion_tokens"] and row["audio_ms"]
        quantity = row["audio_ms"] / 1e3 if audio else row["prompt_tokens"] + row["completion_tokens"]
        groups = {name: row.get(name) for name in ("project_id", "api_key_id", "line_item")}
        amount = {"value": row["cost_micro"] / 1e6, "currency": currency.lower()}
        unit = "duration_seconds" if audio else "tokens"
        common = {"object": "organization.costs.result", "amount": amount, "quantity": quantity, "quantity_unit": unit}
        results.append({**common, **groups})
    return {"object": "bucket", "start_time": bucket.begin, "end_time": bucket.end, "results": results}


@usage_route("GET", "/v1/organization/costs", answer=PAGE)
async def get_costs(request: Request, gateway: CurrentGateway) -> Response:
    """Show what teams are charged, in OpenAI's format.

    By list prices, per day.
    """
    currency = gateway.services.usage.currency
    items = request.query_params.multi_items()
    return await _page(items, gateway, lambda bucket: _costs(bucket, currency), (), costs=True)


async def _usage(request: Request, gateway: CurrentGateway, kind: str, endpoints: tuple[str, ...]) -> Response:
    items = request.query_params.multi_items()
    return await _page(items, gateway, lambda bucket: _bucket(bucket, kind), endpoints)


async def _page(
    items: Sequence[tuple[str, str]],
    gateway: CurrentGateway,
    render: "Callable[[UsageBucket], dict[str, Any]]",
    endpoints: tuple[str, ...],
    *,
    costs: bool = False,
) -> Response:
    database = await gateway.services.usage.written()
    from tenants.ledger.organization import page_of

    query = _parse_query(items, endpoints, costs=costs)
    page = await gateway.services.usage.threads.run(page_of, database, query)
    return json_answer(
        {
            "object": "page",
            "data": [render(bucket) for bucket in page.buckets],
            "has_more": page.next is not None,
            "next_page": None if page.next is None else str(page.next),
        }
    )


@usage_route("GET", "/v1/organization/usage/completions", answer=PAGE)
async def get_completions_usage(request: Request, gateway: CurrentGateway) -> Response:
    """Show the usage of chat and text, in OpenAI's format.

    Tokens per minute, hour or day.
    """
    return await _usage(request, gateway, "completions", COMPLETIONS)


@usage_route("GET", "/v1/organization/usage/embeddings", answer=PAGE)
async def get_embeddings_usage(request: Request, gateway: CurrentGateway) -> Response:
    """Show the usage of embeddings, in OpenAI's format.

    Tokens per minute, hour or day.
    """
    return await _usage(request, gateway, "embeddings", EMBEDDINGS)


@usage_route("GET", "/v1/organization/usage/audio_transcriptions", answer=PAGE)
async def get_transcriptions_usage(request: Request, gateway: CurrentGateway) -> Response:
    """Show the usage of speech, in OpenAI's format.

    Seconds of recordings per minute, hour or day.
    """
    return await _usage(request, gateway, "audio_transcriptions", tuple(TASKS))


def _parse_query(items: Sequence[tuple[str, str]], endpoints: tuple[str, ...], *, costs: bool = False) -> "UsageQuery":
    """Parse the query. Lists are `group_by[]=model` (OpenAI's SDK) or repeated `group_by=model`. Raises BadRequest."""
    from tenants.ledger.organization import UsageQuery

    lists: dict[str, list[str]] = {name: [] for name in _LISTS}
    single: dict[str, str] = {}
    for name, value in items:
        bare = name.removesuffix("[]")
        if bare in lists:
            lists[bare].append(value)
        elif name in _SINGLE:
            single[name] = value
        else:
            raise BadRequest(f"Parameters are {', '.join((*_SINGLE, *_LISTS))}.", param=name, code="unknown_parameter")
    number = partial(_number, single)
    begin = number("start_time")
    if begin is None:
        raise BadRequest("Give start_time, in seconds since 1970.", param="start_time")
    end = number("end_time")
    now = int(time.time()) + 1
    if end is None and begin >= now:
        raise BadRequest("start_time is in the future: give an earlier one, or end_time as well.", param="start_time")
    if single.get("batch", "true") not in _BATCH:
        raise BadRequest("batch is true or false.", param="batch")
    return UsageQuery(
        begin=begin,
        end=now if end is None else end,
        width=single.get("bucket_width", "1d"),
        limit=number("limit"),
        page=number("page"),
        group_by=tuple(dict.fromkeys(lists["group_by"])),
        endpoints=endpoints,
        projects=tuple(lists["project_ids"]),
        keys=tuple(lists["api_key_ids"]),
        models=tuple(lists["models"]),
        costs=costs,
        line_items=tuple(lists["line_items"]),
        batch=_BATCH.get(single.get("batch", "")),
    )


def _number(single: Mapping[str, str], name: str) -> int | None:
    text = single.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise BadRequest(f"{name} is a whole number, times in seconds since 1970.", param=name)
    return int(text)
