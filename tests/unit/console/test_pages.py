"""Each page as a browser gets it: its contents, what it may run, and its size."""

import asyncio
import gzip
import hashlib
import json
import re
import threading
import time
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest

from console.history import RequestRoute, RequestRow
from console.pages.adapters import MOST_VERSIONS
from console.rendering import VENDORED, ago, files, money, seconds, templates
from console.web import pages
from registry.errors import EngineFailed
from registry.recipes.definition import Tier
from registry.state.database import State
from runtime.http.pages import ConsoleHost
from runtime.residency.states import ModelState
from tenants.caller import Scope
from tenants.key_settings import KeySettings
from tenants.keys.records import KeyRequest
from tenants.keys.secret import load_pepper
from tenants.keys.table import KeyTable
from tenants.storage.opening import open_tables
from tenants.watch import KeyWatch
from tests.fakes.clocks import Clock
from tests.unit.console.conftest import HTML, ORIGIN, Console, key, sign_in
from tests.unit.console.fleets import FLEET

SLUGS = sorted(pages())
STATIC = Path(__file__).parents[3] / "console" / "static"
MARKUP = "<script>alert(1)</script>"
WIRE = 120 * 1024
"""Most bytes of a first paint."""


class Reader(HTMLParser):
    """Collects what a page loads, and what a browser would run in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.inline: list[str] = []
        self.links: list[str] = []
        self.unnamed: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.inline += [f"{tag} {name}" for name, _ in attrs if name.startswith("on") or name == "style"]
        if tag == "style" or (tag == "script" and "src" not in found and found.get("type") != "application/json"):
            self.inline.append(tag)
        if tag == "script" and "src" in found:
            self.loads.append(str(found["src"]))
        if tag == "link":
            self.loads.append(str(found["href"]))
        if tag == "a":
            self.links.append(str(found.get("href")))
        if tag == "svg" and not {"aria-label", "aria-hidden"} & set(found):
            self.unnamed.append(tag)


def row(**given: object) -> RequestRow:
    usual = {
        "id": "req-1", "at": 1e9, "team": "default", "endpoint": "/v1/chat/completions", "asked": "chat",
        "model": "chat",
        "adapter": "", "digest": "", "service_class": "interactive", "source": "api", "end": "done", "status": 200,
        "code": None, "causes": {"queue": 0.01, "load": 0.0, "swap": 0.002, "prefill": 0.1, "decode": 0.3},
        "total": 0.412,
        "first": 0.112, "prompt_tokens": 3, "completion_tokens": 5, "audio_seconds": 0.0,
    }  # fmt: skip
    return RequestRow(**{**usual, **given})  # type: ignore[arg-type]


def test_each_folder_is_a_page_in_the_menus_order() -> None:
    assert list(pages())[:4] == ["now", "models", "adapters", "playground"]
    assert {"requests", "usage", "teams"} <= set(pages())


@pytest.mark.parametrize("slug", SLUGS)
async def test_a_page_has_no_inline_scripts_and_loads_nothing_from_other_servers(console: Console, slug: str) -> None:
    async with console(fleet=FLEET) as displayed:
        response = await displayed.client.get(f"/console/{slug}", headers=HTML)
        policy, found = response.headers["content-security-policy"], Reader(response.text)
        assert response.status_code == 200
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert response.headers["x-frame-options"] == "DENY"
        assert found.inline == []
        assert found.unnamed == []
        assert all(not re.match(r"(https?:)?//|/", path) for path in (*found.loads, *found.links)), "all relative"
        assert 'lang="en"' in response.text
        assert 'name="viewport"' in response.text
        for path in found.loads:
            assert (await displayed.client.get(f"/console/{path}")).status_code == 200, path


@pytest.mark.parametrize("slug", SLUGS)
async def test_a_first_paint_is_small(console: Console, slug: str) -> None:
    async with console(fleet=FLEET) as displayed:
        answer = await displayed.client.get(f"/console/{slug}", headers=HTML)
        page, size = answer.text, int(answer.headers["content-length"])
        assert answer.headers["content-encoding"] == "gzip"
        imported = {"static/ring.js", "static/tabs.js"}
        for path in {*Reader(page).loads, *imported}:
            size += int((await displayed.client.get(f"/console/{path}")).headers["content-length"])
        assert size <= WIRE, f"{slug} brings {size} bytes"


@pytest.mark.parametrize("slug", SLUGS)
async def test_the_command_line_prints_the_same(console: Console, slug: str) -> None:
    async with console(fleet=FLEET) as displayed:
        assert "roundhouse " in await displayed.page(slug) or slug == "playground"


async def test_now_is_complete_before_any_script_runs(console: Console) -> None:
    async with console() as displayed:
        page = await displayed.page("now")
        first = re.search(r'<script type="application/json" id="first-look">(.*?)</script>', page, re.DOTALL)
        assert first is not None
        now = json.loads(first[1])
        assert [model["id"] for model in now["models"]] == ["chat", "embed", "rerank", "speech"]
        assert now["phase"] == "ready"


async def test_a_routers_targets_show_their_prices_and_weights(console: Console, tmp_path: Path) -> None:
    targets = [{"name": "chat", "weight": 95}, {"name": "other", "price": 2, "weight": 0.5}, {"name": "third"}]
    with State(tmp_path / "state") as state:
        async with console(state=state) as displayed:
            made = await displayed.client.post("/v1/routers", json={"id": "auto", "targets": targets})
            assert made.status_code == 201, made.text
            page = await displayed.page("routers")
            expected = ("chat, weight 95", "other, price 2.0, weight 0.5", "third")
            assert [f"<li>{text}</li>" in page for text in expected] == [True] * 3


async def test_requests_are_waterfalls_and_can_be_searched(console: Console) -> None:
    async with console() as displayed:
        history = displayed.gateway.gateway.services.console.history
        history.take(row(id="req-slow", adapter="legal", code="queue_full", end="refused", status=429))
        history.take(row(id="req-quick"))
        page = await displayed.page("requests")
        assert page.index("req-quick") < page.index("req-slow"), "newest first"
        assert page.count('class="fall"') == 2
        assert "swap 2.0 ms" in page
        part = await displayed.page("requests?part=rows&words=legal 429")
        assert "req-slow" in part
        assert "req-quick" not in part
        assert "<html" not in part


async def test_a_request_has_a_page_with_everything_known_about_it(console: Console) -> None:
    async with console() as displayed:
        history = displayed.gateway.gateway.services.console.history
        more = {
            "warning": "Left out: 'foo'.",
            "limits": ["60 requests a minute"],
            "failed_attempts": ["large queue_full"],
        }
        history.take(row(id="req-1/odd", adapter="legal", digest="sha256:abc", cached_tokens=2, is_stream=True, **more))
        page = await displayed.page("requests?id=req-1/odd")
        history.take(row(id="req-2", replica=2, replica_reason="adapter"))
        assert "replica 2 (adapter)" in await displayed.page("requests?id=req-2")
        assert "replica 2: adapter" in await displayed.page("requests")
        expected = ("Left out: &#39;foo&#39;.", "60 requests a minute", "large queue_full", "sha256:abc", "(2 cached)")
        for words in (*expected, "13.3 per second", "prefill", "24 %", "Not stored", ".000 UTC"):
            assert words in page, words
        assert 'href="requests?id=req-1/odd"' in await displayed.page("requests")
        assert "You have no request with this id" in await displayed.page(f"requests?id={MARKUP}")


async def test_a_team_cannot_open_another_teams_request_by_its_id(console: Console) -> None:
    text, entry = key("theirs", Scope.INFER)
    async with console((text, entry)) as displayed:
        displayed.gateway.gateway.services.console.history.take(row(id="req-1", team="ours", adapter="legal"))
        await sign_in(displayed, text)
        page = await displayed.page("requests?id=req-1")
        assert "You have no request with this id" in page
        assert "legal" not in page


async def test_older_requests_follow_although_new_ones_arrive(console: Console) -> None:
    async with console() as displayed:
        history = displayed.gateway.gateway.services.console.history
        for number in range(100):
            history.take(row(id=f"req-{number:03}'", team="ours" if number % 2 else "default", at=float(number)))
        seen, part = [], await displayed.page("requests")
        while more := re.search(r"hx-vals='({\"after\".*?})'", part):
            seen += re.findall(r'data-id="(req-\d+)', part)
            history.take(row(id=f"new-{len(seen)}"))
            part = await displayed.page("requests?part=rows&" + urlencode(json.loads(more[1])))
        seen += re.findall(r'data-id="(req-\d+)', part)
        assert seen == [f"req-{number:03}" for number in reversed(range(100))]
        gone = await displayed.page("requests?part=rows&after=1.0 nobody")
        assert "no longer stored" in gone


async def test_an_adapter_shows_its_newest_versions_and_counts_the_others(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = [
        SimpleNamespace(version=f"v{number}", digest=f"sha256:{number:064x}", rank=8, bytes=1, created=0.0)
        for number in range(1, MOST_VERSIONS + 4)
    ]
    adapter = SimpleNamespace(
        name="style", base="chat", version="v2", digest=versions[1].digest, rank=8, bytes=1, aliases={}, pinned=False,
        versions=versions, tier=Tier.DISK, hits=0, misses=0, last_stage_seconds=None, last_place_seconds=None,
        probe=None,
    )  # fmt: skip

    async def adapters(_: ConsoleHost) -> list[object]:
        return [adapter]

    monkeypatch.setattr(ConsoleHost, "adapters", adapters)
    async with console() as displayed:
        page = await displayed.page("adapters")
    visible = [version.version for version in versions if f"<li>{version.version} " in page]
    assert visible == [version.version for version in versions[3:]]
    assert f"{len(versions)} versions" in page
    assert "and 3 older ones: roundhouse adapters show chat:style" in page


async def test_a_request_has_the_reason_of_its_route_and_the_provider_that_answered(console: Console) -> None:
    route = RequestRoute(
        router="auto@v1",
        target="there/large",
        reason="intent:legal",
        score=0.97,
        scores={"legal": 0.97, MARKUP: 0.02},
        alternatives=["chat"],
        saw={"features": "letters"},
    )
    async with console() as displayed:
        history = displayed.gateway.gateway.services.console.history
        history.take(row(model="there/large", provider="there", route=route, causes={"queue": 0.01, "provider": 0.4}))
        page = await displayed.page("requests")
        for words in ("why: intent:legal", "auto@v1 chose there/large, score 0.970", "Alternatives: chat", "at there"):
            assert words in page, words
        assert "provider 400 ms" in page
        assert MARKUP not in page
        assert "req-1" in await displayed.page("requests?part=rows&words=auto@v1 there")


async def test_a_request_is_a_row_without_its_text(console: Console) -> None:
    async with console() as displayed:
        body = {"model": "chat", "messages": [{"role": "user", "content": "a secret sentence"}]}
        await displayed.client.post("/v1/chat/completions", json=body, headers={"X-Request-Id": "mine"})
        [one] = displayed.gateway.gateway.services.console.history.rows()
        assert (one.id, one.model, one.team) == ("mine", "chat", "default")
        assert "secret sentence" not in repr(one)


async def test_a_model_has_its_plan_and_unknown_ones_a_message(console: Console) -> None:
    async with console() as displayed:
        missing = await displayed.client.get("/console/models?id=none", headers=HTML)
        assert missing.status_code == 404
        assert "<h1>Not found</h1>" in missing.text
        unknown = await displayed.client.get("/console/nothing", headers=HTML)
        assert unknown.status_code == 404
        assert (await displayed.client.get("/console/now?part=../layout")).status_code == 404


@pytest.mark.parametrize(("state", "colour"), [(ModelState.READY, "dim"), (ModelState.FAILED, "bad")])
async def test_a_failure_is_dated_and_red_only_while_it_lasts(console: Console, state: ModelState, colour: str) -> None:
    async with console() as displayed:
        entry = displayed.gateway.entries["chat"]
        entry.fail(EngineFailed("died: SIGKILL"))
        entry.state = state
        page = await displayed.page("models")
    dated = re.search(r'<span class="small (\w+)">(now|a moment ago|\d+ seconds? ago): died: SIGKILL</span>', page)
    assert dated, page
    assert dated[1] == colour


async def test_a_page_is_rendered_outside_the_event_loop(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    monkeypatch.setitem(templates.filters, "ago", lambda value: seen.add(threading.get_ident()) or "now")
    async with console() as displayed:
        assert "now" in await displayed.page("models")
        await displayed.page("models?part=rows")
    assert seen
    assert threading.get_ident() not in seen


async def test_pages_are_rendered_one_at_a_time(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several long ones would leave the event loop too little of the interpreter's time."""
    writing, most = list[int](), list[int]()

    def ago(_: object) -> str:
        writing.append(threading.get_ident())
        most.append(len(writing))
        time.sleep(0.02)  # lets other threads write
        writing.remove(threading.get_ident())
        return "now"

    monkeypatch.setitem(templates.filters, "ago", ago)
    async with console() as displayed:
        await asyncio.gather(*(displayed.page("models") for _ in range(5)))
    assert set(most) == {1}


async def test_pages_work_below_a_prefix(console: Console) -> None:
    async with console(root_path="/tools/roundhouse") as displayed:
        first = await displayed.client.get("/tools/roundhouse/console/", headers=HTML)
        assert first.headers["location"] == "now"
        page = await displayed.client.get("/tools/roundhouse/console/now", headers=HTML)
        assert page.status_code == 200
        assert "curl -s http://127.0.0.1/tools/roundhouse/metrics" in page.text


async def test_static_files_are_compressed_and_tagged_and_nothing_else_is_served(console: Console) -> None:
    async with console() as displayed:
        one = await displayed.client.get("/console/static/console.css", headers={"Accept-Encoding": "identity"})
        assert one.text.startswith("/* Tokens first")
        again = {"If-None-Match": one.headers["etag"]}
        assert (await displayed.client.get("/console/static/console.css", headers=again)).status_code == 304
        for path in ("../web.py", "%2e%2e/web.py", "pages/now.py", "vendor/../../web.py", ""):
            assert (await displayed.client.get(f"/console/static/{path}")).status_code == 404, path
    assert set(files()) > {"console.css", "act.js", "pages/now.js", "vendor/htmx.min.js"}


def test_third_party_files_match_their_table() -> None:
    vendor = STATIC / "vendor"
    scripts = {path.name for path in vendor.iterdir()} - {one.license for one in VENDORED.values()}
    assert scripts == set(VENDORED)
    for name, one in VENDORED.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == one.sha256, name
        assert (vendor / one.license).stat().st_size > 100


def test_only_the_tokens_name_colours() -> None:
    text = (STATIC / "console.css").read_text()
    below = text.split("* { box-sizing", 1)[1]
    assert re.findall(r"#[0-9a-f]{3,6}\b", below) == ["#fff"], "only in the stripes of loading models"
    assert len(gzip.compress(text.encode())) < 8 * 1024


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (0, "0.00"), (0.0123, "0.0123"), (0.5, "0.50"), (1.0, "1.00"), (5.25, "5.25"), (12.3, "12.30"),
        (1234.5, "1,234.50"), (0.0000001, "0.00"), (9.9999999, "10.00"), (-3.0, "-3.00"),
    ],
)  # fmt: skip
def test_money_has_two_to_six_decimals(value: float | None, text: str) -> None:
    assert money(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0123, "12.3 ms"), (0.9994, "999 ms"), (0.9996, "1.0 s"), (1.0, "1.0 s"), (150.0, "2 min")],
)
def test_a_duration_just_under_a_second_is_not_1000_ms(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_times_to_come_are_not_in_the_past() -> None:
    now = time.time()
    assert ago(now - 3 * 86_400) == "3 days ago"
    assert ago(now + 3.5 * 86_400) == "3 days from now"
    assert ago(0.0) == "never"


async def test_the_table_of_keys_leaves_out_old_ones_that_are_not_active(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a year, most of 20,000 keys are revoked, and none is ever deleted."""
    monkeypatch.setattr("console.pages.teams.MOST_GONE", 2)
    async with console() as displayed:
        folder, now = displayed.gateway.gateway.services.settings.keys.data_dir, Clock(1e9)
        with closing(open_tables(folder)) as database:
            table = KeyTable(database, load_pepper(folder), now)
            made = []
            for number in range(8):
                now.now += 1
                made.append(table.create(KeyRequest("default", seconds=5.0 if number == 1 else None))[0].id)
                if number in (2, 4, 5):
                    table.revoke(made[-1])
        page = await displayed.page("teams?part=rows")
        visible = [id_ for id_ in made if id_ in page]
        assert visible == [id_ for number, id_ in enumerate(made) if number not in (1, 2)]
        assert "And 2 older ones that were revoked or have expired." in page


async def test_the_page_teams_writes_to_no_database_in_an_older_state(console: Console, tmp_path: Path) -> None:
    """A fleet's servers refuse such a database, in which a revoked key may still be active."""
    watch = KeyWatch(KeySettings(tmp_path, in_fleet=True))
    keys, _ = await watch.tables()
    watch.refuse_database()
    async with console(watch=watch) as displayed:
        refused = await displayed.client.post("/console/teams/team", json={"id": "late"}, headers=ORIGIN)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "database_unavailable")
    assert [team.id for team in keys.list_teams()] == ["default"]
    await watch.close()
