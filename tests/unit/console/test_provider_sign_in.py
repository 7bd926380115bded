"""Signing in to the console through a real OpenID Connect provider: cookies, sessions, refusals, signing out."""

import logging
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from console.sessions import SECONDS, Sessions
from tenants.caller import Person, Scope
from tests.fakes.sign_in import SECRET, RunningProvider
from tests.unit.console.conftest import ADMIN, HTML, ORIGIN, Console, ConsoleRig, sign_in

PORT = 8000
SESSION, DEPARTURE = Sessions(PORT).cookie, Sessions(PORT).departure_cookie


async def depart(displayed: ConsoleRig, page: str = "models", **headers: str) -> httpx.Response:
    response = await displayed.client.get(f"/console/provider-sign-in?next={page}", headers={**HTML, **headers})
    assert response.status_code == 303, response.text
    return response


async def arrive(displayed: ConsoleRig, provider: RunningProvider, sub: str = "ada") -> httpx.Response:
    departed = await depart(displayed)
    back = provider.consent(departed.headers["location"], sub)
    return await displayed.client.get("/console/signed-in", params=back, headers=HTML)


async def test_a_person_signs_in_and_has_pages_and_api(signing: Any, provider: RunningProvider) -> None:
    async with signing() as displayed:
        form = await displayed.page("sign-in?next=models")
        assert 'href="provider-sign-in?next=models"' in form
        assert "your company&#39;s account" in form
        assert 'id="sign-in"' in form, "the form for keys stays"
        arrived = await arrive(displayed, provider)
        assert arrived.status_code == 200
        assert 'content="0; url=models"' in arrived.text
        cookies = arrived.headers.get_list("set-cookie")
        session = next(one for one in cookies if one.startswith(SESSION))
        assert all(word in session for word in ("HttpOnly", "SameSite=strict", f"Max-Age={SECONDS}", "Path=/"))
        assert dict(displayed.client.cookies).keys() == {SESSION}, "the redirect's cookie is removed"
        page = await displayed.page("now")
        assert "<span>ada</span>" in page
        assert "team <b>ops</b>" in page
        assert (await displayed.client.get("/v1/status")).status_code == 200
        changed = await displayed.client.post("/v1/models/chat/unload", json={}, headers=ORIGIN)
        assert changed.status_code == 200, changed.text
        forged = await displayed.client.post(
            "/v1/models/chat/unload", json={}, headers={"Origin": "https://elsewhere.example"}
        )
        assert forged.json()["error"]["code"] == "origin_not_allowed"


async def test_a_person_has_the_rights_of_the_groups(signing: Any, provider: RunningProvider) -> None:
    async with signing() as displayed:
        await arrive(displayed, provider, "bob")
        callers: Any = displayed.gateway.gateway.services.console.sessions
        [person] = callers._credentials.values()
        assert (person.team, person.scopes) == ("search", {Scope.INFER, Scope.USAGE})
        assert (await displayed.client.get("/v1/status")).status_code == 403
        assert (await displayed.client.get("/console/teams", headers=HTML)).status_code == 403
        assert (await displayed.client.get("/v1/models")).status_code == 200
        key_wins = await displayed.client.get("/v1/status", headers={"Authorization": f"Bearer {ADMIN[0]}"})
        assert key_wins.status_code == 200, "keys of programs still work"


async def test_a_person_is_one_caller_of_the_team(signing: Any, provider: RunningProvider) -> None:
    async with signing() as displayed:
        await arrive(displayed, provider)
        callers = displayed.gateway.gateway.services.keyring()
        [person] = displayed.gateway.gateway.services.console.sessions._credentials.values()
        assert isinstance(person, Person)
        caller = callers.member(person)
        assert (caller.team, caller.key, caller.salt, caller.weight) == ("ops", person.id, "salt-of-ops", 2.0)
        assert "'ada'" not in repr(caller), "names are not logged"


@pytest.mark.parametrize(
    ("sub", "status", "words"), [("eve", 403, "none of your groups"), (None, 401, "access_denied")]
)
async def test_a_refused_person_reads_why(
    signing: Any, provider: RunningProvider, sub: str | None, status: int, words: str
) -> None:
    async with signing() as displayed:
        if sub is None:
            await depart(displayed)
            query = {"error": "access_denied", "error_description": "<script>alert(1)</script>"}
            refused = await displayed.client.get("/console/signed-in", params=query, headers=HTML)
        else:
            refused = await arrive(displayed, provider, sub)
        assert (refused.status_code, words in refused.text) == (status, True)
        assert "<script>alert" not in refused.text
        assert SESSION not in displayed.client.cookies
        assert 'href="sign-in"' in refused.text


async def test_an_archived_team_refuses_people_and_ends_sessions(signing: Any, provider: RunningProvider) -> None:
    async with signing() as displayed:
        await arrive(displayed, provider)
        callers: Any = displayed.gateway.gateway.services.keyring()
        callers._archived = frozenset(("ops",))
        assert (await displayed.client.get("/v1/status")).status_code == 401
        assert (await arrive(displayed, provider)).status_code == 401
        callers._archived, callers._teams = frozenset(), {}
        missing = await arrive(displayed, provider)
        assert "roundhouse teams create ops" in missing.text


async def test_another_browsers_answer_starts_no_session(signing: Any, provider: RunningProvider) -> None:
    """Otherwise a page could sign a person in to an attacker's account."""
    async with signing() as displayed:
        departed = await depart(displayed)
        back = provider.consent(departed.headers["location"], "ada")
        displayed.client.cookies.clear()
        refused = await displayed.client.get("/console/signed-in", params=back, headers=HTML)
        assert (refused.status_code, SESSION in displayed.client.cookies) == (401, False)
        await depart(displayed)
        assert (await displayed.client.get("/console/signed-in", params=back, headers=HTML)).status_code == 401


async def test_the_redirects_cookie_is_sent_on_the_way_back_from_another_site(signing: Any) -> None:
    async with signing() as displayed:
        cookie = (await depart(displayed)).headers["set-cookie"]
        assert all(word in cookie for word in (DEPARTURE, "HttpOnly", "SameSite=lax", "Max-Age=600"))
        assert "Secure" not in cookie
        behind_tls = await depart(displayed, **{"X-Forwarded-Proto": "https"})
        assert behind_tls.headers["set-cookie"].startswith(f"__Host-{DEPARTURE}=")
        assert "Secure" in behind_tls.headers["set-cookie"]
        query = parse_qs(urlsplit(behind_tls.headers["location"]).query)
        assert query["redirect_uri"] == ["https://127.0.0.1/console/signed-in"]


async def test_the_redirect_uri_is_below_the_public_address(signing: Any) -> None:
    async with signing(public_url="https://models.example/ai") as displayed:
        query = parse_qs(urlsplit((await depart(displayed)).headers["location"]).query)
        assert query["redirect_uri"] == ["https://models.example/ai/console/signed-in"]


async def test_an_unknown_page_is_not_redirected_to(signing: Any, provider: RunningProvider) -> None:
    async with signing() as displayed:
        departed = await depart(displayed, "https://elsewhere.example")
        back = provider.consent(departed.headers["location"], "ada")
        arrived = await displayed.client.get("/console/signed-in", params=back, headers=HTML)
        assert 'content="0; url=."' in arrived.text


async def test_signing_out_ends_the_session_and_leads_to_the_providers(signing: Any, provider: RunningProvider) -> None:
    async with signing() as displayed:
        await arrive(displayed, provider)
        token = displayed.client.cookies[SESSION]
        ended = await displayed.client.post("/console/sign-out", json={}, headers=ORIGIN)
        assert ended.json()["next"].startswith(f"{provider.url}/oauth2/end_session?")
        displayed.client.cookies.set(SESSION, token)
        assert (await displayed.client.get("/v1/status")).status_code == 401
        displayed.client.cookies.clear()
        await sign_in(displayed, ADMIN[0])
        by_key = await displayed.client.post("/console/sign-out", json={}, headers=ORIGIN)
        assert by_key.json() == {"signed_in": False, "next": "sign-in"}


async def test_a_server_without_a_provider_says_so(console: Console) -> None:
    async with console(ADMIN) as displayed:
        assert "provider-sign-in" not in await displayed.page("sign-in")
        for path in ("provider-sign-in", "signed-in?code=x&state=y"):
            missing = await displayed.client.get(f"/console/{path}", headers=HTML)
            assert (missing.status_code, "--oidc" in missing.text) == (404, True)


async def test_nothing_private_is_logged(
    signing: Any, provider: RunningProvider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "roundhouse")
    async with signing() as displayed:
        await arrive(displayed, provider)
        await displayed.client.get("/v1/status")
        logged = "\n".join(str(vars(record)) for record in caplog.records if record.name.startswith("roundhouse"))
        private = [SECRET, displayed.client.cookies[SESSION], "preferred_username"]
        private += [values["code"] for path, values, _ in provider.requests if path == "/oauth2/token"]
        assert not [one for one in private if one in logged]
