"""The pages' scripts in a browser: state that they keep, messages, and focus while pages update."""

import ast
import asyncio
import json
import re
import shlex
from typing import Any

import msgspec
import pytest

from tenants.caller import SCOPES
from tests.system.console.browsing import PHONE, WIDTH
from tests.unit.console.browsing import HERE, Answer, looking, reported
from tests.unit.console.conftest import ORIGIN, Console, ConsoleRig, key, sign_in
from tests.unit.console.test_pages import row

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]
MADE = {"id": "k1234567", "team": "default", "value": "rh-secret"}
REFUSED = {"error": {"message": "Sign in first."}}


async def test_a_keys_text_stays_until_the_page_is_left(console: Console, browser: Any) -> None:
    answers = {"teams/key": reported(MADE)}
    async with console() as displayed, looking(browser, displayed, answers) as page:
        await page.goto("teams")
        await page.click("#key button[type=submit]")
        await page.wait_for_selector("#secrets code")
        answers["teams/key"] = reported(REFUSED, 401)
        await page.click("#key button[type=submit]")
        await page.wait_for_selector("#made >> text=Sign in first")
        assert await page.inner_text("#secrets code") == "rh-secret"
        answers["teams/key"] = reported(MADE | {"value": "rh-another"})
        await page.click("#key button[type=submit]")
        await page.wait_for_selector("#secrets >> text=rh-another")
        assert await page.locator("#secrets code").all_inner_texts() == ["rh-another", "rh-secret"]


async def test_a_button_pressed_twice_makes_one_key(console: Console, browser: Any) -> None:
    requested, go = 0, asyncio.Event()

    async def slow(route: Any) -> None:
        nonlocal requested
        requested += 1
        await go.wait()
        await reported(MADE)(route)

    async with console() as displayed, looking(browser, displayed, {"teams/key": slow}) as page:
        await page.goto("teams")
        await page.focus("#key button[type=submit]")
        for _ in range(3):
            await page.press("#key button[type=submit]", "Enter")
        await page.wait_for_selector("#key button[type=submit]:disabled")
        go.set()
        await page.wait_for_selector("#key button[type=submit]:focus:enabled")
        await page.wait_for_selector("#secrets code")
    assert requested == 1


async def test_an_invalid_weight_is_reported_and_a_new_team_can_have_a_limit(console: Console, browser: Any) -> None:
    answered = ""
    async with console() as displayed, looking(browser, displayed, {"teams/key": reported(MADE)}) as page:
        page.on("dialog", lambda dialog: dialog.accept(answered))
        await page.goto("teams")
        await page.fill("#team [name=id]", "search")
        await page.click("#team button")
        await page.wait_for_selector("#made >> text=Team search was created")
        change = page.get_by_role("button", name="Change the weight of search")
        await change.wait_for()
        await change.evaluate("one => { one.dataset.old = ''; }")
        await page.click("#key button[type=submit]")
        await page.wait_for_selector("#secrets code")
        await page.wait_for_selector("[data-old]", state="detached")  # until it is renewed, a click may be lost
        whose = await page.locator("#limit [name=subject] option").evaluate_all("all => all.map((one) => one.value)")
        assert {"team search", "key k1234567"} <= set(whose)
        for answered in ("0", "abc", "", "-1"):
            await page.evaluate("document.getElementById('made').replaceChildren()")
            await change.click()
            assert "eight" in await page.inner_text("#made .bad"), answered


async def test_long_names_and_large_amounts_of_teams_are_readable(console: Console, browser: Any) -> None:
    """Once, one long name made the page three times as wide as the screen, and a million was `1e+06`."""
    long = {"id": "w" * 64, "name": "W" * 128}
    limit = {"owner": "team", "subject": long["id"], "kind": "tokens_per_minute", "amount": "1234567", "mode": "warn"}
    new = {"team": long["id"], "name": "W" * 128, "scopes": ["infer", "usage"], "models": " ".join(["m" * 64] * 9)}
    async with console() as displayed, looking(browser, displayed, {}) as page:
        for path, body in (("team", long), ("key", new), ("limit", {**limit, "model": "m" * 99})):
            made = await displayed.client.post(f"/console/teams/{path}", json=body, headers=ORIGIN)
            assert made.status_code == 200, made.text
        for width in (WIDTH, PHONE):
            await page.set_viewport_size({"width": width, "height": 900})
            await page.goto("teams")
            assert await page.evaluate(SCROLLING) == [], width
        assert "1,234,567" in await page.inner_text("[data-part=limits]")


async def test_a_size_just_under_a_unit_is_not_1024_of_the_smaller(console: Console, browser: Any) -> None:
    sizes = {0: "0 B", 1023: "1023 B", 2**20 - 2**6: "1023.9 KiB", 2**20 - 1: "1.0 MiB", 2**30 - 1: "1.0 GiB"}
    async with console() as displayed, looking(browser, displayed, {}) as page:
        await page.goto("now")
        act = "import(new URL('static/act.js', location.href).href)"
        texts = await page.evaluate(f"all => {act}.then((act) => all.map(act.size))", list(sizes))
    assert texts == list(sizes.values())


SCROLLING = """[document.documentElement, ...document.querySelectorAll(".scroll")].filter(
    (one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.outerHTML.slice(0, 200))"""
"""Returns what has to be scrolled sideways to be read."""
FOCUSED = "document.activeElement.dataset.call ?? document.activeElement.outerHTML"


async def polled(page: Any) -> None:
    """Wait for two answers: the first is in the page when the second arrives."""
    for _ in range(2):
        await page.wait_for_event("requestfinished", lambda sent: "part=rows" in sent.url)


async def test_a_focused_button_keeps_the_focus_while_the_table_of_models_is_renewed(
    console: Console, browser: Any
) -> None:
    answers: dict[str, Answer] = {}
    async with console() as displayed, looking(browser, displayed, answers) as page:
        await page.goto("models")
        await page.locator("tr", has_text="rerank").locator("button").first.focus()
        before = await page.evaluate(FOCUSED)
        assert "v1/models/rerank/" in before
        await polled(page)
        assert await page.evaluate(FOCUSED) == before
        rows = await displayed.page("models?part=rows")
        answers["models?part"] = reported(
            re.sub(r'<tr id="model-embed">.*?</tr>', "", rows, flags=re.DOTALL), kind="text/html"
        )
        await page.wait_for_selector("tr[id=model-embed]", state="detached")
        assert await page.evaluate(FOCUSED) == before


def stream(now: dict[str, Any]) -> Answer:
    """Return a stream that ends after one event, and to which the browser soon reconnects."""
    return reported(f"retry: 200\n\nevent: now\ndata: {json.dumps(now)}\n\n", kind="text/event-stream")


def live_state(displayed: ConsoleRig, **other: Any) -> dict[str, Any]:
    gateway = displayed.gateway.gateway
    return {**json.loads(msgspec.json.encode(gateway.services.live(gateway.phase))), **other}


def with_places(displayed: ConsoleRig, places: int) -> None:
    policy = displayed.gateway.queues["chat"].policy
    policy.resize(places, 1, 1)
    policy.reset()


async def received(page: Any) -> None:
    """Wait for three requests of the stream: the first one's event is drawn when the next is sent."""
    for _ in range(3):
        await page.wait_for_event("requestfinished", lambda sent: "events" in sent.url)


async def test_a_focused_request_keeps_the_focus_while_others_end(console: Console, browser: Any) -> None:
    async with console() as displayed:
        history = displayed.gateway.gateway.services.console.history
        history.take(row(id="mine"))
        answers = {"events": stream(live_state(displayed))}
        async with looking(browser, displayed, answers) as page:
            await page.goto("now")
            await page.focus("#last-requests a")
            await received(page)
            history.take(row(id="slow", total=99.0))
            answers["events"] = stream(live_state(displayed))
            await page.wait_for_selector("#last-requests a[href$=slow]")
            assert await page.locator("#last-requests tr").count() == 2
            assert await page.evaluate("document.activeElement.getAttribute('href')") == "requests?id=mine"


async def test_screen_readers_get_a_loads_phases_but_not_each_second(console: Console, browser: Any) -> None:
    async with console() as displayed:
        now = live_state(displayed)
        now["models"][0] |= {"state": "loading", "phase": "fetching", "percent": 1.0, "detail": "1 of 9 MiB"}
        answers = {"events": stream(now)}
        async with looking(browser, displayed, answers) as page:
            await page.goto("now")
            await page.wait_for_selector("#loads progress")
            await page.evaluate("""() => { window.told = []; new MutationObserver((all) => {
                for (const one of all) for (const node of one.addedNodes) {
                    if (!one.target.closest("[aria-hidden]")) told.push(node.textContent);
                }
            }).observe(document.getElementById("loads"), { subtree: true, childList: true }); }""")
            for percent in (2.0, 3.0):
                now["models"][0] |= {"percent": percent, "detail": f"{percent} of 9 MiB"}
                answers["events"] = stream(now)
                await page.wait_for_selector(f"#loads progress[value='{percent:g}']")
            assert await page.evaluate("told") == []
            now["models"][0] |= {"phase": "building"}
            answers["events"] = stream(now)
            await page.wait_for_selector("#loads >> text=building")
            assert await page.evaluate("told") == ["chat: building "]


async def test_cards_of_bases_appear_and_disappear_with_them(console: Console, browser: Any) -> None:
    async with console() as displayed:
        answers = {"events": stream(live_state(displayed))}
        async with looking(browser, displayed, answers) as page:
            await page.goto("now")
            await page.wait_for_selector("#rings >> text=No model of this server takes adapters")
            with_places(displayed, 4)
            answers["events"] = stream(live_state(displayed))
            await page.wait_for_selector("[data-ring=chat] .stall >> nth=3", state="attached")
            with_places(displayed, 0)
            answers["events"] = stream(live_state(displayed))
            await page.wait_for_selector("#rings >> text=No model of this server takes adapters")


async def test_a_base_with_one_place_has_a_ring_and_says_that_there_is_no_adapter(
    console: Console, browser: Any
) -> None:
    async with console() as displayed:
        with_places(displayed, 1)
        async with looking(browser, displayed, {"events": stream(live_state(displayed))}) as page:
            await page.goto("now")
            box = await page.locator("path.stall").bounding_box()
            whole = await page.locator("svg.ring").bounding_box()
            assert min(box["width"], box["height"]) > whole["width"] / 2
            await page.click("#ask")
            await page.wait_for_selector("#asked >> text=There is no adapter yet")


async def test_after_a_restart_swaps_are_displayed_again(console: Console, browser: Any) -> None:
    async with console() as displayed:
        with_places(displayed, 2)
        now = live_state(displayed)
        stall = {"number": 1, "adapter": "legal", "state": "held"}
        ring = {**now["rings"][0], "stalls": [stall]}
        swap = {"at": 1.0, "kind": "swap", "model": "chat", "subject": "legal", "words": "comes into a free place"}
        swap |= {"object": "", "more": ""}
        before = {**now, "uptime": 900.0, "rings": [ring], "decisions": [{**swap, "number": 40, "subject": "other"}]}
        answers = {"events": stream(before)}
        async with looking(browser, displayed, answers) as page:
            await page.goto("now")
            await received(page)
            await page.evaluate("""() => { window.arrived = 0; new MutationObserver(() => {
                window.arrived += document.querySelectorAll(".stall.new").length;
            }).observe(document.querySelector("svg.ring"), { subtree: true, childList: true, attributes: true }); }""")
            answers["events"] = stream({**before, "uptime": 1.0, "decisions": [{**swap, "number": 1}]})
            await page.wait_for_function("() => window.arrived > 0")  # it is displayed only for two seconds


class Gate:
    """Answers once it is opened, and records the requests."""

    def __init__(self, answer: Answer) -> None:
        self.requested: list[Any] = []
        self.answer, self.opened = answer, asyncio.Event()

    async def __call__(self, route: Any) -> None:
        self.requested.append(json.loads(route.request.post_data))
        await self.opened.wait()
        await self.answer(route)


def streamed(text: str) -> Answer:
    """Return a model's streamed answer."""
    event = json.dumps({"choices": [{"delta": {"content": text}}]})
    return reported(f"data: {event}\n\ndata: [DONE]\n\n", kind="text/event-stream")


def messages(body: Any) -> list[str]:
    return [f"{one['role']}: {one['content']}" for one in body["messages"]]


TEXT, BOTH = "#chat-form [name=text]", "#chat-form button.first"


async def test_a_conversation_alternates_questions_and_answers(console: Console, browser: Any) -> None:
    gate = Gate(streamed("fine"))
    async with console() as displayed, looking(browser, displayed, {"v1/chat": gate}) as page:
        await page.goto("playground")
        await page.fill(TEXT, "hello")
        await page.press(TEXT, "Enter")
        await page.wait_for_selector(f"{BOTH}:disabled")
        await page.press(TEXT, "Enter")
        assert await page.locator(".turns .asked").count() == 2, "no question is sent during an answer"
        assert await page.is_enabled("#stop")
        gate.opened.set()
        await page.wait_for_selector(f"{BOTH}:enabled")
        gate.answer = reported({"error": {"message": "too much"}}, 429)
        await page.press(TEXT, "Enter")
        await page.wait_for_selector(".turns .bad >> text=too much >> nth=1")
        await page.wait_for_selector(f"{BOTH}:enabled")
        gate.answer = streamed("again")
        await page.press(TEXT, "Enter")
        await page.wait_for_selector(".turns >> text=again >> nth=1")
    expected = ["user: hello", "assistant: fine", "user: hello"]
    assert [messages(body) for body in gate.requested] == [["user: hello"]] * 2 + [expected] * 4


async def test_options_of_the_playground_are_parts_of_the_request(console: Console, browser: Any) -> None:
    gate = Gate(streamed("fine"))
    gate.opened.set()
    tools = [{"type": "function", "function": {"name": "set_light", "parameters": {"type": "object"}}}]
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}}
    async with console() as displayed, looking(browser, displayed, {"v1/chat": gate}) as page:
        await page.goto("playground")
        await page.click("#chat-form summary")
        await page.fill("[name=system]", "Be brief.")
        await page.fill("[name=temperature]", "0.7")
        await page.fill("[name=max_tokens]", "5")
        await page.fill("[name=tools]", "[oops")
        await page.fill(TEXT, "hello")
        await page.click(BOTH)
        await page.wait_for_selector("#chat-said >> text=Tools cannot be read")
        assert gate.requested == []
        await page.fill("[name=tools]", json.dumps(tools))
        await page.fill("[name=schema]", json.dumps(schema))
        image = {"name": "dot.png", "mimeType": "image/png", "buffer": b"png"}
        await page.set_input_files("[name=image]", image)
        await page.click(BOTH)
        await page.wait_for_selector(".turns >> text=fine >> nth=1")
        python = await page.text_content("[data-call-of=chat-left] [data-python]")
    body = gate.requested[0]
    parts = [
        {"type": "text", "text": "hello"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}},
    ]
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    assert (body["temperature"], body["max_tokens"], body["tools"]) == (0.7, 5, tools)
    assert body["response_format"]["json_schema"]["schema"] == schema
    assert 'tools=[ { "type": "function"' in python
    ast.parse(python)


async def test_tool_calls_and_tokens_per_second_are_displayed(console: Console, browser: Any) -> None:
    pieces = [{"name": "set_light", "arguments": ""}, {"arguments": '{"on": '}, {"arguments": "true}"}]
    events = [{"choices": [{"delta": {"tool_calls": [{"index": 0, "function": piece}]}}]} for piece in pieces]
    events.append({"choices": [], "usage": {"completion_tokens": 12}})
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    answers = {"v1/chat": reported(text, kind="text/event-stream")}
    async with console() as displayed, looking(browser, displayed, answers) as page:
        await page.goto("playground")
        await page.click(BOTH)
        await page.wait_for_selector('.turns >> text=set_light {"on": true} >> nth=1')
        await page.wait_for_selector("[data-digest] >> text=/tokens.s/")


async def test_a_provider_is_added_and_tested(console: Console, browser: Any) -> None:
    sent: list[tuple[str, str, Any]] = []
    check = {"id": "far", "ok": True, "seconds": 0.2, "message": "answers", "missing": ["large"]}

    async def answer(route: Any) -> None:
        request = route.request
        sent.append((request.method, request.url.rpartition("/v1/")[2], request.post_data and request.post_data_json))
        refused = json.dumps({"error": {"message": "Write an address."}})
        status, body = (422, refused) if len(sent) == 1 else (200, json.dumps(check))
        await route.fulfill(status=status, headers={"content-type": "application/json"}, body=body)

    row = reported("<tr><td><button data-test=far>Test</button></tr>", kind="text/html")
    async with (
        console() as displayed,
        looking(browser, displayed, {"v1/providers": answer, "providers?part": row}) as page,
    ):
        await page.goto("providers")
        for name, value in (("id", "far"), ("base_url", "https://far.example/v1"), ("models", "small, large")):
            await page.fill(f"#provider [name={name}]", value)
        await page.click("#provider button")
        await page.wait_for_selector("#added .bad >> text=Write an address")
        await page.fill("#provider [name=key_env]", "FAR_KEY")
        await page.click("#provider button")
        await page.wait_for_selector("#added .good >> text=far/small")
        await page.click("[data-test=far]")
        await page.wait_for_selector("#said .good >> text=far: answers It does not list large.")
    document = {
        "protocol": "openai",
        "base_url": "https://far.example/v1",
        "models": [{"name": "small"}, {"name": "large"}],
    }
    assert sent == [
        ("PUT", "providers/far", document),
        ("PUT", "providers/far", document | {"key_env": "FAR_KEY"}),
        ("POST", "providers/far/test", None),
    ]


async def test_an_edited_provider_keeps_settings_without_a_field(console: Console, browser: Any) -> None:
    sent: list[tuple[str, Any]] = []
    small = {"name": "small", "price": {"input": 1.0, "output": 2.0}}
    definition = {
        "protocol": "openai", "base_url": "https://far.example/v1", "key_file": "/run/far", "models": [small],
    }  # fmt: skip

    async def answer(route: Any) -> None:
        sent.append((route.request.method, route.request.post_data and route.request.post_data_json))
        await route.fulfill(json={"id": "far", "definition": definition})

    row = reported("<tr><td><button data-edit=far>Edit</button></tr>", kind="text/html")
    async with (
        console() as displayed,
        looking(browser, displayed, {"v1/providers": answer, "providers?part": row}) as page,
    ):
        await page.goto("providers")
        await page.evaluate("document.dispatchEvent(new Event('changed'))")
        await page.click("[data-edit=far]")
        await page.wait_for_selector("text=Edit far")
        await page.fill("#provider [name=models]", "small, large")
        await page.click("#provider [type=submit]")
        await page.wait_for_selector("#added .good >> text=far was changed")
        assert await page.inner_text("#form-title") == "Add a provider"
    assert sent == [("GET", None), ("PUT", definition | {"models": [small, {"name": "large"}]})]


async def test_a_conversation_that_is_reset_during_an_answer_is_empty(console: Console, browser: Any) -> None:
    gate = Gate(streamed("late"))
    async with console() as displayed, looking(browser, displayed, {"v1/chat": gate}) as page:
        await page.goto("playground")
        await page.click(BOTH)
        await page.wait_for_selector(f"{BOTH}:disabled")
        await page.click("#clear")
        await page.wait_for_selector(f"{BOTH}:enabled")
        gate.opened.set()
        await page.fill(TEXT, "hello")
        await page.press(TEXT, "Enter")
        await page.wait_for_selector(".turns >> text=late >> nth=1")
        assert await page.locator(".turns p").count() == 4
    assert [messages(body) for body in gate.requested[-2:]] == [["user: hello"]] * 2


async def test_all_documents_are_ranked_and_waiting_is_displayed(console: Console, browser: Any) -> None:
    gate = Gate(reported({"results": [{"index": 19, "relevance_score": 0.9}]}))
    async with console() as displayed, looking(browser, displayed, {"v1/rerank": gate}) as page:
        await page.goto("playground#rerank")
        await page.fill("#rerank-form textarea", "\n".join(f"document {number}" for number in range(20)))
        await page.click("#rerank-form button")
        await page.wait_for_selector("#ranks >> text=working")
        assert await page.is_disabled("#rerank-form button")
        gate.opened.set()
        await page.wait_for_selector("#ranks >> text=document 19")
        assert await page.is_enabled("#rerank-form button")
    assert [len(body["documents"]) for body in gate.requested] == [20]


async def test_too_many_texts_for_the_matrix_are_reported(console: Console, browser: Any) -> None:
    gate = Gate(reported({"data": [{"embedding": [1.0, 0.0]}] * 12}))
    gate.opened.set()
    async with console() as displayed, looking(browser, displayed, {"v1/embeddings": gate}) as page:
        await page.goto("playground#embed")
        await page.fill("#embed-form textarea", "\n".join(f"text {number}" for number in range(20)))
        await page.click("#embed-form button")
        await page.wait_for_selector("#matrix >> text=The first 12 of 20 texts")
        assert await page.locator("#matrix td").count() == 144
    assert [len(body["input"]) for body in gate.requested] == [12]


async def test_while_the_server_is_down_the_table_stays_and_is_marked_as_old(console: Console, browser: Any) -> None:
    answers: dict[str, Answer] = {}
    async with console() as displayed, looking(browser, displayed, answers) as page:
        await page.goto("models")
        for away in (reported("<h1>502 Bad Gateway</h1>", 502, "text/html"), lambda route: route.abort()):
            answers["models?part"] = away
            await page.wait_for_selector("#phase >> text=not connected")
            await page.wait_for_selector("#dot.off")
            assert "502" not in await page.inner_text("tbody")
            assert await page.locator("tr[id=model-chat]").count() == 1
            del answers["models?part"]
            await page.wait_for_selector("#phase >> text=ready")
            await page.wait_for_selector("#dot:not(.off)")


async def test_a_key_entered_before_the_pages_script_runs_is_not_in_the_address(console: Console, browser: Any) -> None:
    """The browser would submit the form by itself, with the key in the address and in the history."""
    admin = key("ops", *SCOPES)
    answers: dict[str, Any] = {"static/act.js": lambda route: route.abort()}
    async with console(admin) as displayed, looking(browser, displayed, answers) as page:
        await page.goto("sign-in?next=models")
        await page.fill("[name=key]", admin[0])
        await page.press("[name=key]", "Enter")
        await page.wait_for_timeout(300)
        assert admin[0] not in page.url
        del answers["static/act.js"]
        await page.reload()
        await page.fill("[name=key]", admin[0])
        await page.click("#sign-in button")
        await page.wait_for_url("**/models")


async def test_a_session_that_ended_on_another_server_leads_to_sign_in(console: Console, browser: Any) -> None:
    admin = key("ops", *SCOPES)
    async with console(admin) as displayed, looking(browser, displayed) as page:
        await sign_in(displayed, admin[0])
        await page.goto("models")
        await displayed.client.post("/console/sign-out", json={}, headers=ORIGIN)
        await page.wait_for_selector("#sign-in")
        await sign_in(displayed, admin[0])
        await page.goto("adapters")
        await displayed.client.post("/console/sign-out", json={}, headers=ORIGIN)
        await page.set_input_files("#file", {"name": "a.zip", "mimeType": "application/zip", "buffer": b"none"})
        await page.wait_for_selector("#checked >> text=Your session has ended")


@pytest.mark.parametrize(("host", "id"), [(HERE, "req-secure"), ("http://roundhouse.lan", "req-plain")])
async def test_an_id_is_copied_with_and_without_tls_however_often_it_is_clicked(
    console: Console, host: str, id: str, browser: Any
) -> None:
    async with console() as displayed, looking(browser, displayed, host=host) as page:
        displayed.gateway.gateway.services.console.history.take(row(id=id))
        await page.goto("requests")
        await page.click("#rows a")
        for _ in range(2):
            await page.click("button[data-copy]")
            await page.wait_for_selector("button[data-copy] >> text=Copied")
        await page.wait_for_selector("button[data-copy] >> text=/^Copy$/")
        await page.goto("requests")
        await page.fill("[name=words]", "")
        await page.press("[name=words]", "Control+V")
        await page.wait_for_function("id => document.querySelector('[name=words]').value === id", arg=id)


async def test_a_call_is_displayed_as_a_shell_command_with_a_key_if_one_is_needed(
    console: Console, browser: Any
) -> None:
    mine = key("ops", *SCOPES)
    async with (
        console(mine) as displayed,
        looking(browser, displayed, {"v1/": reported({"results": [], "text": ""})}) as page,
    ):
        await sign_in(displayed, mine[0])
        await page.goto("playground#speech")
        name = 'it\'s "my" file.wav'
        await page.set_input_files("[name=file]", {"name": name, "mimeType": "audio/wav", "buffer": b"RIFF"})
        await page.click("#speech-form button.first")
        words = shlex.split(await page.text_content("[data-call-of=speech] [data-curl]"))
        assert 'file=@"it\'s \\"my\\" file.wav"' in words
        assert "Authorization: Bearer $ROUNDHOUSE_API_KEY" in words
        await page.click("#tab-rerank")
        await page.click("#rerank-form button")
        assert 'headers={"Authorization": ' in await page.text_content("[data-call-of=rerank] [data-python]")


async def test_of_two_recordings_the_last_ones_text_is_displayed(console: Console, browser: Any) -> None:
    late, finished = asyncio.Event(), 0

    async def received_as(route: Any) -> None:
        nonlocal finished
        is_spoken = b"microphone.webm" in route.request.post_data_buffer
        if is_spoken:
            await late.wait()
        await reported({"text": "spoken" if is_spoken else "from the file"})(route)
        finished += is_spoken

    async with console() as displayed, looking(browser, displayed, {"v1/audio": received_as}) as page:
        await page.goto("playground#speech")
        await page.click("#record")
        await page.wait_for_selector("#recording >> text=/recording, \\d+ s/")
        await page.click("#record")
        await page.wait_for_selector("#player:not([hidden])")
        await page.set_input_files("[name=file]", {"name": "a.wav", "mimeType": "audio/wav", "buffer": b"RIFF"})
        await page.click("#speech-form button.first")
        await page.wait_for_selector("#words >> text=from the file")
        late.set()
        while finished < 2:  # the partial and the final text
            await page.wait_for_timeout(20)
        await page.wait_for_timeout(100)
        assert await page.inner_text("#words") == "from the file"
