"""Ollama's dialect: requests as sent to vLLM, answers as Ollama writes them, and refusals."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest

from models.messages import Chunk, Event, HttpCall, ResponseEnd, ResponseStart, Usage
from registry.errors import BadRequest, EngineFailed, RoundhouseError
from registry.files.context import Ability, abilities_of
from registry.recipes.definition import EngineSpec, Recipe, Task
from runtime.gateway.routing.dispatcher import RouterCardView
from runtime.http.dialect import Head
from runtime.http.ollama import models
from runtime.http.ollama.answers import Timings, Writer
from runtime.http.ollama.bodies import OllamaChatBody, OllamaMessage
from runtime.http.ollama.endpoints import ENDPOINTS
from runtime.http.ollama.translation import chat
from runtime.http.ollama.views import OllamaModel, model_entry, router_info
from tests.unit.http.fakes import FakeGateway, application, recipe

MESSAGES = [{"role": "user", "content": "hi"}]
REQUEST = {"model": "chat", "messages": MESSAGES}
SENT = {"model": "chat", "messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}}
SCHEMA = {"type": "object"}
USAGE = {"prompt_tokens": 4, "completion_tokens": 2}
CALL = {"function": {"name": "set_fan", "arguments": {"speed": 2}}}


def able(folder: Path, **flags: Any) -> FakeGateway:
    """Return a gateway whose chat model has these flags, and a config.json of a model with vision."""
    (folder / "config.json").write_text('{"vision_config": {}}')
    chat_recipe = recipe("chat", "chat")
    return FakeGateway(folder, [chat_recipe.model_copy(update={"engine": EngineSpec(name="vllm", flags=flags)})])


def streams(
    gateway: FakeGateway, *choices: dict[str, Any], end: RoundhouseError | None = None, warning: str = ""
) -> None:
    lines = b"".join(b"data: %s\n\n" % json.dumps({"choices": [choice]}).encode() for choice in choices)
    lines += b"data: %s\n\ndata: [DONE]\n\n" % json.dumps({"choices": [], "usage": USAGE}).encode()
    events: list[Event | RoundhouseError] = [ResponseStart(200, "text/event-stream", warning)]
    gateway.links["chat"].script = lambda _: [*events, Chunk(data=lines), end or ResponseEnd(usage=Usage())]


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"delta": fields, "finish_reason": finish}


def call(at: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    return delta(tool_calls=[{"index": at, "function": {"name": name, "arguments": arguments}}])


async def post(gateway: FakeGateway, path: str, body: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app=application(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.post(path, json=body)


def lines(response: httpx.Response) -> list[Any]:
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def sent(gateway: FakeGateway, path: str = "/v1/chat/completions") -> dict[str, Any]:
    request = gateway.links["chat"].requests[-1]
    assert isinstance(request, HttpCall)
    assert request.path == path
    found: dict[str, Any] = json.loads(request.body)
    return found


# --- the request ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, {}),
        ({"model": "chat:latest"}, {}),
        ({"stream": None, "format": "", "options": None, "keep_alive": "5m", "unknown": 1}, {}),
        ({"options": {"num_predict": 5, "stop": ["a"]}}, {"max_tokens": 5, "stop": ["a"]}),
        ({"options": {"num_predict": -1, "seed": -1, "num_gpu": 1, "temperature": None}}, {}),
        ({"options": {"top_p": 0, "top_k": 40}}, {"top_k": 1}),
        ({"options": {"top_k": -1}}, {"top_k": 0}),
        (
            {"options": {"temperature": 0.5, "top_k": 4, "top_p": 0.5, "min_p": 0.1, "seed": 3, "repeat_penalty": 1.1}},
            {"temperature": 0.5, "top_k": 4, "top_p": 0.5, "min_p": 0.1, "seed": 3, "repetition_penalty": 1.1},
        ),
        ({"options": {"typical_p": 1, "top_k": 4}}, {"top_k": 4}),
        ({"format": "json"}, {"response_format": {"type": "json_object"}}),
        (
            {"format": SCHEMA},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "format", "schema": {"type": "object"}},
                }
            },
        ),
        ({"think": False}, {"reasoning_effort": "none"}),
        ({"think": True}, {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}),
        ({"think": "low"}, {"reasoning_effort": "low"}),
        ({"think": "max"}, {"reasoning_effort": "max"}),
        ({"tools": [{"type": "function"}]}, {"tools": [{"type": "function"}]}),
        ({"logprobs": True, "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
    ],
    ids=str,
)
async def test_a_chat_is_translated_for_vllm(tmp_path: Path, more: Any, expected: Any) -> None:
    gateway = able(tmp_path, tool_call_parser="hermes", reasoning_parser="qwen3")
    streams(gateway, delta(content="a", finish="stop"))
    response = await post(gateway, "/api/chat", {**REQUEST, **more})
    assert response.status_code == 200, response.text
    assert sent(gateway) == {**SENT, **expected}


@pytest.mark.parametrize("value", [0, 300, -1, 2.5, "", "0", "0s", "5m", "1h30m", "-1m", "-1", "300", "+.5h", "10ms"])
async def test_a_keep_alive_is_a_duration(tmp_path: Path, value: Any) -> None:
    gateway = able(tmp_path)
    streams(gateway, delta(content="a", finish="stop"))
    assert (await post(gateway, "/api/chat", {**REQUEST, "keep_alive": value})).status_code == 200


@pytest.mark.parametrize("value", ["5 minutes", "forever", "5x", "m", "-", "5m5", "1e3", "٣s", True, [5]])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/embed", "/api/embeddings"])
async def test_a_keep_alive_that_is_no_duration_is_refused(gateway: FakeGateway, path: str, value: Any) -> None:
    body = {"model": "chat", "messages": MESSAGES, "prompt": "a", "input": "a", "keep_alive": value}
    response = await post(gateway, path, body)
    assert response.status_code == 400
    assert "keep_alive" in response.json()["error"]
    assert not isinstance(value, str) or "5m" in response.json()["error"]


@pytest.mark.parametrize(
    ("last", "continues"),
    [
        ({"role": "assistant", "content": "HELLO"}, True),
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant", "content": "a", "tool_calls": [CALL]}, False),
        ({"role": "user", "content": "b"}, False),
    ],
)
async def test_a_last_message_of_the_assistant_is_continued(tmp_path: Path, last: Any, continues: bool) -> None:
    gateway = able(tmp_path)
    streams(gateway, delta(content=" WORLD", finish="stop"))
    assert (await post(gateway, "/api/chat", {**REQUEST, "messages": [*MESSAGES, last]})).status_code == 200
    fields = {"add_generation_prompt": False, "continue_final_message": True}
    assert fields.items() <= sent(gateway).items() if continues else not fields.keys() & sent(gateway).keys()


async def test_the_warning_of_a_short_context_is_about_the_target_that_answers() -> None:
    """A router's fall-back may have a longer context than the target that failed."""
    path = {endpoint.path: endpoint for endpoint in ENDPOINTS}["/api/chat"]
    parsed = path.parse(json.dumps({**REQUEST, "options": {"num_ctx": 1000, "mirostat": 1}}).encode(), {})
    target: Any = SimpleNamespace(model="chat", abilities=frozenset(Ability))

    async def events() -> AsyncIterator[Event]:
        yield ResponseStart(200, "text/event-stream")
        yield Chunk(data=b"data: %s\n\n" % json.dumps({"choices": [delta(content="a", finish="stop")]}).encode())

    reported = []
    for context in (None, 400, 500, 2000):
        parsed.calls(context)
        head = await anext(parsed.render(target, events()))
        assert isinstance(head, Head)
        reported.append(head.headers.get("X-Roundhouse-Warning"))
    assert parsed.left_out == ["options.mirostat"]
    assert reported == [None, *(f"num_ctx: the model's context has {context} tokens" for context in (400, 500)), None]


async def test_odd_names_of_options_do_not_break_the_warning_header(gateway: FakeGateway) -> None:
    streams(gateway, delta(content="a", finish="stop"))
    for odd in ("\u0100", "a\r\nSet-Cookie: x", "x" * 5000):
        response = await post(gateway, "/api/chat", {**REQUEST, "options": {odd: 1, "mirostat": 1}})
        assert response.status_code == 200
        reported = response.headers["X-Roundhouse-Warning"]
        assert "options.mirostat" in reported
        assert "a field of no plain name" in reported


def test_line_breaks_in_the_base64_of_an_image_are_read_over_as_in_ollama() -> None:
    body = OllamaChatBody(model="chat", messages=[OllamaMessage(role="user", images=["aG\r\nk=\n"])])
    (message,) = chat(body)["messages"]
    assert message["content"] == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("see", [0, 1, "see"]),
        ("first [img], then [img].", ["first ", 0, ", then ", 1, "."]),
        ("this: [img]", [1, "this: ", 0]),
        ("[img][img] and [img]", [0, 1, " and [img]"]),
        ("", [0, 1]),
    ],
)
def test_images_precede_the_text_unless_it_says_where_they_are(text: str, parts: list[str | int]) -> None:
    """As in `chatPrompt` of Ollama's server/prompt.go."""
    message = OllamaMessage(role="user", content=text, images=["AAAA", "BBBB"])
    (translated,) = chat(OllamaChatBody(model="chat", messages=[message]))["messages"]
    urls = ["data:image/png;base64,AAAA", "data:image/png;base64,BBBB"]
    got = [part.get("text") or urls.index(part["image_url"]["url"]) for part in translated["content"]]
    assert got == parts


async def test_messages_are_translated_for_vllm(tmp_path: Path) -> None:
    gateway = able(tmp_path, tool_call_parser="hermes")
    streams(gateway, delta(content="a", finish="stop"))
    stated = [
        {"role": "user", "content": "look", "images": ["aGk="]},
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [CALL, {**CALL, "id": "own"}]},
        {"role": "tool", "content": "one", "tool_name": "set_fan"},
        {"role": "tool", "content": "two"},
    ]
    assert (await post(gateway, "/api/chat", {"model": "chat", "messages": stated})).status_code == 200
    user, assistant, one, two = sent(gateway)["messages"]
    assert user["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "text", "text": "look"},
    ]
    assert assistant["reasoning"] == "hm"
    assert [each["id"] for each in assistant["tool_calls"]] == ["call_1_0", "own"]
    assert json.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"speed": 2}
    assert [one["tool_call_id"], two["tool_call_id"]] == ["call_1_0", "own"]


def test_finding_the_calls_of_results_takes_linear_time() -> None:
    """Each result was compared with all calls, so a body of 360 kB delayed every stream by 6 s."""
    compared = 0

    class Name(str):
        """Counts its comparisons."""

        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)  # type: ignore[no-any-return]

    calls, results = [{"function": {"name": "f"}}] * 1000, [{"role": "tool", "tool_name": "g"}] * 1000
    stated = [{"role": "assistant", "tool_calls": calls}, *results]
    post = msgspec.convert({"model": "m", "messages": stated}, OllamaChatBody)
    for message in post.messages[1:]:
        message.tool_name = Name("g")
    assert chat(post)["messages"][-1]["tool_call_id"] == "call_g"
    assert compared <= 3 * len(results)


async def test_a_generation_is_translated_for_vllm(gateway: FakeGateway) -> None:
    streams(gateway, {"text": "a", "delta": {"content": "a"}, "finish_reason": "stop"})
    await post(gateway, "/api/generate", {"model": "chat", "prompt": "hi", "system": "brief"})
    assert sent(gateway) == {**SENT, "messages": [{"role": "system", "content": "brief"}, *MESSAGES]}
    await post(gateway, "/api/generate", {"model": "chat", "prompt": "hi", "raw": True, "think": False})
    raw = sent(gateway, "/v1/completions")
    assert raw == {"prompt": "hi", **{name: value for name, value in SENT.items() if name != "messages"}}


@pytest.mark.parametrize(("options", "most"), [({}, 512), ({"num_predict": -1}, 512), ({"num_predict": 7}, 7)])
async def test_a_raw_prompt_is_answered_until_the_context_ends(
    tmp_path: Path, options: dict[str, int], most: int
) -> None:
    """vLLM's completions end after 16 tokens by default. Cutting a limit that no client set gives no warning."""
    gateway = FakeGateway(tmp_path, [recipe("chat", "chat").model_copy(update={"context_length": 512})])
    streams(gateway, {"text": "a", "finish_reason": "stop"}, warning="max_tokens was cut from 512 to 500")
    response = await post(gateway, "/api/generate", {"model": "chat", "prompt": "a", "raw": True, "options": options})
    assert sent(gateway, "/v1/completions")["max_tokens"] == most
    warning = "max_tokens was cut from 512 to 500" if most == 7 else None
    assert response.headers.get("X-Roundhouse-Warning") == warning


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/api/chat", {**REQUEST, "tools": [{}]}, "tool_call_parser"),
        ("/api/chat", {**REQUEST, "think": True}, "reasoning_parser"),
        ("/api/chat", {"model": "chat", "messages": [{**MESSAGES[0], "images": ["aGk="]}]}, "images"),
        ("/api/chat", {**REQUEST, "format": "yaml"}, "format"),
        ("/api/chat", {**REQUEST, "options": {"top_p": 2}}, "top_p"),
        ("/api/chat", {**REQUEST, "options": {"typical_p": 0.7}}, "leave 'typical_p' out"),
        ("/api/chat", {"messages": MESSAGES}, "model"),
        ("/api/generate", {"model": "chat", "prompt": "a", "suffix": "b"}, "suffix"),
        ("/api/generate", {"model": "chat", "prompt": "a", "raw": True, "images": ["aGk="]}, "raw"),
        ("/api/generate", {"model": "chat", "prompt": "a", "raw": True, "system": "brief"}, "system"),
        ("/api/generate", {"model": "chat", "prompt": "a", "raw": True, "think": "low"}, "think"),
        ("/api/embed", {"model": "embed", "input": ["a", ""]}, "empty"),
        ("/api/show", {}, "model"),
        ("/api/chat", {**REQUEST, "options": {"temperature": "0"}}, "at `$.options.temperature`"),
        ("/api/chat", {"model": "chat", "messages": [{"role": "boss"}]}, "one of assistant, system, tool, user."),
        ("/api/chat", {**REQUEST, "think": "much"}, "one of high, low, max, medium, false, true."),
        ("/api/pull", {"model": "hf.co/org/name-GGUF:Q4_K_M"}, "name it, as org/name/file.gguf"),
    ],
    ids=str,
)
async def test_a_refusal_says_what_to_do(gateway: FakeGateway, path: str, body: Any, word: str) -> None:
    response = await post(gateway, path, body)
    assert response.status_code == 400
    assert response.json().keys() == {"error"}
    assert word in response.json()["error"]
    assert gateway.links["chat"].requests == [], "the engine gets no request"


@pytest.mark.parametrize("stream", [True, False])
async def test_errors_of_the_engine_keep_their_status_and_message(gateway: FakeGateway, stream: bool) -> None:
    message = "max_tokens=9 is over 'max_model_len'=8."
    body = json.dumps({"error": {"message": message, "code": 400}}).encode()
    for events in ([BadRequest(message)], [ResponseStart(400, "application/json"), Chunk(data=body)]):
        gateway.links["chat"].script = lambda _, events=events: events  # type: ignore[misc]
        response = await post(gateway, "/api/chat", {**REQUEST, "stream": stream})
        assert (response.status_code, response.json()) == (400, {"error": message})


@pytest.mark.parametrize(
    ("path", "answer"), [("/api/embed", {"embeddings": []}), ("/api/embeddings", {"embedding": []})]
)
async def test_an_embedding_model_is_loaded_by_a_request_without_text(
    gateway: FakeGateway, path: str, answer: Any
) -> None:
    response = await post(gateway, path, {"model": "embed", "keep_alive": "10m"})
    assert response.status_code == 200, response.text
    assert response.json().items() >= answer.items()


# --- the answer ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_reasoning_is_passed_on_under_either_name(tmp_path: Path, name: str) -> None:
    """Answers of providers are translated to `reasoning_content`."""
    gateway = able(tmp_path, reasoning_parser="qwen3")
    streams(gateway, delta(**{name: "hm"}), delta(content="so"), delta(finish="stop"))
    thought, stated, _ = lines(await post(gateway, "/api/chat", REQUEST))
    assert (thought["message"]["thinking"], stated["message"]["content"]) == ("hm", "so")


async def test_calls_are_sent_whole_though_the_engine_streams_them_in_pieces(tmp_path: Path) -> None:
    gateway = able(tmp_path, tool_call_parser="hermes", reasoning_parser="qwen3")
    streams(
        gateway, delta(role="assistant", content=""), delta(reasoning="hm"), delta(content="so"),
        call(0, "", "set_fan"), call(0, '{"spe'), call(1, '{"state": "on"}', "set_light"), call(0, 'ed": 2}'),
        delta(finish="tool_calls"),
    )  # fmt: skip
    thought, stated, called, last = lines(await post(gateway, "/api/chat", {**REQUEST, "tools": [{}]}))
    assert (thought["message"]["thinking"], stated["message"]["content"]) == ("hm", "so")
    assert [one["function"] for one in called["message"]["tool_calls"]] == [
        {"index": 0, "name": "set_fan", "arguments": {"speed": 2}},
        {"index": 1, "name": "set_light", "arguments": {"state": "on"}},
    ]
    assert (last["done_reason"], last["prompt_eval_count"], last["eval_count"]) == ("stop", 4, 2)
    assert last["message"] == {"role": "assistant", "content": ""}


async def test_a_stream_has_the_logprobs_of_tokens_without_text_of_their_own(gateway: FakeGateway) -> None:
    """Such as half a character, the end of the answer, or what may begin a stop sequence."""

    def token(byte: int, text: str, finish: str | None = None) -> dict[str, Any]:
        logprob = {"token": chr(byte), "logprob": -0.5, "bytes": [byte], "top_logprobs": []}
        return {**delta(content=text, finish=finish), "logprobs": {"content": [logprob]}}

    streams(gateway, token(0xC3, ""), token(0xA9, "é"), token(0x41, "A"), token(0x0A, "", "stop"))
    body = {**REQUEST, "logprobs": True}
    answered = lines(await post(gateway, "/api/chat", body))
    assert [line["message"]["content"] for line in answered] == ["é", "A", ""]
    given = [[logprob["bytes"] for logprob in line["logprobs"]] for line in answered]
    assert given == [[[0xC3], [0xA9]], [[0x41]], [[0x0A]]]


async def test_only_the_last_line_is_done(gateway: FakeGateway) -> None:
    streams(gateway, delta(content="a"), delta(content="b"), delta(finish="stop"))
    assert [line["done"] for line in lines(await post(gateway, "/api/chat", REQUEST))] == [False, False, True]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_an_adapter_apart_from_its_model_is_not_ignored(gateway: FakeGateway, path: str) -> None:
    refused = await post(gateway, path, {**REQUEST, "prompt": "hi", "lora_name": "legal"})
    assert refused.status_code == 400
    assert refused.json()["error"] == "'lora_name' has another name here: 'model', which takes an adapter's name."


async def test_a_call_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    gateway = able(tmp_path, tool_call_parser="hermes")
    streams(gateway, call(0, '{"spe', "set_fan"), delta(finish="length"))
    found = lines(await post(gateway, "/api/chat", {**REQUEST, "tools": [{}]}))
    assert [one["message"].get("tool_calls") for one in found] == [None, None]
    assert found[-1]["done_reason"] == "length"


async def test_an_error_ends_a_stream_as_its_last_line(gateway: FakeGateway) -> None:
    streams(gateway, delta(content="a"), end=EngineFailed("It broke."))
    assert lines(await post(gateway, "/api/chat", REQUEST))[-1] == {"error": "It broke."}
    streams(gateway, delta(content="a"))
    assert "before it was complete" in lines(await post(gateway, "/api/chat", REQUEST))[-1]["error"]


def test_the_durations_add_up_to_the_total() -> None:
    ticks = iter([10, 100])
    watch = Timings(lambda: next(ticks))
    watch.turn, watch.first = 30, 60
    assert watch.durations() == {
        "total_duration": 90, "load_duration": 20, "prompt_eval_duration": 30, "eval_duration": 40,
    }  # fmt: skip


@pytest.mark.parametrize("first", [{"content": "a"}, {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}])
def test_the_prompts_duration_ends_at_the_first_token(first: dict[str, Any]) -> None:
    ticks = iter(range(10, 100, 10))
    writer = Writer("m", is_chat=True, watch=Timings(lambda: next(ticks)))
    writer.watch.turn = 15
    for fields in ({"role": "assistant"}, first, {"content": "b"}):
        writer.line(json.dumps({"choices": [delta(**fields)]}).encode())
    last = writer.last()
    assert (last.prompt_eval_duration, last.eval_duration) == (20 - 15, 30 - 20)


def test_abilities_follow_from_flags_and_config(tmp_path: Path) -> None:
    def can(task: str, flags: dict[str, Any], folder: Path | None) -> frozenset[Ability]:
        made = recipe("x", task)
        engine = EngineSpec(name=made.engine.name, flags=flags)
        return abilities_of(Recipe.model_validate({**made.model_dump(), "engine": engine}), folder)

    assert can("chat", {}, None) == can("chat", {"reasoning_parser": ""}, tmp_path) == frozenset()
    assert can("chat", {"tool-call-parser": "hermes", "reasoning_parser": "qwen3"}, None) == {"tools", "thinking"}
    assert can("embed", {}, tmp_path) == frozenset()
    (tmp_path / "config.json").write_text('{"vision_config": {"depth": 2}}')
    assert can("chat", {}, tmp_path) == {"vision"}
    (tmp_path / "config.json").write_text("no JSON, and longer than before")
    assert can("chat", {}, tmp_path) == frozenset()


async def test_a_model_removed_while_the_list_is_made_is_still_in_it(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are read in a thread, while the event loop may remove a model. This was a 500."""

    def remove_and_list(*reported: Any) -> OllamaModel:
        gateway.entries.clear()
        return model_entry(*reported)

    monkeypatch.setattr(models, "model_entry", remove_and_list)
    transport = httpx.ASGITransport(app=application(gateway), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.get("/api/tags")
    assert response.status_code == 200
    assert [one["name"] for one in response.json()["models"]] == ["chat:latest", "embed:latest"]
    assert all(one["modified_at"].endswith(".000000Z") for one in response.json()["models"]), (
        "OllamaKit wants fractions"
    )


@pytest.mark.parametrize("length", [512, None])
def test_what_clients_read_of_a_router(length: int | None) -> None:
    """Copilot displays the base name. Koog fails without either length of an architecture, also for other models."""
    card = RouterCardView(
        id="auto",
        created=0,
        task=Task.CHAT,
        version="v1",
        digest="sha256:00",
        targets=["a"],
        abilities=[],
        description="",
    )
    answer = router_info(card, length)
    lengths = {"general.architecture": "router", "router.context_length": 512, "router.embedding_length": 0}
    assert answer.model_info == {"general.basename": "auto", **(lengths if length else {})}
    assert answer.parameters == ("num_ctx 512" if length else "")
    assert answer.modified_at == "1970-01-01T00:00:00.000000Z"
