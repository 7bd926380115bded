"""`GET /v1/organization/usage/...`: what was used as OpenAI's SDK asks for it. A team is a project of its."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import Response

from registry.errors import BadRequest
from runtime.http.admin.answers import json_answer
from runtime.http.audio.endpoints import TASKS
from runtime.http.middleware import CurrentGateway
from runtime.http.sending import Route

if TYPE_CHECKING:
    from tenants.ledger.organization import UsageBucket, UsageQuery

COMPLETIONS = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate", "/generate_stream", "/",
    "/api/chat", "/api/generate",
)  # fmt: skip
EMBEDDINGS = ("/v1/embeddings", "/embed", "/infinity/embeddings", "/api/embed", "/api/embeddings")
NOTHING = (
    "audio_speeches", "code_interpreter_sessions", "decisions", "file_search_calls", "images", "moderations",
    "vector_stores", "web_search_calls",
)  # fmt: skip
"""What OpenAI counts and nobody can use here: administrators' clients ask for it all the same."""
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


async def costs(request: Request, gateway: CurrentGateway) -> Response:
    """What teams are charged by list prices, by the day."""
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
    database = gateway.services.usage.database()
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


async def completions(request: Request, gateway: CurrentGateway) -> Response:
    """Tokens of chat and text, by the minute, the hour or the day."""
    return await _usage(request, gateway, "completions", COMPLETIONS)


async def embeddings(request: Request, gateway: CurrentGateway) -> Response:
    """Tokens of embeddings, by the minute, the hour or the day."""
    return await _usage(request, gateway, "embeddings", EMBEDDINGS)


async def audio(request: Request, gateway: CurrentGateway) -> Response:
    """Seconds of recordings, by the minute, the hour or the day."""
    return await _usage(request, gateway, "audio_transcriptions", tuple(TASKS))


async def nothing(request: Request, gateway: CurrentGateway) -> Response:
    """Empty buckets, whatever they are filtered and grouped by."""
    items = [(name, value) for name, value in request.query_params.multi_items() if name in _SINGLE]
    return await _page(items, gateway, lambda bucket: _bucket(bucket, ""), ("",))


def _parse_query(items: Sequence[tuple[str, str]], endpoints: tuple[str, ...], *, costs: bool = False) -> "UsageQuery":
    """OpenAI's SDK writes lists as `group_by[]=model`, people repeat `group_by=model`. Raises BadRequest."""
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
    if single.get("batch", "true") not in _BATCH:
        raise BadRequest("batch is true or false.", param="batch")
    return UsageQuery(
        begin=begin,
        end=int(time.time()) + 1 if end is None else end,
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


ROUTES: list[Route] = [
    ("/v1/organization/costs", costs, ["GET"]),
    ("/v1/organization/usage/completions", completions, ["GET"]),
    ("/v1/organization/usage/embeddings", embeddings, ["GET"]),
    ("/v1/organization/usage/audio_transcriptions", audio, ["GET"]),
    *((f"/v1/organization/usage/{kind}", nothing, ["GET"]) for kind in NOTHING),
]
