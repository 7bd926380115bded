"""Text generation as TGI and LoRAX have it: the translation both ways, what is refused, streams and their ends."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from models.messages import Chunk, Event, Finished, HttpCall, Started, Usage
from registry.errors import EngineFailed, QueueFull, RoundhouseError, Unavailable
from runtime.endpoints.generate_answers import aligned
from runtime.endpoints.generate_bodies import GenerateParameters
from tests.unit.endpoints.fakes import FakeGateway, Wire, application, left, recipe

PATHS = ("/generate", "/generate_stream", "/")
ASKED = {"inputs": "hi"}
PLAIN: dict[str, Any] = {
    "prompt": "hi", "model": "chat", "stream": False, "max_tokens": 1024, "temperature": 0.0, "top_k": 0, "top_p": 1.0,
    "min_p": 0.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "stop": [],
    "include_stop_str_in_output": True, "ignore_eos": False,
}  # fmt: skip
TOLD = {"logprobs": 0, "return_token_ids": True, "echo": False}
SAMPLED = {**PLAIN, "temperature": 1.0}


def answers(gateway: FakeGateway, choice: dict[str, Any], status: int = 200) -> None:
    body = choice if "error" in choice else {"choices": [choice]}
    events: Sequence[Event] = [
        Started(status=status, content_type="application/json"), Chunk(data=json.dumps(body).encode()),
        Finished(usage=Usage(prompt_tokens=2, completion_tokens=3)),
    ]  # fmt: skip
    gateway.links["chat"].script = lambda _: events


def token(text: str, id_: int, name: str = "", **more: Any) -> dict[str, Any]:
    """A choice of vLLM's stream with one token."""
    return {
        "text": text, "token_ids": [id_], "logprobs": {"tokens": [name or text], "token_logprobs": [-0.5]}, **more,
    }  # fmt: skip


FIRST = token("a", 5, prompt_token_ids=[1, 2])
END = token("", 0, "<|end|>", finish_reason="stop")


def streams(gateway: FakeGateway, *choices: dict[str, Any], end: RoundhouseError | None = None, cut: int = 0) -> None:
    """vLLM's stream, in parts of `cut` bytes if that is not 0."""
    told = b"".join(b"data: %s\n\n" % json.dumps({"choices": [c]} if "error" not in c else c).encode() for c in choices)
    told += b"" if end else b"data: [DONE]\n\n"
    parts = [told[at : at + cut] for at in range(0, len(told), cut)] if cut else [told]
    events: list[Event | RoundhouseError] = [Started(status=200, content_type="text/event-stream")]
    events += [Chunk(data=part) for part in parts]
    gateway.links["chat"].script = lambda _: [*events, end or Finished(usage=Usage())]


def sent(gateway: FakeGateway) -> dict[str, Any]:
    request = gateway.links["chat"].requests[-1]
    assert isinstance(request, HttpCall)
    assert request.path == "/v1/completions"
    found: dict[str, Any] = json.loads(request.body)
    return found


def events(response: httpx.Response) -> list[Any]:
    lines = [line for line in response.text.split("\n") if line]
    assert all(line.startswith("data:") for line in lines)
    return [json.loads(line[5:]) for line in lines]


# --- the request ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ({}, PLAIN),
        (None, PLAIN),
        (dict.fromkeys(GenerateParameters.__struct_fields__), PLAIN),
        ({"unknown": 3}, PLAIN),
        ({"watermark": False, "best_of": 1, "top_n_tokens": 0, "apply_chat_template": False, "api_token": "t"}, PLAIN),
        ({"temperature": 1.0, "top_p": 1.0, "typical_p": 1.0, "top_k": 0, "do_sample": False}, PLAIN),
        ({"temperature": 0, "do_sample": True, "typical_p": 0.5, "seed": 3}, PLAIN),
        ({"max_new_tokens": 7, "ignore_eos_token": True}, {**PLAIN, "max_tokens": 7, "ignore_eos": True}),
        ({"stop": ["a"], "stop_sequences": ["b"]}, {**PLAIN, "stop": ["a", "b"]}),
        (
            {"repetition_penalty": 1.5, "frequency_penalty": -1, "seed": 3},
            {**PLAIN, "repetition_penalty": 1.5, "frequency_penalty": -1.0},
        ),
        ({"do_sample": True}, SAMPLED),
        ({"top_k": 5}, {**SAMPLED, "top_k": 5}),
        ({"top_p": 0.5, "seed": 2**64 - 1}, {**SAMPLED, "top_p": 0.5, "seed": 2**63 - 1}),
        ({"temperature": 0.5, "seed": 3}, {**SAMPLED, "temperature": 0.5, "seed": 3}),
        (
            {"typical_p": 0.9, "top_p": 0.8, "top_k": 4},
            {**SAMPLED, "vllm_xargs": {"typical_p": 0.9, "typical_top_p": 0.8, "typical_top_k": 4}},
        ),
        ({"truncate": 4}, {**PLAIN, "truncate_prompt_tokens": 4, "truncation_side": "left"}),
        ({"grammar": {"type": "regex", "value": "a+"}}, {**PLAIN, "structured_outputs": {"regex": "a+"}}),
        (
            {"grammar": {"type": "json", "value": {"enum": [1]}}},
            {**PLAIN, "structured_outputs": {"json": {"enum": [1]}}},
        ),
        ({"grammar": {"type": "json", "value": "{}"}}, {**PLAIN, "structured_outputs": {"json": {}}}),
        (
            {"grammar": {"type": "json_schema", "value": {"name": "n", "schema": {"enum": [1]}}}},
            {**PLAIN, "structured_outputs": {"json": {"enum": [1]}}},
        ),
        ({"response_format": {"type": "json_object"}}, {**PLAIN, "structured_outputs": {"json_object": True}}),
        (
            {"response_format": {"type": "json_object", "schema": {"enum": [1]}}},
            {**PLAIN, "structured_outputs": {"json": {"enum": [1]}}},
        ),
        ({"details": True}, {**PLAIN, **TOLD}),
        ({"decoder_input_details": True}, {**PLAIN, **TOLD, "echo": True}),
    ],
    ids=str,
)  # fmt: skip
async def test_a_request_as_vllm_gets_it(
    client: httpx.AsyncClient, gateway: FakeGateway, parameters: Any, wanted: dict[str, Any]
) -> None:
    answers(gateway, {**END, "prompt_token_ids": []})
    response = await client.post("/generate", json={**ASKED, "parameters": parameters})
    assert response.status_code == 200, response.text
    assert sent(gateway) == wanted


async def test_no_more_tokens_are_asked_for_than_the_context_has(tmp_path: Path) -> None:
    short = recipe("chat", "chat").model_copy(update={"context_length": 64})
    gateway = FakeGateway(tmp_path, [short])
    answers(gateway, END)
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.post("/generate", json=ASKED)).status_code == 200
    assert sent(gateway)["max_tokens"] == 64


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"watermark": True}, "watermark"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"top_n_tokens": 1}, "logprobs"),
        ({"return_k_alternatives": 2}, "logprobs"),
        ({"merged_adapters": {"ids": ["a"]}}, "merge them"),
        ({"apply_chat_template": True}, "/v1/chat/completions"),
        ({"adapter_source": "s3"}, "POST /v1/adapters"),
        ({"typical_p": 0}, "typical_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"temperature": -1}, "temperature"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"stop": "x"}, "stop"),
        ({"grammar": {"type": "regex", "value": {}}}, "string"),
        ({"grammar": {"type": "json", "value": "{"}}, "not valid JSON"),
        ({"grammar": {"type": "json", "value": "[" * 9999 + "]" * 9999}}, "not valid JSON"),
        ({"grammar": {"type": "json", "value": "3"}}, "object"),
        ({"grammar": {"type": "json_schema", "value": {"name": "n"}}}, "object"),
        ({"grammar": {"type": "bnf", "value": "x"}}, "grammar.type"),
        ({"grammar": {"type": "json", "value": {}}, "response_format": {"type": "json_object"}}, "not both"),
    ],
    ids=str,
)
async def test_what_cannot_be_honoured_is_refused(
    client: httpx.AsyncClient, gateway: FakeGateway, parameters: Any, words: str
) -> None:
    for path in PATHS:
        response = await client.post(path, json={**ASKED, "parameters": parameters})
        assert response.status_code == 422
        assert response.json().keys() == {"error", "error_type"}
        assert response.json()["error_type"] == "validation"
        assert words in response.json()["error"]
    assert gateway.links["chat"].requests == []


async def test_bodies_that_cannot_be_read(client: httpx.AsyncClient) -> None:
    for body, status in ((b"{", 400), (b"\xff", 400), (b"[]", 422), (b"{}", 422), (b'{"inputs":""}', 422)):
        response = await client.post("/", content=body)
        assert (response.status_code, response.json()["error_type"]) == (status, "validation")
    response = await client.post("/", content=b'{"inputs":' + b"[" * 9999 + b"]" * 9999 + b"}")
    assert response.status_code in (400, 422)


async def test_a_body_over_the_limit(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path, max_json=100)
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.post("/generate", json={"inputs": "x" * 200})
    assert (response.status_code, response.json()["error_type"]) == (413, "validation")


# --- the model -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("query", "body", "status", "words"),
    [
        ("", {}, 200, ""),
        ("?model=chat", {}, 200, ""),
        ("?model=nobody", {"model": "chat"}, 200, ""),
        ("?model=nobody", {}, 404, "no model or adapter 'nobody'"),
        ("?model=embed", {}, 422, "made for embed"),
        ("", {"parameters": {"adapter_id": ""}}, 200, ""),
        ("", {"parameters": {"adapter_id": "nobody", "adapter_source": "hub"}}, 404, "no adapter 'nobody' on model"),
        ("?model=embed", {"parameters": {"adapter_id": "nobody"}}, 422, "made for embed"),
        ("", {"parameters": {"adapter_id": 3}}, 422, "adapter_id"),
    ],
)  # fmt: skip
async def test_which_model_answers(
    client: httpx.AsyncClient, gateway: FakeGateway, query: str, body: Any, status: int, words: str
) -> None:
    answers(gateway, END)
    response = await client.post(f"/generate{query}", json={**ASKED, **body})
    assert response.status_code == status, response.text
    assert words in response.json().get("error", "")


async def test_several_models_have_no_default(tmp_path: Path) -> None:
    gateway = FakeGateway(tmp_path, [recipe("chat", "chat"), recipe("other", "chat")])
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for adapter, status, words in (
            (None, 422, "There are: chat, other"),
            ("nobody", 404, "no model or adapter 'nobody'"),
            ("chat", 404, "is a model"),
        ):
            response = await client.post("/generate", json={**ASKED, "parameters": {"adapter_id": adapter}})
            assert response.status_code == status
            assert words in response.json()["error"]


# --- the answer ----------------------------------------------------------------------------------------------------
async def test_an_answer_as_each_path_gives_it(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    answers(gateway, {"text": " there", "finish_reason": "stop"})
    response = await client.post("/generate", json=ASKED)
    assert response.json() == {"generated_text": " there"}
    assert response.headers["x-roundhouse-model"] == "chat@rev"
    assert "server-timing" in response.headers
    assert (await client.post("/", json=ASKED)).json() == [{"generated_text": "hi there"}]
    for path, full, text in (("/generate", True, "hi there"), ("/", False, " there")):
        found = (await client.post(path, json={**ASKED, "parameters": {"return_full_text": full}})).json()
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
async def test_details(client: httpx.AsyncClient, gateway: FakeGateway, end: dict[str, Any], reason: str) -> None:
    logprobs = {"tokens": ["h", "i", "a", "<|end|>"], "token_logprobs": [None, -1.0, -0.5, -0.25]}
    choice = {"text": "a", "token_ids": [7, 0], "prompt_token_ids": [3, 4], "logprobs": logprobs, **end}
    answers(gateway, choice)
    response = await client.post("/generate", json={**ASKED, "parameters": {"decoder_input_details": True}})
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
    response = await client.post("/generate", json={**ASKED, "parameters": {"details": True, "do_sample": True}})
    details = response.json()["details"]
    assert (details["prefill"], details["tokens"]) == ([], tokens)
    assert details["seed"] == sent(gateway)["seed"]  # made up, so that the answer can be had again


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"choices": []},
        {"text": "a", "finish_reason": "abort", "token_ids": [], "logprobs": {}},
        {"text": "a", "finish_reason": "stop", "token_ids": [1]},
    ],
)
async def test_an_engines_answer_that_is_none(client: httpx.AsyncClient, gateway: FakeGateway, choice: Any) -> None:
    answers(gateway, choice)
    if not choice or "choices" in choice:
        gateway.links["chat"].script = lambda _: [
            Started(status=200, content_type="application/json"), Chunk(data=json.dumps(choice).encode()),
            Finished(usage=Usage()),
        ]  # fmt: skip
    response = await client.post("/generate", json={**ASKED, "parameters": {"details": True}})
    assert (response.status_code, response.json()["error_type"]) == (500, "generation")


# --- streams -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cut", [0, 7])
@pytest.mark.parametrize("details", [True, False])
async def test_a_stream(client: httpx.AsyncClient, gateway: FakeGateway, details: bool, cut: int) -> None:
    streams(gateway, FIRST, token("\u00e9", 9), END, cut=cut)
    for path in ("/generate_stream", "/generate", "/"):
        body = {**ASKED, "stream": path != "/generate_stream", "parameters": {"details": details}}
        response = await client.post(path, json=body)
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["x-roundhouse-model"] == "chat@rev"
        assert sent(gateway) == {**PLAIN, **TOLD, "stream": True}
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


async def test_tokens_that_came_together_are_told_apart(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    logprobs = {"tokens": ["b", "c", "<|end|>"], "token_logprobs": [-1.0, -2.0, -3.0]}
    streams(gateway, FIRST, {"text": "bc", "token_ids": [6, 7, 0], "logprobs": logprobs, "finish_reason": "stop"})
    found = events(await client.post("/generate_stream", json=ASKED))
    assert [(e["index"], e["token"]["text"]) for e in found] == [(1, "a"), (2, "b"), (3, "c"), (4, "<|end|>")]
    assert found[-1]["generated_text"] == "abc"


async def test_an_end_that_comes_apart_from_the_last_token(client: httpx.AsyncClient, gateway: FakeGateway) -> None:
    streams(gateway, FIRST, {"text": "", "token_ids": [], "logprobs": {}, "finish_reason": "length"})
    found = events(await client.post("/generate_stream", json=ASKED))
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
    response = await client.post("/generate_stream", json=ASKED)
    assert response.status_code == 200
    first, last = events(response)
    assert first["token"]["text"] == "a"
    assert (last.keys(), last["error_type"]) == ({"error", "error_type"}, kind)
    assert "broke" in last["error"] or "complete" in last["error"]
    assert ("chat", "/generate_stream", "ok") not in gateway.outcomes()


# --- errors --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", PATHS)
async def test_vllms_refusals_are_in_this_dialect(client: httpx.AsyncClient, gateway: FakeGateway, path: str) -> None:
    told = "max_tokens=9 cannot be greater than max_model_len=4. `prompt` and the prompt are too long"
    answers(gateway, {"error": {"message": told, "type": "BadRequestError", "code": 400}}, 400)
    response = await client.post(path, json=ASKED)
    text = "max_new_tokens=9 cannot be greater than max_model_len=4. `inputs` and the prompt are too long"
    assert (response.status_code, response.json()) == (422, {"error": text, "error_type": "validation"})
    assert gateway.outcomes() == {("chat", path, "400"): 1.0}
    gateway.links["chat"].script = lambda _: [
        Started(status=400, content_type="text/plain"), Chunk(data=b"no"), Finished(usage=Usage()),
    ]  # fmt: skip
    response = await client.post(path, json=ASKED)
    assert (response.status_code, response.json()["error_type"]) == (422, "validation")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (QueueFull("full", retry_after=3), "overloaded"),
        (Unavailable("later", retry_after=3), "overloaded"),
        (EngineFailed("broken"), "generation"),
    ],
)
async def test_errors_before_the_engine(
    client: httpx.AsyncClient, gateway: FakeGateway, path: str, error: RoundhouseError, kind: str
) -> None:
    gateway.refuse = error
    response = await client.post(path, json=ASKED)
    assert (response.status_code, response.json()) == (error.status, {"error": error.message, "error_type": kind})
    assert response.headers.get("retry-after") == ("3" if error.retry_after else None)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_stops_the_work(app: FastAPI, gateway: FakeGateway, stream: bool) -> None:
    streams(gateway, FIRST)
    wire = Wire(app, "/", [json.dumps({**ASKED, "stream": stream}).encode()])
    await left(wire, gateway, "chat")
    assert gateway.outcomes() == {("chat", "/", "cancelled"): 1.0}


# --- tokens --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("names", "text", "wanted"),
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
        (["x", "y"], "other", [("other", False), ("y", True)]),
    ],
    ids=str,
)
def test_what_each_token_brought(names: list[str], text: str, wanted: list[tuple[str, bool]]) -> None:
    found = aligned(names, text)
    assert "".join(part for part, special in found if not special) == text
    if text != "other":
        assert found == wanted
