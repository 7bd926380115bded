"""The console in a real browser on the real server: what a person does there, its look, its accessibility."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.eventually import eventually
from tests.system.console.browsing import PAGES, PHONE, WIDTH, drop, faults, looking, packed, picture, renewal
from tests.system.console.conftest import REFUSED
from tests.system.serving import PACK, STARTER, Server

pytestmark = pytest.mark.real
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of this module's own, because the first key locks it; its chat model has a price."""
    folder = tmp_path_factory.mktemp("console")
    chat = yaml.safe_load((STARTER / "starter-chat.yaml").read_text()) | {"price": {"input": 1.0, "output": 2.0}}
    (folder / "starter-chat.yaml").write_text(yaml.safe_dump(chat))
    others = [file for file in STARTER.glob("*.yaml") if file.stem != "starter-chat"]
    with Server(folder / "data", [folder / "starter-chat.yaml", *others]) as server:
        server.wait_ready().wait_state("starter-chat", "ready")  # slow loads take longer than a page waits
        yield server


@pytest.fixture
def page(browser: Any, console: Server) -> Iterator[Any]:
    with looking(browser, console.url, REFUSED) as page:
        yield page


@pytest.fixture(scope="module")
def team(console: Server) -> str:
    """The first team, with which the ledger begins."""
    made = console.http.post("/console/teams/team", json={"id": "payments"}, headers={"Origin": console.url})
    assert made.status_code == 200, made.text
    eventually(lambda: console.http.get("/v1/usage").status_code == 200)
    return "payments"


def test_a_first_visit_demonstrates_a_swap_with_its_answer_and_its_cost(page: Any, console: Server) -> None:
    page.goto("./")
    assert page.url.endswith("/console/now")
    page.click("#ask")
    page.wait_for_selector("#cost:not([hidden])")
    assert page.inner_text("#answer") == "SBA", "acronym of 'sun bird apple'"
    assert "The swap took" in page.inner_text("#cost-words")
    sums = page.evaluate(
        "import('./static/act.js').then(({ money }) => [0, 1, 0.5, 0.0123, 0.000001, 12.3].map(money))"
    )
    assert sums == ["0.00", "1.00", "0.50", "0.0123", "0.000001", "12.30"]
    page.wait_for_selector("#decisions li:has-text('acronym')")
    page.wait_for_selector(".stall.held, .stall.new, .stall.run", state="attached")
    for _ in range(8):
        page.click("#ask")
        page.wait_for_selector("#ask:enabled")
    page.wait_for_function("document.querySelectorAll('#decisions li').length >= 5")
    page.wait_for_selector("#next-to-leave >> text=/Next to leave|nobody can leave/")
    last = page.locator("#last-requests tr").first
    assert last.locator("svg.fall").get_attribute("aria-label")
    id_ = last.locator("a").get_attribute("href").partition("=")[2]
    assert console.http.get(f"/console/requests?words={id_}&part=rows").text.count("<tr>") == 1
    picture(page, "now")


def test_a_model_is_loaded_after_its_plan_is_displayed(page: Any, console: Server) -> None:
    page.goto("models?id=starter-embed")
    assert "free" in page.inner_text("#chosen")
    assert "task: embed" in page.inner_text("#chosen pre[aria-label^=Recipe]")
    page.goto("models")
    row = page.locator("[data-part=rows] tr", has_text="starter-embed")
    row.get_by_role("button", name="Load").click()
    row.locator(".tag.ready").wait_for()
    assert console.model("starter-embed")["state"] == "ready"
    row.get_by_role("button", name="Pin").click()
    row.get_by_role("button", name="Unpin").click()
    row.get_by_role("button", name="Pin", exact=True).wait_for()
    picture(page, "models")


def test_a_good_adapter_is_dropped_and_a_bad_one_lists_every_fault(page: Any, tmp_path: Path) -> None:
    page.goto("adapters")
    drop(page, "#drop", packed(PACK / "adapters" / "uppercase", tmp_path / "loud.tar.gz"))
    page.wait_for_selector("#checked .good")
    assert "loud v1 is registered" in page.inner_text("#checked")
    page.wait_for_selector("#rows >> text=loud")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "adapter_config.json").write_text('{"peft_type": "IA3", "r": -1}')
    (broken / "adapter_model.safetensors").write_bytes(b"no tensors")
    drop(page, "#drop", packed(broken, tmp_path / "broken.tar.gz"))
    page.wait_for_selector("#checked .bad")
    assert page.locator("#checked li").count() >= 2, "every fault, not the first"
    picture(page, "adapters")


def test_a_route_is_explained_and_listed_with_its_requests(page: Any, console: Server) -> None:
    page.goto("routers")
    page.fill("#explain textarea", "3 March 2024")
    page.click("text=Decide")
    page.wait_for_selector("#target")
    assert page.inner_text("#target") == "starter-chat:iso-date"
    assert page.locator("#decided .shares li").count() > 1, "the candidates"
    body = {"model": "auto", "messages": [{"role": "user", "content": "3 March 2024"}]}
    for _ in range(3):
        assert console.http.post("/v1/chat/completions", json=body).status_code == 200
    page.goto("requests")
    page.wait_for_selector("#rows >> text=why: intent:iso-date")
    assert page.locator("#rows .fall").count() >= 3
    picture(page, "requests")
    for number in range(60):
        console.http.post("/v1/chat/completions", json={**body, "model": f"nobody-{number}"})
    page.goto("requests")
    assert page.locator("#rows .fall").count() < 60, "the first part is short"
    page.locator("text=Older ones").scroll_into_view_if_needed()
    page.wait_for_selector("#rows >> text=why: intent:iso-date")


def test_the_curve_of_cost_and_quality_marks_the_threshold(page: Any, console: Server, team: str) -> None:
    for place, text in enumerate(("3 March 2024", "7 May 2021", "lovely bread!", "qwpo zmxn vrrt")):
        body = {"model": "auto", "messages": [{"role": "user", "content": text}], "max_tokens": 20 + 20 * place}
        answer = console.http.post("/v1/chat/completions", json=body, headers={"x-conversation-id": f"c-{place}"})
        feedback = {"request_id": answer.headers["x-request-id"], "accepted": place != 1}
        assert console.http.post("/v1/feedback", json=feedback).status_code == 200
    threshold = console.http.get("/v1/routers/auto").json()["threshold"]
    replay = console.http.get("/v1/routers/auto/report?days=7").json()["replay"]
    page.goto("routers")
    page.wait_for_selector("#curve circle.own", state="attached")
    assert len({point["cost_micro"] for point in replay}) > 1, replay
    assert page.text_content("#curve text.own") == f"threshold {threshold:.3f}"
    assert page.locator("#curve circle.point").count() == len(replay) > 2
    assert "accepted answers, against the mean cost of a request" in page.inner_text("#curve p")
    assert "50.0 %" in page.inner_text("#outcomes tr:has-text('iso-date')"), "one of two dates was accepted"
    page.click("#outcomes summary")
    assert page.locator("#outcomes details tbody tr").count() == len(replay)
    page.select_option("#curve-of [name=days]", "1")
    page.wait_for_selector("#curve circle.own", state="attached")
    picture(page, "routers")
    page.goto("now")
    page.wait_for_selector("#kpi-cost:has-text('USD')")


def test_the_page_of_a_batch_has_its_counts_and_failures(page: Any, console: Server) -> None:
    messages = [{"role": "user", "content": "sun bird apple"}]
    lines = [
        {
            "custom_id": name,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": name, "messages": messages},
        }
        for name in ("acronym", "nobody")
    ]
    content = "".join(f"{json.dumps(line)}\n" for line in lines)
    file = console.http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)})
    body = {"input_file_id": file.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = console.http.post("/v1/batches", json=body).json()
    page.goto("batches")
    page.locator("#rows tr", has_text="completed").wait_for()
    assert "2 of 2" in page.inner_text("#rows")
    page.click("#rows a")
    page.wait_for_selector(f"#chosen >> text={batch['id']}")
    facts = page.inner_text("#chosen")
    assert "2: 1 answered, 1 failed" in facts
    assert "model_not_found" in facts


def test_a_team_with_more_weight_has_a_larger_share(page: Any, console: Server, team: str) -> None:
    page.on("dialog", lambda dialog: dialog.accept("3"))
    page.goto("teams")
    row = page.locator("[data-part=list] tr", has_text=team)
    row.get_by_role("button", name=f"Change the weight of {team}").click()
    page.wait_for_selector(f"#made >> text={team} now has weight 3")
    row.get_by_text("75 %").wait_for()
    body = {"model": "starter-chat:acronym", "messages": [{"role": "user", "content": "sun bird apple"}]}
    assert console.http.post("/v1/chat/completions", json=body).status_code == 200
    page.goto("now")
    page.wait_for_selector("#shares li:has-text('default')")


def test_texts_are_visible_while_a_team_keeps_them(page: Any, console: Server, team: str) -> None:
    page.on("dialog", lambda dialog: dialog.accept())
    body = {"model": "starter-chat:acronym", "messages": [{"role": "user", "content": "sun bird apple"}]}

    def request_detail(id_: str) -> str:
        assert console.http.post("/v1/chat/completions", json=body, headers={"x-request-id": id_}).status_code == 200
        return str(console.http.get(f"/console/requests?words={id_}").text)

    assert "<summary>texts" not in request_detail("unkept")
    page.goto("teams")
    page.get_by_role("button", name="Store texts of default").click()
    page.wait_for_selector("#said >> text=Texts of default are stored from now on")
    eventually(lambda: "<summary>texts" in request_detail("kept"))
    page.goto("requests?words=kept")
    page.locator("#rows summary", has_text="texts").first.click()
    page.wait_for_selector(".texts pre:has-text('sun bird apple')")
    page.wait_for_selector(".texts pre:has-text('SBA')")
    page.goto("teams")
    page.get_by_role("button", name="Stop storing texts of default").click()
    eventually(lambda: "<summary>texts" not in console.http.get("/console/requests?words=kept").text)
    assert "sun bird apple" not in console.log.read_text()


@pytest.mark.parametrize(("scheme", "width"), [("light", PHONE), ("dark", WIDTH)])
def test_each_page_is_accessible_and_fits_the_screen(page: Any, console: Server, scheme: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    found: list[str] = []
    one = {"model": "starter-chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, "foo": 1}
    console.http.post("/v1/chat/completions", json=one, headers={"X-Request-Id": "req-of-a-long-name-that-is-whole"})
    far = {"protocol": "openai", "base_url": "https://far.example/v1", "key_env": "FAR_KEY", "models": [{"name": "m"}]}
    assert console.http.put("/v1/providers/far", json=far).status_code in (200, 201)
    more = ("models?id=starter-chat", "requests?id=req-of-a-long-name-that-is-whole", "playground#speech")
    batches = [f"batches?id={batch['id']}" for batch in console.http.get("/v1/batches").json()["data"]]
    for slug in (*PAGES, *more, *batches, "playground#embed", "playground#rerank"):
        page.goto(slug)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, slug
        assert page.evaluate("document.querySelectorAll('h1').length") == 1
        found += faults(page)
    assert not found, "\n".join(found)
    page.goto("providers")
    assert "far/m" in page.inner_text("#rows")
    page.goto("now")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null"), "past the navigation"


def test_answers_and_names_with_markup_are_displayed_as_text(page: Any, console: Server) -> None:
    page.on("dialog", lambda dialog: pytest.fail(f"a script of a model's answer ran: {dialog.message}"))

    def made_to_say(route: Any) -> None:
        sent = {**json.loads(route.request.post_data), "structured_outputs": {"choice": [MARKUP]}, "max_tokens": 200}
        route.continue_(post_data=json.dumps(sent))

    page.route("**/v1/chat/completions", made_to_say)
    page.goto("playground")
    page.click("text=Ask both")
    page.wait_for_selector("#chat-form button:enabled >> text=Ask both")
    assert [side.inner_text() for side in page.locator(".turns p:not(.asked)").all()] == [MARKUP] * 2
    assert page.locator(".turns img, .turns script").count() == 0
    page.goto("adapters")
    page.fill("#register [name=name]", MARKUP)
    page.set_input_files("#file", {"name": f"{MARKUP}.zip", "mimeType": "application/zip", "buffer": b"none"})
    page.wait_for_selector("#checked .bad")
    assert page.locator("#checked img, #checked script").count() == 0
    console.http.post("/v1/chat/completions", json={"model": MARKUP}, headers={"X-Request-Id": "marked"})
    page.goto("requests?words=marked")
    assert page.locator("#rows img, #rows script").count() == 0


def test_another_site_can_neither_frame_it_nor_change_anything(browser: Any, console: Server) -> None:
    """Another site's page, in the browser of a person who may do everything."""
    assert console.model("starter-chat")["state"] == "ready"
    with browser.new_context() as context:
        other = context.new_page()
        text = f'<iframe src="{console.url}/console/now"></iframe>'
        context.route("http://elsewhere.test/", lambda route: route.fulfill(body=text, content_type="text/html"))
        other.goto("http://elsewhere.test/")
        framed = other.frames[1]
        assert framed.url.startswith("chrome-error:"), "the frame is blocked"
        for path in ("v1/models/starter-chat/unload", "console/teams/team"):
            script = """path => fetch(path, {
                method: "POST", mode: "no-cors", credentials: "include", body: '{"id": "theirs"}',
            }).then((answer) => answer.type, () => "not sent")"""
            assert other.evaluate(script, f"{console.url}/{path}") in ("opaque", "not sent"), "never readable"
    assert console.model("starter-chat")["state"] == "ready"
    assert "theirs" not in console.http.get("/v1/organization/projects").text


def test_the_page_now_reconnects_after_a_restart(browser: Any, tmp_path: Path) -> None:
    """The server has no engine to start."""
    with (
        Server(tmp_path / "a" / "data", [STARTER / "starter-embed.yaml"], "--slots", "1").wait_ready() as server,
        looking(browser, server.url, ("net::ERR_",)) as page,
    ):
        page.goto("now")
        page.wait_for_selector("#dot:not(.off)")
        assert server.stop() == 0
        page.wait_for_selector("#phase >> text=not connected")
        server.start()
        server.wait_ready()
        page.wait_for_selector("#dot:not(.off)")
        assert page.inner_text("#phase") == "ready"


def test_each_part_is_reloaded_after_each_change(page: Any) -> None:
    """Once, two changes in a row reloaded only one part: a key made right after its team did not appear."""
    page.goto("teams")
    parts = Counter[str]()
    page.on("request", lambda request: parts.update(re.findall(r"\?part=(\w+)", request.url)))
    page.evaluate("for (const _ of [1, 2]) document.dispatchEvent(new Event('changed'))")
    for _ in range(6000):
        if parts.total() < 6:
            page.wait_for_timeout(100)
    assert parts == {"rows": 2, "list": 2, "limits": 2}


def test_keys_are_displayed_once_used_and_revoked(page: Any, console: Server) -> None:
    """The last test of this file, because the first key locks the server."""
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto("teams")
    for box in page.locator("#key [name=scopes]").all():
        box.check()
    page.click("#key button[type=submit]")
    key = page.inner_text("#secrets code")
    assert key.startswith("rh-")
    page.wait_for_selector(f"#rows >> text={key[3:11]}")
    page.click("text=Sign in with it")
    page.wait_for_selector("text=Sign out")
    page.wait_for_load_state()  # until the reloaded page's script runs, the browser would submit the form itself
    assert key not in page.content()
    page.fill("#team [name=id]", "search")
    with renewal(page):
        page.click("text=Create team")
        page.wait_for_selector("#made >> text=Team search was created")
    page.locator("#key [name=scopes][value=infer]").check()
    with renewal(page):
        page.click("#key button[type=submit]")
        second = page.inner_text("#secrets code")[3:11]
    page.click(f"#rows tr:has-text('{second}') >> text=Revoke")
    page.wait_for_selector(f"#said >> text={second} was revoked")
    page.wait_for_selector(f"#rows tr:has-text('{second}') .revoked")
    page.fill("#limit [name=amount]", "60")
    page.click("text=Try it on the last 7 days")
    page.wait_for_selector("#limited >> text=would have refused 0 of")
    page.reload()
    picture(page, "teams")
    body = {"model": "starter-embed", "input": "a warm kitchen"}
    for _ in range(3):
        assert console.http.post("/v1/embeddings", json=body, headers={"x-api-key": key}).status_code == 200
    page.goto("usage")
    page.wait_for_selector("td >> text=starter-embed")
    page.wait_for_selector("#chart canvas")
    picture(page, "usage")
    page.click("text=Sign out")
    page.wait_for_selector("#sign-in")
    page.fill("[name=key]", "rh-wrongwro_wrong")
    page.click("text=Sign in >> nth=-1")
    page.wait_for_selector("#said .bad")
    assert faults(page) == []
    page.fill("[name=key]", key)
    page.press("[name=key]", "Enter")
    page.wait_for_url("**/now")
