"""Answers of our own interface: structs as JSON."""

from collections.abc import Mapping
from typing import Literal

import msgspec
from fastapi.responses import Response

from runtime.gateway.adapters import Registration
from runtime.gateway.views.values import AdapterView, Count, Digest


def json_answer(
    value: msgspec.Struct | Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    data = msgspec.json.encode(value)
    return Response(data, status, dict(headers or {}), media_type="application/json")


def registration_answer(done: Registration) -> Response:
    return json_answer(
        {**msgspec.structs.asdict(done.adapter), "registered": done.tag, "new": done.is_new},
        201 if done.is_new else 200,
        {"Location": f"/v1/adapters/{done.adapter.name}", **done.headers},
    )


class LoadStartedView(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["model.load"] = "model.load"
    model: str
    status_url: str
    expected_seconds: Count


class AdapterListView(msgspec.Struct, frozen=True):
    data: list[AdapterView]
    object: Literal["list"] = "list"


class AdapterCheckView(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["adapter.check"] = "adapter.check"
    name: str
    base: str
    fit: bool = True
    digest: Digest
    rank: int
    bytes: Count
    notes: list[str]


class HealthView(msgspec.Struct, frozen=True, omit_defaults=True):
    status: str
    faults: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Adapters of recipes that could not be registered, and why."""
    degraded: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Faults: `storage_full` (uploads are refused, or soon will be), `ledger_journalled` (the ledger's disk is full, or
    the fleet's database does not answer; requests are answered and written down beside it), `ledger_unavailable`
    (requests are refused), `database_older` (the fleet's database is at an older state and is not used)."""
