"""Another Roundhouse as a provider, with real engines only there; routers with targets of the other protocol; one trace
through both servers and the engine."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, NamedTuple

import anthropic
import openai
import pytest
import yaml

from tests.eventually import eventually
from tests.fakes import traces
from tests.fakes.collector import Collector, Received, collecting
from tests.fakes.provider import HANG, Play, ProviderFake, Seen
from tests.fakes.provider_thread import provider_in_thread
from tests.system.serving import STARTER, Server

pytestmark = pytest.mark.real
THERE = """kind: provider
id: there
version: 1
protocol: openai
base_url: {url}/v1
plain_http: true
private_addresses: true
models:
  - {{name: starter-chat, aliases: [chat]}}
  - {{name: starter-embed, task: embed}}
"""
FAKE = """kind: provider
id: {id}
version: 1
protocol: {protocol}
base_url: {url}
plain_http: true
private_addresses: true
models:
  - {{name: {model}, abilities: [tools, vision], price: {{input: 2, output: 6}}}}
"""
SECRETS = {
    "GPT_KEY": "sk-of-gpt",
    "CLAUDE_ACCESS": "sk-of-claude",
    "RAY_AUTH": "of-ray",
    "DB_PASSWORD": "of-a-database",
}
ROUTERS = {
    "to-claude": {"targets": [{"name": "claude/big"}]},
    "to-gpt": {"targets": [{"name": "gpt/big"}]},
    "to-there": {"targets": [{"name": "as-anthropic/starter-chat"}]},
    "two": {
        "targets": [{"name": "gpt/big", "price": 1}, {"name": "claude/big"}],
        "default": "gpt/big",
        "fallbacks": ["claude/big"],
    },
}
PIXEL = "iVBORw0KGgo="
DATA_URL = f"data:image/png;base64,{PIXEL}"
PARAMETERS = {"type": "object", "properties": {}}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}


class World(NamedTuple):
    there: Server
    """The server with engines."""
    here: Server
    """The server with providers only."""
    fake: ProviderFake
    """A fake provider that speaks both protocols."""


def script(seen: Seen) -> Play:
    """Answer on OpenAI's and Anthropic's paths. On OpenAI's, a request that says `hang` never gets an answer."""
    if seen.path == "/v1/chat/completions":
        if seen.body["messages"][-1]["content"] == "hang":
            return Play([HANG])
        kinds: Any = (traces.chat, traces.chat_stream)
    else:
        kinds = (traces.message, traces.message_stream)
    return kinds[bool(seen.body.get("stream"))]("big", tool=bool(seen.body.get("tools")))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def traced(service: str, collector: Collector) -> dict[str, str]:
    """Return the environment for a server, and vLLM in it, to send spans to the collector."""
    variables = {
        "OTEL_SERVICE_NAME": service, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    }  # fmt: skip
    return {**os.environ, **variables}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("providers")
    with ExitStack() as stack:
        fake = stack.enter_context(provider_in_thread(script))
        recipes = shutil.copytree(STARTER, folder / "recipes")
        chat = yaml.safe_load((recipes / "starter-chat.yaml").read_text())
        chat["engine"].setdefault("flags", {})["otlp_traces_endpoint"] = f"{collector.url}/v1/traces"
        (recipes / "starter-chat.yaml").write_text(yaml.safe_dump(chat))
        there = Server(folder / "there" / "data", [recipes], "--slots", "2", env=traced("there", collector))
        stack.callback(there.close)
        providers = {"there": THERE.format(url=there.url)}
        for id_, protocol, url, model in (
            ("claude", "anthropic", fake.url, "big"),
            ("gpt", "openai", fake.url, "big"),
            ("as-anthropic", "anthropic", f"{there.url}/v1", "starter-chat"),
        ):
            providers[id_] = FAKE.format(id=id_, protocol=protocol, url=url, model=model)
        providers["gpt"] += "key_env: GPT_KEY\n"
        providers["claude"] += "key_env: CLAUDE_ACCESS\n"
        for id_, text in providers.items():
            (folder / f"{id_}.yaml").write_text(text)
        files = [folder / f"{id_}.yaml" for id_ in providers]
        here = Server(folder / "here" / "data", files, "--slots", "1", env=traced("here", collector) | SECRETS)
        stack.callback(here.close)
        there.wait_ready()
        here.wait_ready()
        for id_, spec in ROUTERS.items():
            made = here.http.post("/v1/routers", json={"id": id_, "default": None, **spec})
            assert made.status_code == 201, made.text
        yield World(there, here, fake)


@pytest.fixture
def servers(world: World) -> tuple[Server, Server]:
    return world.there, world.here


@pytest.fixture
def gpt(world: World) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{world.here.url}/v1", api_key="x", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(world: World) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=world.here.url, api_key="x", max_retries=0) as client:
        yield client


def test_the_same_answer_as_there(servers: tuple[Server, Server]) -> None:
    requested = {"messages": [{"role": "user", "content": "what is a slot?"}], "temperature": 0, "max_tokens": 16}
    direct = servers[0].http.post("/v1/chat/completions", json={"model": "starter-chat", **requested}).json()
    passed = servers[1].http.post("/v1/chat/completions", json={"model": "there/starter-chat", **requested})
    assert passed.status_code == 200, passed.text
    found = passed.json()
    assert found["choices"][0]["message"]["content"] == direct["choices"][0]["message"]["content"]
    assert found["usage"]["completion_tokens"] == direct["usage"]["completion_tokens"]
    assert found["model"] == "there/starter-chat"


def test_keys_reach_their_providers_and_no_slot(world: World) -> None:
    """/proc shows the environment with which a process was started."""
    for model in ("gpt/big", "claude/big"):
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        assert world.here.http.post("/v1/chat/completions", json=body).status_code == 200
    gpt, claude = world.fake.seen[-2:]
    assert (gpt.headers["authorization"], claude.headers["x-api-key"]) == ("Bearer sk-of-gpt", "sk-of-claude")
    slots = [one.environ() for one in world.here.family() if any("spawn_main" in word for word in one.cmdline())]
    assert slots
    assert [variables.keys() & SECRETS.keys() for variables in slots] == [set()] * len(slots)


def test_both_sdks_stream_with_equal_usage(servers: tuple[Server, Server]) -> None:
    url = servers[1].url
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        chunks = list(
            client.chat.completions.create(
                model="chat", messages=[{"role": "user", "content": "hello"}], temperature=0, max_tokens=16,
                stream=True, stream_options={"include_usage": True},
            )
        )  # fmt: skip
    usage = chunks[-1].usage
    assert usage
    stated = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    with (
        anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as other,
        other.messages.stream(
            model="chat",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=16,
            extra_body={"temperature": 0},
        ) as stream,
    ):
        final = stream.get_final_message()
    assert "".join(block.text for block in final.content if block.type == "text") == stated
    reported = final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)
    assert (reported, final.usage.output_tokens) == (usage.prompt_tokens, usage.completion_tokens)


def test_vectors_are_the_same(servers: tuple[Server, Server]) -> None:
    requested = {"input": ["a warm kitchen"], "encoding_format": "base64"}
    direct = servers[0].http.post("/v1/embeddings", json={"model": "starter-embed", **requested}).json()
    passed = servers[1].http.post("/v1/embeddings", json={"model": "there/starter-embed", **requested}).json()
    assert passed["data"] == direct["data"]
    assert passed["usage"] == direct["usage"]


# --- routers whose target speaks the other protocol ------------------------------------------------------------------
def test_openais_sdk_against_a_router_to_anthropic(world: World, gpt: openai.OpenAI) -> None:
    world.fake.seen.clear()
    parts: Any = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": DATA_URL}}]
    requested: Any = {
        "model": "to-claude",
        "max_completion_tokens": 9,
        "messages": [{"role": "user", "content": parts}],
    }
    whole = gpt.chat.completions.create(**requested)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("hello there", "stop")
    assert whole.model_extra == {**(whole.model_extra or {}), "model_used": "claude/big"}
    chunks = list(gpt.chat.completions.create(**requested, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "hello there"
    assert whole.usage
    assert chunks[-1].usage == whole.usage
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (12, 5)
    called = gpt.chat.completions.create(**requested, tools=[TOOL])
    (call,) = called.choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Rome"})
    response = gpt.responses.create(model="to-claude", input="hi")
    assert (response.output_text, response.usage and response.usage.total_tokens) == ("hello there", 17)
    with gpt.responses.stream(model="to-claude", input="hi") as stream:
        assert stream.get_final_response().output_text == "hello there"
    sent = [seen for seen in world.fake.seen if seen.path == "/v1/messages"]
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    assert sent[0].body["messages"][0]["content"][1] == image
    with pytest.raises(openai.BadRequestError) as refused:
        gpt.completions.create(model="to-claude", prompt="once")
    assert refused.value.code == "unsupported_endpoint"


def test_anthropics_sdk_against_a_router_to_openai(world: World, claude: anthropic.Anthropic) -> None:
    world.fake.seen.clear()
    parts: Any = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
        {"type": "text", "text": "what is this?"},
    ]
    requested: Any = {"model": "to-gpt", "max_tokens": 9, "messages": [{"role": "user", "content": parts}]}
    whole = claude.messages.create(**requested)
    with claude.messages.stream(**requested) as stream:
        final = stream.get_final_message()
    for message in (whole, final):
        assert [block.text for block in message.content if block.type == "text"] == ["hello there"]
        assert message.stop_reason == "end_turn"
        usage = message.usage
        assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (8, 4, 5)
    tool: Any = {"name": "weather", "input_schema": PARAMETERS}
    (block,) = claude.messages.create(**requested, tools=[tool]).content
    assert block.type == "tool_use"
    assert (block.name, block.input) == ("weather", {"city": "Rome"})
    sent = [seen for seen in world.fake.seen if seen.path == "/v1/chat/completions"]
    assert sent[0].body["messages"][0]["content"][0] == {"type": "image_url", "image_url": {"url": DATA_URL}}


def test_another_roundhouse_by_the_other_protocol_says_and_counts_the_same(world: World, gpt: openai.OpenAI) -> None:
    requested: Any = {"messages": [{"role": "user", "content": "what is a slot?"}], "temperature": 0, "max_tokens": 16}
    direct = world.there.http.post("/v1/chat/completions", json={"model": "starter-chat", **requested}).json()
    found = gpt.chat.completions.create(model="to-there", **requested)
    assert found.choices[0].message.content == direct["choices"][0]["message"]["content"]
    assert found.choices[0].finish_reason == direct["choices"][0]["finish_reason"]
    assert found.usage
    reported = direct["usage"]
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (
        reported["prompt_tokens"], reported["completion_tokens"],
    )  # fmt: skip
    chunks = list(
        gpt.chat.completions.create(model="to-there", **requested, stream=True, stream_options={"include_usage": True})
    )
    stated = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert stated == direct["choices"][0]["message"]["content"]
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == reported["completion_tokens"]


def test_tokens_are_counted_there(world: World, claude: anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": "what is a slot?"}]
    found = claude.messages.count_tokens(model="to-there", messages=messages)
    direct = world.there.http.post(
        "/v1/messages/count_tokens", json={"model": "starter-chat", "messages": messages}
    ).json()
    assert found.input_tokens == direct["input_tokens"] > 0


def test_routers_are_listed_with_what_their_targets_cost(world: World, gpt: openai.OpenAI) -> None:
    listed = {one.id: one for one in gpt.models.list()}
    assert {one.id for one in listed.values() if (one.model_extra or {}).get("kind") == "router"} == set(ROUTERS)
    assert (listed["two"].model_extra or {})["targets"] == ["gpt/big", "claude/big"]
    assert (listed["two"].model_extra or {})["abilities"] == ["tools", "vision"]
    assert gpt.models.retrieve("to-gpt") == listed["to-gpt"]
    assert world.here.http.get("/v1/routers/two").json()["prices"] == {"gpt/big": 1.0, "claude/big": 4.0}
    tags = {one["name"]: one for one in world.here.http.get("/api/tags").json()["models"]}
    assert tags["to-gpt:latest"]["details"]["family"] == "router"
    displayed = world.here.http.post("/api/show", json={"model": "to-gpt:latest"}).json()
    assert displayed["capabilities"] == ["completion", "tools", "vision"]


def test_one_trace_goes_through_both_servers_into_the_engine(
    servers: tuple[Server, Server], collector: Collector
) -> None:
    trace, secret = "5bd66ef5095369c7b0d1f8f4bd33716a", "zanzibar"
    body = {"model": "there/starter-chat", "messages": [{"role": "user", "content": secret}], "max_tokens": 8}
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "X-Request-Id": "traced-1"}
    answer = servers[1].http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200

    def spans() -> dict[tuple[str, str], Received]:
        return {(span.service, span.name): span for span in collector.of(trace)}

    expected = {
        ("here", "chat there/starter-chat"), ("here", "provider"), ("there", "chat starter-chat"),
        ("there", "prefill"), ("there", "decode"), ("there", "llm_request"),
    }  # fmt: skip
    eventually(lambda: spans().keys() >= expected, lambda: f"{sorted(spans())}\n{servers[0].tail()}")
    found = spans()
    first, asking = found["here", "chat there/starter-chat"], found["here", "provider"]
    second = found["there", "chat starter-chat"]
    assert first.parent == "00f067aa0ba902b7"
    assert (asking.parent, second.parent) == (first.id, asking.id)
    for name in ("prefill", "decode", "llm_request"):
        assert found["there", name].parent == second.id
    assert first.attributes["roundhouse.request.id"] == "traced-1"
    usage = answer.json()["usage"]
    for span in (first, second):
        assert span.attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    inner = [first, asking, second, found["there", "prefill"]]
    for outer, one in pairwise(inner):
        assert outer.span.start_time_unix_nano <= one.span.start_time_unix_nano
        if outer.service == one.service:  # the other server's span may end after the answer has been read
            assert one.span.end_time_unix_nano <= outer.span.end_time_unix_nano + 10**7, "clocks of two processes"
    stated = answer.json()["choices"][0]["message"]["content"].strip()
    assert not any(secret.encode() in body or (len(stated) > 3 and stated.encode() in body) for body in collector.raw)
