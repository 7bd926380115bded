"""The playground in a real browser on the shared server: all four tasks, used as a person uses them."""

from typing import Any

import pytest

from tests.system.console.browsing import SPOKEN, picture
from tests.system.serving import Server

pytestmark = pytest.mark.real


def test_two_adapters_answer_side_by_side(page: Any) -> None:
    page.goto("playground")
    left, right = page.locator("[data-side] select").all()
    left.select_option("starter-chat:uppercase")
    right.select_option("starter-chat:reverse-letters")
    page.fill("[name=text]", "call the lucky bird")
    page.click("text=Ask both")
    page.wait_for_selector("#chat-form button:enabled >> text=Ask both")
    answers = [side.locator(".turns p").last.inner_text() for side in page.locator("[data-side]").all()]
    assert answers == ["CALL THE LUCKY BIRD", "llac eht ykcul drib"]
    digests = page.locator("[data-digest]").all_inner_texts()
    assert all("@sha256:" in digest for digest in digests)
    assert digests[0] != digests[1]
    picture(page, "playground")
    call = page.locator("[data-call-of=chat-left]")
    call.locator("summary").click()
    assert "curl http" in call.inner_text()
    assert "from openai import OpenAI" in call.inner_text()
    assert "x-roundhouse-adapter: uppercase@" in call.inner_text()


def test_embeddings_rankings_and_spoken_sentences(page: Any, server: Server) -> None:
    for model in ("starter-embed", "starter-rerank", "starter-speech"):
        server.http.post(f"/v1/models/{model}/load").raise_for_status()  # slow loads take longer than a page waits
    page.goto("playground")
    page.click("#tab-embed")
    page.click("#embed-form button[type=submit]")
    page.wait_for_selector("#matrix td")
    similarities = [float(text) for text in page.locator("#matrix td").all_inner_texts()]
    assert len(similarities) == 16
    assert similarities[1] > similarities[2], "a kitchen is more like a room with an oven than like the stock market"
    page.keyboard.press("Escape")
    page.click("#tab-rerank")
    page.click("#rerank-form button[type=submit]")
    page.wait_for_selector("#ranks li")
    assert "file" in page.locator("#ranks li").first.inner_text()
    page.click("#tab-speech")
    page.click("text=Use the microphone")
    spoken = SPOKEN.with_suffix(".txt").read_text().split()
    page.wait_for_function(
        "words => words.some((word) => document.getElementById('words').innerText.includes(word))",
        arg=[word for word in spoken if len(word) > 4],
    )  # fmt: skip
    page.click("text=Stop and transcribe")
    page.wait_for_selector("#player:not([hidden])")
    page.wait_for_selector("#words span")
    page.set_input_files("[name=file]", SPOKEN)
    page.click("#speech-form button[type=submit]")
    page.wait_for_function("text => document.getElementById('words').innerText.trim() === text", arg=" ".join(spoken))
    page.evaluate("document.getElementById('player').loop = true")  # a busy browser may miss words the first time
    page.evaluate("document.getElementById('player').play()")
    page.wait_for_selector("#words .lit")
