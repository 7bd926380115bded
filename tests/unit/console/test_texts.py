"""Stored texts of requests: what counts as one, which teams store them, who sees them, and the bounds."""

import json
from typing import Any

import pytest

from console.texts import LONGEST, MAX_CHARACTERS, MAX_TRANSCRIPTS, Transcript, TranscriptStore
from models.messages import Chunk, ResponseEnd, ResponseStart, Usage
from tenants.caller import Scope
from tests.unit.console.conftest import HTML, Console, key, sign_in

TALE = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hello"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        ({"messages": TALE}, "[system]\nBe brief.\n[user]\nHello"),
        ({"system": "Be brief.", "messages": TALE[1:]}, "Be brief.\n[user]\nHello"),
        ({"prompt": ["one", "two"]}, "one\ntwo"),
        ({"prompt": [1, 2, 3]}, ""),
        ({"instructions": "Be brief.", "input": [{"role": "user", "content": "Hello"}]}, "Be brief.\n[user]\nHello"),
        ({"inputs": "Hello", "parameters": {"stop": ["x"]}}, "Hello"),
        ({"query": "fruit", "documents": ["an apple", {"text": "a train"}]}, "fruit\nan apple\na train"),
        ([1], ""),
    ],
)
def test_the_text_of_a_request_is_extracted(body: Any, prompt: str) -> None:
    assert Transcript(json.dumps(body).encode()).prompt == prompt


def sse(*events: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def lines(*events: Any) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


STREAM, NDJSON = "text/event-stream; charset=utf-8", "application/x-ndjson"


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("application/json", json.dumps({"id": "x", "choices": [{"message": {"content": "Good day"}}]}).encode()),
        ("application/json", json.dumps({"choices": [{"text": "Good day"}]}).encode()),
        ("application/json", json.dumps({"output": [{"content": [{"text": "Good day"}]}]}).encode()),
        ("application/json", json.dumps({"content": [{"type": "text", "text": "Good day"}]}).encode()),
        ("application/json", json.dumps({"generated_text": "Good day", "details": {"seed": 1}}).encode()),
        ("application/json", json.dumps({"text": "Good day", "segments": [{"text": "Good day"}]}).encode()),
        ("text/plain; charset=utf-8", b"Good day"),
        (STREAM, sse({"choices": [{"delta": {"role": "assistant", "content": "Good"}}]},
                     {"choices": [{"delta": {"content": " day"}}]})),
        (STREAM, sse({"type": "response.output_text.delta", "delta": "Good"},
                     {"type": "response.output_text.delta", "delta": " day"},
                     {"type": "response.output_text.done", "text": "Good day"},
                     {"type": "response.completed", "response": {"output": [{"content": [{"text": "Good day"}]}]}})),
        (STREAM, sse({"type": "transcript.text.delta", "delta": "Good"},
                     {"type": "transcript.text.delta", "delta": " day"},
                     {"type": "transcript.text.done", "text": "Good day"})),
        (STREAM, sse({"type": "message_start", "message": {"content": []}},
                     {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Good day"}})),
        (STREAM, sse({"token": {"text": "Good"}}, {"token": {"text": " day"}, "generated_text": "Good day"})),
        (NDJSON, lines({"message": {"content": "Good"}}, {"message": {"content": " day"}, "done": True})),
        (NDJSON, lines({"response": "Good"}, {"response": " day", "done": True})),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cut", [1, 7, 1 << 16])
def test_the_text_of_an_answer_is_extracted_from_any_format(kind: str, data: bytes, cut: int) -> None:
    texts = Transcript()
    texts.begin(kind)
    for start in range(0, len(data), cut):
        texts.feed(data[start : start + cut])
    texts.end()
    assert texts.answer == "Good day"


def test_failed_attempts_and_bytes_before_a_head_are_no_answer() -> None:
    texts = Transcript()
    texts.feed(b"nothing")
    texts.begin("text/plain")
    texts.feed(b"the first")
    texts.begin("text/plain")
    texts.feed(b"the second")
    texts.end()
    assert texts.answer == "the second"


def test_stored_texts_are_bounded() -> None:
    texts = Transcript(json.dumps({"prompt": "a" * 3 * MAX_CHARACTERS}).encode())
    assert texts.prompt == "a" * MAX_CHARACTERS + " …"
    texts.begin(STREAM)
    for _ in range(3):
        texts.feed(sse({"choices": [{"text": "b" * MAX_CHARACTERS}]}))
    assert texts.answer == "b" * MAX_CHARACTERS + " …"
    whole = Transcript(b"x" * (LONGEST + 1))
    whole.begin("application/json")
    for _ in range(3):
        whole.feed(b"y" * LONGEST)
    whole.end()
    assert (whole.prompt, whole.answer) == ("", "")
    store = TranscriptStore()
    store.set_teams(["ours"])
    for number in range(MAX_TRANSCRIPTS + 1):
        store.add("ours", f"r{number}", 1.0, texts)
    assert (store.find("ours", "r0", 1.0), store.find("ours", f"r{MAX_TRANSCRIPTS}", 1.0)) == (None, texts)


def test_texts_are_stored_only_for_teams_that_want_it_and_while_they_do() -> None:
    store, texts = TranscriptStore(), Transcript()
    store.add("ours", "r", 1.0, texts)
    assert not store.is_enabled("ours")
    store.set_teams(["ours", "theirs"])
    for team in ("ours", "theirs"):
        assert store.find(team, "r", 1.0) is None
        store.add(team, "r", 1.0, texts)
    store.set_teams(["theirs"])
    assert (store.find("ours", "r", 1.0), store.find("theirs", "r", 1.0)) == (None, texts)


async def test_a_teams_texts_are_visible_to_its_keys_and_to_admins(console: Console) -> None:
    ours, theirs, admin = key("ours", Scope.INFER), key("theirs", Scope.INFER), key("ops", Scope.ADMIN)
    async with console(ours, theirs, admin) as displayed:
        texts = displayed.gateway.gateway.services.console.texts
        texts.set_teams(["ours"])
        stated = json.dumps({"choices": [{"message": {"content": "<i>and its answer</i>"}}]}).encode()
        events = [ResponseStart(200, "application/json"), Chunk(stated), ResponseEnd(usage=Usage())]
        displayed.gateway.links["chat"].script = lambda _: events
        body = {"model": "chat", "messages": [{"role": "user", "content": "<b>the secret</b>"}]}
        for text, id_ in ((ours[0], "kept"), (theirs[0], "unkept")):
            headers = {"Authorization": f"Bearer {text}", "x-request-id": id_}
            assert (await displayed.client.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
        [(team, id_, at)] = texts._transcripts
        assert (team, id_) == ("ours", "kept")
        where = f"/console/requests?part=texts&team=ours&id=kept&at={at}"
        for text, sees in ((ours[0], True), (admin[0], True), (theirs[0], False)):
            await sign_in(displayed, text)
            answer = await displayed.client.get(where, headers=HTML)
            assert ("&lt;b&gt;the secret&lt;/b&gt;" in answer.text) is sees
            assert ("&lt;i&gt;and its answer&lt;/i&gt;" in answer.text) is sees
            assert "<b>the secret" not in answer.text
            assert ("<summary>texts" in await displayed.page("requests")) is sees
        reported = await displayed.client.get("/v1/requests/kept", headers={"Authorization": f"Bearer {ours[0]}"})
        assert "secret" not in reported.text, "only the console displays them"
        assert (await displayed.client.get(where.partition("&at")[0], headers=HTML)).status_code == 400
        texts.set_teams([])
        assert "no longer stored" in (await displayed.client.get(where, headers=HTML)).text
