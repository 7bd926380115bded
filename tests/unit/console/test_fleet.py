"""The page Fleet: its servers, what each one holds and serves, and an administrator's actions."""

import html
import re
from typing import Any

import msgspec
import pytest

from console.pages.fleet import GAP, MAX_ROWS, REASONS, arcs
from runtime.gateway.views.fleet import FleetDeviceView
from tenants.caller import Scope
from tests.system.console.browsing import OUTSIDE, PHONE, WIDTH
from tests.unit.console.browsing import looking, reported
from tests.unit.console.conftest import HTML, Console, key, sign_in
from tests.unit.console.fleets import FLEET, GIB, MEMBERS, member


def rows(page: str) -> dict[str, str]:
    return dict(re.findall(r'<tr id="(.*?)">(.*?)</tr>', page, re.DOTALL))


def words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


async def test_a_server_without_a_fleet_has_no_such_page(console: Console) -> None:
    async with console() as displayed:
        assert (await displayed.client.get("/console/fleet", headers=HTML)).status_code == 404
        for slug in ("now", "requests"):
            page = await displayed.page(slug)
            assert 'href="fleet"' not in page
            assert "of this node" not in page


async def test_each_server_is_displayed_with_memory_lease_and_certificate(console: Console) -> None:
    async with console(fleet=FLEET) as displayed:
        page = await displayed.page("fleet")
        assert "models, as seen by this front, front-1." in page
        assert '<a href="fleet" aria-current="page">Fleet</a>' in page
        found = rows(page)
        assert words(found["server-node-1"]) == (
            "node-1 now requests node 1.0 cuda:0 30.0 GiB of 60.0 GiB cuda:1 20.0 GiB of 20.0 GiB up 2 / 2 400 ms ago "
            "8.2 s +0.002 s 80 days Drain"
        )
        assert 'aria-label="cuda:0 30.0 GiB of 60.0 GiB, cuda:1 20.0 GiB of 20.0 GiB"' in found["server-node-1"]
        assert "drained" in words(found["server-node-2"])
        assert words(found["server-node-2"]).endswith("+0.010 s 3 days Undrain")
        assert 'class="bad">3 days' in found["server-node-2"], "the certificate expires soon"
        assert words(found["server-node-3"]).startswith("node-3 node 1.0 not known silent clock 10 min behind")
        assert words(found["server-front-1"]) == "front-1 this one front 1.0 none up - - 8.2 s +0.010 s 90 days"


async def test_models_are_displayed_with_the_nodes_that_serve_them(console: Console) -> None:
    async with console(fleet=FLEET) as displayed:
        part = await displayed.page("fleet?part=served")
        assert [words(row) for row in rows(part).values()] == [
            "chat 1f2e node-1 ready 2 replicas 2 / 1 at once",
            "chat 1f2e node-2 ready 2 / 1 at once",
            "embed 1f2e node-1 loading 0 / 1 12.0 s",
        ]
        assert "<html" not in part


async def test_the_plan_of_models_and_the_reasons_of_choices_are_displayed(console: Console) -> None:
    async with console(fleet=FLEET) as displayed:
        page = await displayed.page("fleet")
        assert "Epoch 12" in page
        found = rows(page)
        assert words(found["desired-chat"]) == "chat node-1, node-2"
        assert "desired-gone" not in found
        passed = found["passed-req-0123456789abcdef-2"]
        assert words(passed).startswith("req-01234567…")
        assert words(passed).endswith("chat legal node-1 try 2 its adapter is in a place there")
        assert 'href="at/node-1/requests?id=req-0123456789abcdef"' in passed
        assert words(found["limit-l1"]) == "tokens per minute of team 'search' 100,000 97,500 2,500 41.0 s".replace(
            "'", "&#39;"
        )
    old = msgspec.structs.replace(FLEET, is_followed=False, blocks=[], passed=[])
    async with console(fleet=old) as displayed:
        page = await displayed.page("fleet")
        for text in ("follows none", "has not passed on any request", "No limit has been used"):
            assert text in page


def test_each_reason_has_a_text() -> None:
    from typing import get_args

    from fleet.choose import Reason
    from runtime.gateway.peers.backend import LEFT

    known = {word for one in get_args(Reason) for word in (get_args(one) or (one,))}
    assert {*known, LEFT} - {"none"} == REASONS.keys()


async def test_another_nodes_pages_need_the_same_rights(console: Console) -> None:
    text, entry = key("theirs", Scope.INFER)
    async with console((text, entry), fleet=FLEET) as displayed:
        for slug in ("now", "requests", "events"):
            away = await displayed.client.get(f"/console/at/node-1/{slug}", headers=HTML)
            assert (away.status_code, away.headers["location"]) == (303, "../../sign-in?next=fleet")
        await sign_in(displayed, text)
        for slug, status in (("now", 403), ("events", 403), ("usage", 404), ("fleet", 404)):
            assert (await displayed.client.get(f"/console/at/node-1/{slug}", headers=HTML)).status_code == status
        assert (await displayed.client.get("/console/at/node-1/static/console.css")).status_code == 200
        own = await displayed.client.get("/console/at/front-1/requests?id=a", headers=HTML)
        assert (own.status_code, own.headers["location"]) == (307, "../../requests?id=a")


async def test_an_unavailable_database_is_named(console: Console) -> None:
    async with console(fleet=msgspec.structs.replace(FLEET, is_joined=False)) as displayed:
        page = await displayed.page("fleet?part=servers")
        assert "database does not answer, or another server has this one's name" in html.unescape(page)


async def test_a_large_fleet_is_cut(console: Console) -> None:
    many = msgspec.structs.replace(FLEET, members=[member(f"node-{number}") for number in range(MAX_ROWS + 5)])
    async with console(fleet=many) as displayed:
        page = await displayed.page("fleet?part=servers")
        assert len(rows(page)) == MAX_ROWS
        assert "and 5 more: roundhouse fleet nodes" in page


async def test_only_an_administrator_can_drain(console: Console) -> None:
    text, entry = key("ours", Scope.MODELS)
    other, plain = key("theirs", Scope.INFER)
    async with console((text, entry), (other, plain), fleet=FLEET) as displayed:
        await sign_in(displayed, text)
        page = await displayed.page("fleet")
        assert "node-2" in page
        assert "data-call" not in page
        await sign_in(displayed, other)
        assert (await displayed.client.get("/console/fleet", headers=HTML)).status_code == 403


@pytest.mark.parametrize("slug", ["now", "requests"])
async def test_pages_of_one_server_name_it(console: Console, slug: str) -> None:
    async with console(fleet=FLEET) as displayed:
        assert "this front, front-1" in await displayed.page(slug)


def test_a_ring_has_an_arc_for_each_device_by_its_bytes() -> None:
    large, small = arcs(MEMBERS[1])
    assert (large.start, large.length, large.used) == (0.0, 75.0 - GAP, (75.0 - GAP) / 2)
    assert (small.start, small.length, small.used) == (75.0, 25.0 - GAP, 25.0 - GAP)
    (only,) = arcs(member("node", devices=[FleetDeviceView("cpu", "cpu", 2 * GIB, 3 * GIB)]))
    assert (only.start, only.length, only.used) == (0.0, 100.0, 100.0), "more than the budget fills the ring"
    assert arcs(member("node")) == []
    (none,) = arcs(member("node", devices=[FleetDeviceView("cpu", "cpu", 0, 0)]))
    assert none.length == 0.0


@pytest.mark.long
@pytest.mark.asyncio(loop_scope="module")
async def test_the_page_is_accessible_and_drains_a_node(console: Console, browser: Any) -> None:
    sent: list[str] = []
    async with (
        console(fleet=FLEET) as displayed,
        looking(browser, displayed, {"v1/fleet": reported({"object": "fleet"})}) as page,
    ):
        from axe_playwright_python.async_playwright import Axe

        for scheme, width in (("light", PHONE), ("dark", WIDTH)):
            await page.set_viewport_size({"width": width, "height": 800})
            await page.emulate_media(color_scheme=scheme)
            await page.goto("fleet")
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            violations = (await Axe().run(page)).response["violations"]
            assert [(one["id"], one["nodes"][0]["html"]) for one in violations] == []
            assert await page.evaluate(OUTSIDE) == []
        page.on("dialog", lambda dialog: dialog.accept())
        page.on("request", lambda request: sent.append(f"{request.method} {request.url.partition('/v1/')[2]}"))
        await page.locator("#server-node-1").get_by_role("button", name="Drain").click()
        await page.wait_for_selector("#said >> text=node-1 is drained.")
        assert "POST fleet/nodes/node-1/drain" in sent
