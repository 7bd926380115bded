"""Teams, keys, limits and feedback: unknown fields, booleans in place of numbers, infinite amounts."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry.errors import BadRequest
from tenants.key_settings import KeySettings
from tenants.ledger.ledger import Ledger
from tenants.limits.limiter import Limiter
from tenants.limits.loader import LimitLoader
from tenants.limits.records import Kind, amount_of
from tenants.watch import KeyWatch
from tests.unit.http.fakes import FakeGateway, application

PROJECTS, ADMIN = "/v1/organization/projects", "/v1/organization/admin_api_keys"
MONTH = {"threshold_amount": 100, "currency": "USD", "interval": "month"}
LIMIT = {"owner": "team", "subject": "fuzz", "kind": "requests_per_minute", "amount": "10"}
BEYOND: tuple[Any, ...] = (1e308, 2**63, -1, [], {})
NUMBERS: tuple[Any, ...] = (True, "10", "1e9", None, *BEYOND)
"""Values that are no whole number within the bounds."""


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """An open server with the team `fuzz`."""
    limiter, ledger = Limiter(), Ledger(tmp_path / "data")
    watch = KeyWatch(KeySettings(tmp_path / "data"), ledger.enable, LimitLoader(limiter, ledger).read)
    gateway = FakeGateway(tmp_path, ledger=ledger, limiter=limiter, watch=watch)
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as found:
        assert (await found.post(PROJECTS, json={"name": "fuzz"})).status_code == 200
        yield found
    await watch.close()
    await ledger.close()


@pytest.mark.parametrize(
    ("path", "body", "field", "wrong"),
    [
        (f"{PROJECTS}/fuzz/spend_limit", MONTH, "threshold_amount", (1.5, *NUMBERS)),
        (f"{PROJECTS}/fuzz/service_accounts", {"name": "a"}, "create_service_account_only", (1, 0, "yes", [])),
        ("/console/teams/weight", {"id": "fuzz"}, "weight", NUMBERS),
        ("/console/teams/texts", {"id": "fuzz"}, "store", (1, 0, "yes", None, [])),
        ("/console/teams/simulate", LIMIT, "days", (1.5, *NUMBERS)),
        ("/console/teams/limit", LIMIT, "amount", (1, True, None, "-1", "1e99", "1e999999999", *BEYOND)),
        ("/v1/feedback", {"request_id": "r"}, "accepted", (1, 0, "yes", "true", None, [])),
        ("/v1/models", {"source": "package:models.starter", "dry_run": True}, "requests", (1.5, *NUMBERS)),
    ],
)
async def test_a_value_that_is_no_number_is_refused(
    client: httpx.AsyncClient, path: str, body: Any, field: str, wrong: tuple[Any, ...]
) -> None:
    """`true` used to be 1: a spend limit of one cent, a weight of 1, or one day."""
    for value in wrong:
        answer = await client.post(path, json={**body, field: value})
        assert answer.status_code == 400, (value, answer.text)


@pytest.mark.parametrize("name", ["a\\ud800b", "x" * 129])
async def test_a_name_that_is_no_text_is_refused(client: httpx.AsyncClient, name: str) -> None:
    """Half a surrogate pair used to be stored, and made this and all later lists of projects a 500."""
    path, kind = f"{PROJECTS}/fuzz/service_accounts", {"Content-Type": "application/json"}
    assert (await client.post(path, content=f'{{"name": "{name}"}}', headers=kind)).status_code == 400
    assert (await client.get(path)).json()["data"] == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PROJECTS, {"name": "x", "id": "default"}),
        (PROJECTS, {"name": "x", "archived_at": 1}),
        (f"{PROJECTS}/fuzz", {"name": "x", "weight": 1000}),
        (f"{PROJECTS}/fuzz/service_accounts", {"name": "x", "scopes": ["admin"]}),
        (f"{PROJECTS}/fuzz/service_accounts", {"name": "x", "team": "default"}),
        (ADMIN, {"name": "x", "scopes": ["infer"]}),
        (ADMIN, {"name": "x", "hash": "00"}),
        (f"{PROJECTS}/fuzz/spend_limit", {**MONTH, "mode": "warn"}),
        ("/v1/feedback", {"request_id": "r", "accepted": True, "team": "other"}),
    ],
)
async def test_an_unknown_field_sets_nothing(client: httpx.AsyncClient, path: str, body: Any) -> None:
    answer = await client.post(path, json=body)
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize("path", [PROJECTS, "/v1/feedback", "/v1/models", "/v1/adapters/combine"])
async def test_invalid_json_gets_the_usual_error(client: httpx.AsyncClient, path: str) -> None:
    """It used to be `1: JSON decode error.` about a field `1`, or the framework's error with the code http_error."""
    wrong = {b"{": "invalid_json", b"\xff": "invalid_json", b'{"name": 1%s}' % (b"0" * 5_000): "invalid_json"}
    for body, code in {**wrong, b"[" * 100_000: "json_too_deep"}.items():
        answer = await client.post(path, content=body, headers={"Content-Type": "application/json"})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, code, None)
        assert "JSON" in error["message"]


@pytest.mark.parametrize("name", ["x" * 4_000, "..", "%00", "fuzz%2f..%2fdefault", "\u202e", "fuzz' OR 1=1 --"])
async def test_an_unknown_name_is_a_short_404(client: httpx.AsyncClient, name: str) -> None:
    for path in (f"{PROJECTS}/{name}/api_keys", f"{ADMIN}/{name}", f"/v1/requests/{name}", f"/v1/routers/{name}"):
        answer = await client.get(path)
        assert answer.status_code in (400, 404), (path[:80], answer.status_code)
        assert len(answer.content) <= 4096


@pytest.mark.parametrize("text", ["1e999999999", "-1e999999999", "NaN", "sNaN", "Infinity", "9" * 4000])
@pytest.mark.parametrize("kind", list(Kind))
def test_an_infinite_amount_is_refused(kind: Kind, text: str) -> None:
    """1e999999999 used to be a 500."""
    with pytest.raises(BadRequest):
        amount_of(kind, text)
