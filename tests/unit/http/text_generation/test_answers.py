"""Text generation in the dialect of TGI and LoRAX: answers, streams and the tokens in them."""

import json
from typing import Any

import httpx
import pytest

from models.messages import Chunk, ResponseEnd, ResponseStart, Usage
from registry.errors import EngineFailed, RoundhouseError, Unavailable
from runtime.http.text_generation.answers import aligned
from tests.unit.http.fakes import FakeGateway
from tests.unit.http.text_generation.script import (
    END,
    FIRST,
    PLAIN,
    REQUEST,
    TOKEN_DETAILS,
    answers,
    events,
    sent,
    streams,
    token,
)


# --- the answer ----------------------------------------------------------------------------------------------------
async def test_each_path_has_its_own_answer(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    answers(gateway, {"text": " there", "finish_reason": "stop"})
    response = await client.post("/generate", json=REQUEST)
    assert response.json() == {"generated_text": " there"}
    assert response.headers["x-roundhouse-model"] == "chat@rev"
    assert "server-timing" in response.headers
    assert (await client.post("/", json=REQUEST)).json() == [{"generated_text": "hi there"}]
    for path, full, text in (("/generate", True, "hi there"), ("/", False, " there")):
        found = (await client.post(path, json={**REQUEST, "parameters": {"return_full_text": full}})).json()
        assert (found[0] if path == "/" else found)["generated_text"] == text
    assert gateway.outcomes()["chat", "/generate", "ok"] == 2.0


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ({"finish_reason": "length"}, "length"),
        ({"finish_reason": "stop"}, "eos_token"),
        ({"finish_reason": "stop", "stop_reason": 2}, "eos_token"),
        ({"finish_reason": "stop", "stop_reason": "b"}, "stop_sequence"),
    ],
)
async def test_details_have_tokens_prefill_and_the_reason(
    client: httpx.AsyncClient, gateway: FakeGateway, end: dict[str, Any], reason: str
) -> None:
    logprobs = {"tokens": ["h", "i", "a", "<|end|>"], "token_logprobs": [None, -1.0, -0.5, -0.25]}
    choice = {"text": "a", "token_ids": [7, 0], "prompt_token_ids": [3, 4], "logprobs": logprobs, **end}
    answers(gateway, choice)
    response = await client.post("/generate", json={**REQUEST, "parameters": {"decoder_input_details": True}})
    tokens = [
        {"id": 7, "text": "a", "logprob": -0.5, "special": False, "skipped": False},
        {"id": 0, "text": "<|end|>", "logprob": -0.25, "special": True, "skipped": False},
    ]
    prefill = [{"id": 3, "text": "h", "logprob": None}, {"id": 4, "text": "i", "logprob": -1.0}]
    assert response.json() == {
        "generated_text": "a",
        "details": {
            "finish_reason": reason, "generated_tokens": 2, "seed": None, "prompt_tokens": 2, "prefill": prefill,
            "tokens": tokens, "skipped_tokens": 0,
        },
    }  # fmt: skip
    logprobs = {"tokens": ["a", "<|end|>"], "token_logprobs": [-0.5, -0.25]}
    answers(gateway, {**choice, "logprobs": logprobs})
    response = await client.post("/generate", json={**REQUEST, "parameters": {"details": True, "do_sample": True}})
    details = response.json()["details"]
    assert (details["prefill"], details["tokens"]) == ([], tokens)
    assert details["seed"] == sent(gateway)["seed"]  # drawn by the server, so that the answer can be repeated


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"choices": []},
        {"text": "a", "finish_reason": "abort", "token_ids": [], "logprobs": {}},
        {"text": "a", "finish_reason": "stop", "token_ids": [1]},
    ],
)
async def test_an_incomplete_answer_of_the_engine_is_a_500(
    client: httpx.AsyncClient, gateway: FakeGateway, choice: Any
) -> None:
    answers(gateway, choice)
    if not choice or "choices" in choice:
        gateway.links["chat"].script = lambda _: [
            ResponseStart(status=200, content_type="application/json"), Chunk(data=json.dumps(choice).encode()),
            ResponseEnd(usage=Usage()),
        ]  # fmt: skip
    response = await client.post("/generate", json={**REQUEST, "parameters": {"details": True}})
    assert (response.status_code, response.json()["error_type"]) == (500, "generation")


# --- streams -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cut", [0, 7])
@pytest.mark.parametrize("details", [True, False])
async def test_a_stream_has_an_event_for_each_token(
    client: httpx.AsyncClient, gateway: FakeGateway, details: bool, cut: int
) -> None:
    streams(gateway, FIRST, token("\u00e9", 9), END, cut=cut)
    for path in ("/generate_stream", "/generate", "/"):
        body = {**REQUEST, "stream": path != "/generate_stream", "parameters": {"details": details}}
        response = await client.post(path, json=body)
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["x-roundhouse-model"] == "chat@rev"
        assert sent(gateway) == {**PLAIN, **TOKEN_DETAILS, "stream": True}
        found = events(response)
        assert [(e["index"], e["token"]["id"], e["token"]["text"], e["token"]["special"]) for e in found] == [
            (1, 5, "a", False), (2, 9, "\u00e9", False), (3, 0, "<|end|>", True),
        ]  # fmt: skip
        assert [e["generated_text"] for e in found] == [None, None, ("hi" if path == "/" else "") + "a\u00e9"]
        assert [e["details"] for e in found[:2]] == [None, None]
        assert found[2]["details"] == (
            {"finish_reason": "eos_token", "generated_tokens": 3, "seed": None, "input_length": 2, "prompt_tokens": 2}
            if details
            else None
        )


async def test_tokens_that_arrive_together_become_separate_events(
    client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    logprobs = {"tokens": ["b", "c", "<|end|>"], "token_logprobs": [-1.0, -2.0, -3.0]}
    streams(gateway, FIRST, {"text": "bc", "token_ids": [6, 7, 0], "logprobs": logprobs, "finish_reason": "stop"})
    found = events(await client.post("/generate_stream", json=REQUEST))
    assert [(e["index"], e["token"]["text"]) for e in found] == [(1, "a"), (2, "b"), (3, "c"), (4, "<|end|>")]
    assert found[-1]["generated_text"] == "abc"


async def test_an_end_without_a_token_becomes_a_special_token(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    streams(gateway, FIRST, {"text": "", "token_ids": [], "logprobs": {}, "finish_reason": "length"})
    found = events(await client.post("/generate_stream", json=REQUEST))
    assert [e["generated_text"] for e in found] == [None, "a"]
    assert found[-1]["token"]["special"]


@pytest.mark.parametrize(
    ("choices", "end", "kind"),
    [
        ((FIRST,), EngineFailed("it broke"), "generation"),
        ((FIRST, {"error": {"message": "it broke", "code": 500}}), None, "generation"),
        ((FIRST, {"error": {"message": "it broke", "code": 400}}), None, "validation"),
        ((FIRST,), None, "generation"),
        ((FIRST,), Unavailable("not now: it broke"), "overloaded"),
    ],
)
async def test_an_error_in_mid_stream_is_its_last_event(
    client: httpx.AsyncClient, gateway: FakeGateway, choices: Any, end: RoundhouseError | None, kind: str
) -> None:
    streams(gateway, *choices, end=end)
    response = await client.post("/generate_stream", json=REQUEST)
    assert response.status_code == 200
    first, last = events(response)
    assert first["token"]["text"] == "a"
    assert (last.keys(), last["error_type"]) == ({"error", "error_type"}, kind)
    assert "broke" in last["error"] or "complete" in last["error"]
    assert ("chat", "/generate_stream", "ok") not in gateway.outcomes()


@pytest.mark.parametrize("details", [True, False])
async def test_a_stream_that_was_cut_off_is_an_error(
    client: httpx.AsyncClient, gateway: FakeGateway, details: bool
) -> None:
    streams(gateway, FIRST, token("b", 6, finish_reason="abort"))
    response = await client.post("/generate_stream", json={"inputs": "hi", "parameters": {"details": details}})
    *_, last = events(response)
    assert last["error_type"] == "generation"
    assert "before it was complete" in last["error"]


async def test_a_grammar_that_nothing_satisfies_is_the_requests_fault(
    client: httpx.AsyncClient, gateway: FakeGateway
) -> None:
    """vLLM ends such a stream as an internal error."""
    broken = {"error": {"message": "Internal server error", "code": 500}}
    grammar = {"grammar": {"type": "json", "value": {"$ref": "#"}}}
    for parameters, before, status, kind in (
        (grammar, (), 422, "validation"), ({}, (), 500, "generation"), (grammar, (FIRST,), 200, "generation"),
    ):  # fmt: skip
        streams(gateway, *before, broken)
        response = await client.post("/generate_stream", json={**REQUEST, "parameters": parameters})
        last = events(response)[-1] if status == 200 else response.json()
        assert (response.status_code, last["error_type"]) == (status, kind)


# --- tokens --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("names", "text", "expected"),
    [
        ([], "", []),
        (["a"], "a", [("a", False)]),
        (["world"], " world", [(" world", False)]),
        (["<s>"], "", [("<s>", True)]),
        (["\ufffd"], "", [("", False)]),
        (["\ufffd"], "\u00e9", [("\u00e9", False)]),
        (["a", "<s>", "b"], "ab", [("a", False), ("<s>", True), ("b", False)]),
        (["hello", "world"], "hello world", [("hello", False), (" world", False)]),
        (["a", "\ufffd", "\ufffd", "b"], "a\u00e9b", [("a", False), ("", False), ("\u00e9", False), ("b", False)]),
        (["a", "\ufffd", "\ufffd"], "a\u00e9", [("a", False), ("", False), ("\u00e9", False)]),
        (["a", "bcd"], "ab", [("a", False), ("b", False)]),
        (["a", "a", "a"], "aaa", [("a", False)] * 3),
        (["a", "<s>"], "ab", [("ab", False), ("<s>", True)]),
        (["x", "y"], "other", [("other", False), ("y", True)]),
    ],
    ids=str,
)
def test_text_is_assigned_to_its_tokens(names: list[str], text: str, expected: list[tuple[str, bool]]) -> None:
    found = aligned(names, text)
    assert "".join(part for part, special in found if not special) == text
    if text != "other":
        assert found == expected
