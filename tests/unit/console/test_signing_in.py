"""Access to pages: sessions, scopes, other teams, hostile pages and hostile names."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message

from console.sessions import MAX_SESSIONS, OF_A_KEY, SECONDS, Sessions
from models.messages import Chunk, ResponseStart
from registry.state.database import State
from tenants.caller import SCOPES, Scope
from tests.processor_time import processor_time
from tests.unit.console.conftest import HTML, ORIGIN, Console, ConsoleRig, key, sign_in
from tests.unit.console.test_pages import row
from tests.unit.http.fakes import recipe

ADMIN, OPERATOR = key("ops", *SCOPES), key("ops", Scope.MODELS)
SEARCH, USER = key("search", Scope.INFER, Scope.USAGE), key("growth", Scope.INFER)
PORT = 8000
"""The default port, which the fake gateway's settings have."""
COOKIE = f"roundhouse_session_{PORT}"
MARKUP = "<script>alert(1)</script>"


async def test_without_a_key_a_page_redirects_to_signing_in(console: Console) -> None:
    async with console(ADMIN) as displayed:
        page = await displayed.client.get("/console/models", headers=HTML)
        assert (page.status_code, page.headers["location"]) == (303, "sign-in?next=models")
        part = await displayed.client.get("/console/models?part=rows", headers=HTML)
        assert (part.status_code, part.headers["hx-redirect"]) == (401, "sign-in?next=models")
        assert part.json()["error"]["code"] == "missing_api_key"
        assert (await displayed.client.get("/console/events")).status_code == 403
        assert (await displayed.client.post("/console/teams/key", json={}, headers=ORIGIN)).status_code == 401
        form = await displayed.page("sign-in?next=models")
        assert 'data-next="models"' in form
        assert 'data-next="."' in await displayed.page("sign-in?next=https://elsewhere.example"), (
            "never to another site"
        )


async def test_on_an_open_server_with_keys_pages_need_a_key(console: Console) -> None:
    async with console(ADMIN, is_open=True) as displayed:
        first = await displayed.client.get("/console/", headers=HTML)
        page = await displayed.page(first.headers["location"])
        assert 'href="sign-in"' in page
        assert "no key needed" not in page
        refused = await displayed.client.get("/console/teams", headers=HTML)
        assert (refused.status_code, refused.headers["location"]) == (303, "sign-in?next=teams")
        assert (await displayed.client.post("/console/teams/team", json={"id": "x"}, headers=ORIGIN)).status_code == 401
        assert 'data-next="teams"' in await displayed.page("sign-in?next=teams")
        wrong = await sign_in(displayed, "sk-of-somebody-else")
        assert (wrong.status_code, "begin with 'rh-'" in wrong.text) == (400, True)
        assert (await sign_in(displayed, ADMIN[0])).status_code == 200
        assert "team <b>ops</b>" in await displayed.page("teams")


async def test_a_key_becomes_a_cookie_that_no_script_reads(console: Console) -> None:
    async with console(ADMIN) as displayed:
        response = await sign_in(displayed, ADMIN[0])
        cookie = response.headers["set-cookie"]
        assert response.status_code == 200
        assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/", f"Max-Age={SECONDS}"))
        assert ADMIN[0] not in cookie
        assert "Secure" not in cookie
        assert "team <b>ops</b>" in await displayed.page("now")
        assert (await displayed.client.get("/v1/status")).status_code == 200, "the session is accepted by the API"
        ended = await displayed.client.post("/console/sign-out", json={}, headers=ORIGIN)
        assert ended.status_code == 200
        displayed.client.cookies.set(COOKIE, cookie.split("=", 1)[1].split(";")[0])
        assert (await displayed.client.get("/console/now", headers=HTML)).status_code == 303, (
            "the session itself has ended"
        )


async def test_servers_on_two_ports_of_a_host_have_separate_sessions(console: Console) -> None:
    """Browsers send a host's cookies to all ports. With one name, each sign-in would end the other server's."""
    async with console(ADMIN, port=8001) as displayed:
        other = await Sessions(PORT).begin("key00001")
        displayed.client.cookies.set(COOKIE, other)
        assert (await displayed.client.get("/v1/status")).status_code == 401
        await sign_in(displayed, ADMIN[0])
        assert dict(displayed.client.cookies).keys() == {COOKIE, "roundhouse_session_8001"}
        assert (await displayed.client.get("/v1/status")).status_code == 200
        await displayed.client.post("/console/sign-out", json={}, headers=ORIGIN)
        assert dict(displayed.client.cookies) == {COOKIE: other}


@pytest.mark.parametrize("proxies", ["https", "HTTPS", "https, http", "https,http"])
async def test_behind_tls_the_cookie_is_secure(console: Console, proxies: str) -> None:
    async with console(ADMIN) as displayed:
        headers = {**ORIGIN, "X-Forwarded-Proto": proxies}
        response = await displayed.client.post("/console/sign-in", json={"key": ADMIN[0]}, headers=headers)
        name, _, rest = response.headers["set-cookie"].partition("=")
        assert name == f"__Host-{COOKIE}"
        assert all(word in rest for word in ("Secure", "Path=/", "HttpOnly", "SameSite=strict"))
        assert "Domain" not in rest, "browsers would refuse it"


async def test_behind_tls_a_cookie_that_a_subdomain_could_set_is_none(console: Console) -> None:
    """It would sign a person in to an attacker's team, who could then read what the person does there."""
    async with console(ADMIN) as displayed:
        tls = {**ORIGIN, "X-Forwarded-Proto": "https"}
        response = await displayed.client.post("/console/sign-in", json={"key": ADMIN[0]}, headers=tls)
        token = response.headers["set-cookie"].partition("=")[2].partition(";")[0]
        displayed.client.cookies.clear()

        async def status(name: str, headers: dict[str, str]) -> int:
            sent = {**headers, "Cookie": f"{name}={token}"}
            return (await displayed.client.get("/v1/status", headers=sent)).status_code

        assert await status(f"__Host-{COOKIE}", tls) == 200
        assert await status(COOKIE, tls) == 401
        assert await status(f"__Host-{COOKIE}", ORIGIN) == 401
        assert await status(COOKIE, ORIGIN) == 200
        sent = {**tls, "Cookie": f"__Host-{COOKIE}={token}"}
        ended = await displayed.client.post("/console/sign-out", json={}, headers=sent)
        assert ended.headers["set-cookie"].startswith(f'__Host-{COOKIE}=""; ')
        assert "Secure" in ended.headers["set-cookie"]
        assert await status(f"__Host-{COOKIE}", tls) == 401


@pytest.mark.parametrize("body", [{}, {"key": 1}, {"key": "short"}, {"key": "x" * 600}, [], "text"])
async def test_a_malformed_key_is_refused(console: Console, body: object) -> None:
    async with console(ADMIN) as displayed:
        response = await displayed.client.post("/console/sign-in", json=body, headers=ORIGIN)
        assert response.status_code == 400
        assert "set-cookie" not in response.headers


async def test_a_wrong_key_is_a_401_and_a_revoked_one_ends_its_session(console: Console) -> None:
    async with console(ADMIN) as displayed:
        assert (await sign_in(displayed, ADMIN[0][:-6] + "000000")).status_code == 401
        await sign_in(displayed, ADMIN[0])
        assert (await displayed.client.get("/v1/status")).status_code == 200
        displayed.gateway.gateway.services.keyring()._keys = {}  # type: ignore[attr-defined]
        assert (await displayed.client.get("/v1/status")).status_code == 401


@pytest.mark.parametrize("end", ["revoked", "signed out", "without the scope"])
async def test_a_stream_ends_with_its_viewers_session_or_key(console: Console, end: str) -> None:
    async with console(OPERATOR) as displayed:
        await sign_in(displayed, OPERATOR[0])
        received: asyncio.Queue[bytes] = asyncio.Queue()
        over = watching(displayed, received)
        while b"event: now" not in await received.get():
            pass
        assert not over.done()
        callers = cast(Any, displayed.gateway.gateway.services.keyring())
        if end == "revoked":
            callers._keys = {}
        elif end == "signed out":
            await displayed.client.post("/console/sign-out", json={}, headers=ORIGIN)
        else:
            [(id_, known)] = callers._keys.items()
            callers._keys = {id_: replace(known, caller=replace(known.caller, scopes=frozenset((Scope.INFER,))))}
        while not received.empty():
            received.get_nowait()
        await over
        assert [received.get_nowait() for _ in range(received.qsize())] == [b""], "it ends without another event"


def watching(displayed: ConsoleRig, received: asyncio.Queue[bytes]) -> asyncio.Task[None]:
    """Read the stream of events while it runs, which httpx cannot do here."""
    request = displayed.client.build_request("GET", "/console/events")
    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "query_string": b"", "root_path": "",
        "path": request.url.path, "raw_path": request.url.raw_path,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1), "asgi": {"version": "3.0", "spec_version": "2.4"},
    }  # fmt: skip

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            received.put_nowait(message["body"])

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("never")

    return asyncio.ensure_future(cast(Any, displayed.app(scope, receive, send)))


async def test_a_forged_origin_changes_nothing(console: Console) -> None:
    async with console(ADMIN) as displayed:
        await sign_in(displayed, ADMIN[0])
        for origin in ("http://elsewhere.example", "http://127.0.0.1:9000", "null"):
            for path in ("/console/teams/team", "/console/sign-out", "/v1/models/chat/unload"):
                response = await displayed.client.post(path, json={"id": "x"}, headers={"Origin": origin})
                assert (response.status_code, response.json()["error"]["code"]) == (403, "origin_not_allowed"), path
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        sent = await displayed.client.post("/console/teams/team", content=b"id=x", headers=form)
        assert sent.status_code == 415, "a plain form of another page is refused"


async def test_no_other_page_uses_a_session_not_even_an_allowed_one(console: Console) -> None:
    """Browsers add the cookie to requests from other ports and subdomains, which are of the same site."""
    other = {"Origin": "https://chat.example"}
    async with console(ADMIN, cors_origins=("https://chat.example",)) as displayed:
        await sign_in(displayed, ADMIN[0])
        for headers in (other, {**other, "Sec-Fetch-Site": "same-site"}):
            for path in ("/v1/models/chat/unload", "/console/teams/team"):
                refused = await displayed.client.post(path, headers=headers)
                assert (refused.status_code, refused.json()["error"]["code"]) == (401, "missing_api_key"), path
        for headers in (ORIGIN, {}, {**other, "Sec-Fetch-Site": "same-origin"}):
            done = await displayed.client.post("/console/teams/team", json={}, headers=headers)
            assert done.json()["error"]["param"] == "id", "from its own page, also behind a proxy with another Host"
        keyed = {**other, "Authorization": f"Bearer {ADMIN[0]}"}
        allowed = await displayed.client.post("/console/teams/team", json={}, headers=keyed)
        assert allowed.json()["error"]["param"] == "id"


async def test_values_that_a_key_may_not_see_are_dashes(console: Console) -> None:
    async with console(OPERATOR, SEARCH) as displayed:
        for who, reported in ((SEARCH, False), (OPERATOR, True)):
            await sign_in(displayed, who[0])
            page = await displayed.page("models")
            assert "None" not in page
            assert ("0 / 0" in page) is reported


async def test_scopes_decide_which_pages_and_actions_exist(console: Console) -> None:
    async with console(ADMIN, OPERATOR, SEARCH) as displayed:
        await sign_in(displayed, SEARCH[0])
        assert (await displayed.client.get("/console/", headers=HTML)).headers["location"] == "models"
        page = await displayed.page("models")
        assert ">Playground</a>" in page
        assert ">Teams</a>" not in page
        assert "data-call" not in page, "forbidden actions are not offered"
        for slug in ("now", "teams", "adapters"):
            refused = await displayed.client.get(f"/console/{slug}", headers=HTML)
            assert refused.status_code == 403
            assert "needs the scope" in refused.text
        assert (await displayed.client.get("/console/events")).status_code == 403
        action = await displayed.client.post("/console/teams/team", json={"id": "x"}, headers=ORIGIN)
        assert action.status_code == 403


async def test_the_playground_offers_the_routers_that_the_key_may_use(console: Console, tmp_path: Path) -> None:
    text, known = key("growth", Scope.INFER)
    other_place = (text, replace(known, caller=replace(known.caller, models=("other",))))
    router, recipes = {"id": "auto", "targets": [{"name": "chat"}]}, [recipe("chat", "chat"), recipe("other", "chat")]
    with State(tmp_path / "state") as state:
        async with console(ADMIN, SEARCH, other_place, state=state, recipes=recipes) as displayed:
            made = await displayed.client.post(
                "/v1/routers", json=router, headers={"Authorization": f"Bearer {ADMIN[0]}"}
            )
            assert made.status_code == 201, made.text
            for text, sees in ((SEARCH[0], True), (other_place[0], False)):
                await sign_in(displayed, text)
                assert ("<option>auto</option>" in await displayed.page("playground")) is sees
                names = [one["id"] for one in (await displayed.client.get("/v1/models")).json()["data"]]
                assert ("auto" in names) is sees, "as in the API"


async def test_a_team_sees_its_own_requests(console: Console) -> None:
    async with console(ADMIN, SEARCH, USER) as displayed:
        for team in ("search", "growth"):
            displayed.gateway.gateway.services.console.history.take(row(id=f"req-of-{team}", team=team))
        await sign_in(displayed, SEARCH[0])
        page = await displayed.page("requests")
        assert "req-of-search" in page
        assert "growth" not in page
        await sign_in(displayed, ADMIN[0])
        assert "req-of-growth" in await displayed.page("requests")


async def test_a_key_that_may_not_see_other_teams_gets_no_shares(console: Console) -> None:
    async with console(ADMIN, OPERATOR) as displayed:
        displayed.gateway.gateway.services.console.history.take(row(team="secret-team"))
        await sign_in(displayed, OPERATOR[0])
        assert "secret-team" not in await displayed.page("now")
        await sign_in(displayed, ADMIN[0])
        assert "secret-team" in await displayed.page("now")


async def test_markup_in_names_stays_text(console: Console) -> None:
    async with console() as displayed:
        console_ = displayed.gateway.gateway.services.console
        console_.history.take(row(id=MARKUP, adapter=MARKUP, team=MARKUP, code=MARKUP))
        console_.decisions.record("swap", "chat", MARKUP, "takes the place of", MARKUP)
        for slug in ("now", "requests", f"requests?words={MARKUP}", f"sign-in?next={MARKUP}"):
            assert "<script>alert" not in await displayed.page(slug), slug
        missing = await displayed.client.get(f"/console/models?id={MARKUP}", headers=HTML)
        assert "<script>alert" not in missing.text


async def test_a_models_answer_with_markup_is_json_and_never_a_page(console: Console) -> None:
    async with console() as displayed:
        displayed.gateway.links["chat"].script = lambda _: [
            ResponseStart(200, "application/json"), Chunk(f'{{"x": "{MARKUP}"}}'.encode()),
        ]  # fmt: skip
        body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
        answer = await displayed.client.post("/v1/chat/completions", json=body)
        assert MARKUP in answer.text
        for slug in ("now", "requests", "playground"):
            assert MARKUP not in await displayed.page(slug)


@pytest.mark.parametrize("filler", ["\\" * 60_000, "\\134" * 15_000, " " * 60_000, ";" * 60_000, "=" * 60_000])
async def test_foreign_cookies_are_never_parsed(console: Console, filler: str) -> None:
    """Python's own parser, which FastAPI calls each time, took 10 s for the first of them, and no key is needed."""
    seen: list[Mapping[str, str]] = []
    async with console() as displayed:

        async def look(request: Request) -> Response:
            seen.append(dict(request.cookies))
            return Response()

        displayed.app.router.routes.insert(0, Route("/v1/models", look))
        with processor_time() as seconds:
            for cookie in (f'{COOKIE}="{filler}"', f"{COOKIE}={filler}", f'a="{filler}"; {COOKIE}=x'):
                answer = await displayed.client.get("/v1/models", headers={"Cookie": cookie})
                assert answer.status_code == 200
            assert seen == [{}, {}, {COOKIE: "x"}]
            assert seconds() < 5


@pytest.mark.parametrize(
    ("cookies", "token"),
    [
        ("", None), ("a=b", None), (f"{COOKIE}", None), (f"{COOKIE}=", None), (f"x{COOKIE}=t", None),
        (f"{COOKIE}=t", "t"), (f"a=b; {COOKIE}=t; c=d", "t"), (f"a=b;{COOKIE}=t=", None), (f" {COOKIE} = t ", "t"),
    ],
)  # fmt: skip
def test_a_token_is_found_among_other_cookies(cookies: str, token: str | None) -> None:
    assert Sessions(PORT).token(cookies) == token


async def test_sessions_end_by_time_and_by_number() -> None:
    now = 0.0
    sessions = Sessions(PORT, lambda: now)
    first = await sessions.begin("key00001")
    assert sessions.credential(f"a=b; {COOKIE}={first}") == "key00001"
    assert sessions.credential(f"{COOKIE}=other") is None
    assert sessions.credential(f"{COOKIE}=") is None
    now = SECONDS + 1.0
    assert sessions.credential(f"{COOKIE}={first}") is None
    tokens = [await sessions.begin(f"rh-{number}") for number in range(MAX_SESSIONS + 1)]
    assert sessions.credential(f"{COOKIE}={tokens[0]}") is None
    assert sessions.credential(f"{COOKIE}={tokens[-1]}") == f"rh-{MAX_SESSIONS}"


async def test_a_key_that_signs_in_repeatedly_ends_only_its_own_sessions() -> None:
    sessions = Sessions(PORT)
    admin, first = await sessions.begin("rh-admin"), await sessions.begin("rh-small")
    again = [await sessions.begin("rh-small") for _ in range(OF_A_KEY - 1)]
    assert sessions.credential(f"{COOKIE}={first}") == "rh-small"
    again += [await sessions.begin("rh-small") for _ in range(MAX_SESSIONS)]
    assert sessions.credential(f"{COOKIE}={admin}") == "rh-admin"
    assert sessions.credential(f"{COOKIE}={first}") is None
    assert [token for token in again if sessions.credential(f"{COOKIE}={token}")] == again[-OF_A_KEY:]
