"""A provider's access token instead of a key, through the guard."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.fakes.sign_in import AUDIENCE, RunningProvider
from tests.system.serving import free_port
from tests.unit.console.conftest import ADMIN, HTML, Console, ConsoleRig


@pytest.fixture
def closed(signing: Console) -> Any:
    def opened(given: dict[str, Any] | None = None, **changes: Any) -> AbstractAsyncContextManager[ConsoleRig]:
        return signing({"audience": AUDIENCE, **changes}, **(given or {}))

    return opened


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_a_token_has_the_rights_of_its_groups(closed: Any, provider: RunningProvider) -> None:
    async with closed() as rig:
        for header in ("Authorization", "x-api-key", "api-key"):
            value = provider.access_token()
            sent = {header: f"Bearer {value}" if header == "Authorization" else value}
            assert (await rig.client.get("/v1/status", headers=sent)).status_code == 200
        bob = bearer(provider.access_token("bob"))
        assert (await rig.client.get("/v1/models", headers=bob)).status_code == 200
        refused = await rig.client.get("/v1/status", headers=bob)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_scope")
        eve = await rig.client.get("/v1/models", headers=bearer(provider.access_token("eve")))
        assert (eve.status_code, eve.json()["error"]["code"]) == (403, "no_group")
        missing = await rig.client.get("/v1/nothing", headers=bob)
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_path")
        assert (await rig.client.get("/v1/status", headers=bearer(ADMIN[0]))).status_code == 200, "keys still work"


async def test_requests_with_a_token_count_for_its_person(closed: Any, provider: RunningProvider) -> None:
    async with closed() as rig:
        body = {"model": "nobody", "input": "a"}
        await rig.client.post("/v1/embeddings", json=body, headers=bearer(provider.access_token()))
        (record,) = rig.gateway.records.all
        caller = record.context.caller
        assert (caller.team, caller.key[0], caller.salt, caller.weight) == ("ops", "@", "salt-of-ops", 2.0)


async def test_an_invalid_token_is_refused_and_opens_nothing(closed: Any, provider: RunningProvider) -> None:
    async with closed() as rig:
        wrong = bearer(provider.access_token(aud="another"))
        refused = await rig.client.get("/v1/models", headers=wrong)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_access_token")
        assert refused.headers["www-authenticate"] == "Bearer"
        assert (await rig.client.get("/v1/nothing", headers=wrong)).status_code == 401
        assert (await rig.client.get("/health/live", headers=wrong)).status_code == 200
        page = await rig.client.get("/console/now", headers={**HTML, **wrong})
        assert page.status_code == 303, "to the sign-in page"
        sent = {**bearer(provider.access_token()), "x-api-key": ADMIN[0]}
        assert (await rig.client.get("/v1/models", headers=sent)).status_code == 401, (
            "a key and a token of different callers"
        )
        foreign = await rig.client.get("/v1/models", headers=bearer(provider.access_token(iss="https://other.example")))
        assert foreign.json()["error"]["code"] == "invalid_api_key"


async def test_tokens_without_a_team_or_an_audience_say_what_to_do(closed: Any, provider: RunningProvider) -> None:
    async with closed(groups=[{"group": "lab", "team": "lab"}]) as rig:
        refused = await rig.client.get("/v1/models", headers=bearer(provider.access_token("zoe")))
        assert "roundhouse teams create lab" in refused.json()["error"]["message"]
    async with closed(audience=None) as rig:
        refused = await rig.client.get("/v1/models", headers=bearer(provider.access_token()))
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "access_tokens_off")


async def test_an_open_server_accepts_tokens_and_requests_without_one(closed: Any, provider: RunningProvider) -> None:
    async with closed({"is_open": True}) as rig:
        assert (await rig.client.get("/v1/status", headers=bearer(provider.access_token()))).status_code == 200
        foreign = provider.access_token(iss="https://other.example")
        assert (await rig.client.get("/v1/models", headers=bearer(foreign))).status_code == 200, (
            "like a request without a key"
        )
        wrong = await rig.client.get("/v1/models", headers=bearer(provider.access_token(aud="another")))
        assert wrong.status_code == 401


async def test_keys_and_health_work_while_the_provider_is_down(closed: Any, provider: RunningProvider) -> None:
    away = f"http://localhost:{free_port()}"
    async with closed(issuer=away) as rig:
        token = bearer(provider.access_token(iss=away))
        refused = await rig.client.get("/v1/models", headers=token)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "sign_in_unavailable")
        assert "retry-after" in refused.headers
        assert (await rig.client.get("/health/live", headers=token)).status_code == 200
        assert (await rig.client.get("/v1/models", headers=bearer(ADMIN[0]))).status_code == 200
