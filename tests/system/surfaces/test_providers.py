"""Another Roundhouse as a provider: real engines there, none here; the official SDKs against the second server, and one
trace through both and the engine."""

import os
import shutil
from collections.abc import Iterator
from itertools import pairwise

import anthropic
import openai
import pytest
import yaml

from tests.eventually import eventually
from tests.fakes.collector import Collector, Received, collecting
from tests.system.serving import STARTER, Server

pytestmark = pytest.mark.real
RECIPE = """kind: provider
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


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def traced(service: str, collector: Collector) -> dict[str, str]:
    """The environment of a server that sends its spans there, and of vLLM in it."""
    variables = {
        "OTEL_SERVICE_NAME": service, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    }  # fmt: skip
    return {**os.environ, **variables}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[tuple[Server, Server]]:
    folder = tmp_path_factory.mktemp("providers")
    recipes = shutil.copytree(STARTER, folder / "recipes")
    chat = yaml.safe_load((recipes / "starter-chat.yaml").read_text())
    chat["engine"].setdefault("flags", {})["otlp_traces_endpoint"] = f"{collector.url}/v1/traces"
    (recipes / "starter-chat.yaml").write_text(yaml.safe_dump(chat))
    there = Server(folder / "there" / "data", [recipes], env=traced("there", collector))
    here: Server | None = None
    try:
        recipe = folder / "there.yaml"
        recipe.write_text(RECIPE.format(url=there.url))
        here = Server(folder / "here" / "data", [recipe], "--slots", "1", env=traced("here", collector))
        yield there.wait_ready(), here.wait_ready()
    finally:
        for server in (here, there):
            if server is not None:
                server.close()


def test_the_same_answer_as_there(servers: tuple[Server, Server]) -> None:
    asked = {"messages": [{"role": "user", "content": "what is a slot?"}], "temperature": 0, "max_tokens": 16}
    direct = servers[0].http.post("/v1/chat/completions", json={"model": "starter-chat", **asked}).json()
    passed = servers[1].http.post("/v1/chat/completions", json={"model": "there/starter-chat", **asked})
    assert passed.status_code == 200, passed.text
    found = passed.json()
    assert found["choices"][0]["message"]["content"] == direct["choices"][0]["message"]["content"]
    assert found["usage"]["completion_tokens"] == direct["usage"]["completion_tokens"]
    assert found["model"] == "there/starter-chat"


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
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
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
    assert "".join(block.text for block in final.content if block.type == "text") == said
    told = final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)
    assert (told, final.usage.output_tokens) == (usage.prompt_tokens, usage.completion_tokens)


def test_vectors_are_the_same(servers: tuple[Server, Server]) -> None:
    asked = {"input": ["a warm kitchen"], "encoding_format": "base64"}
    direct = servers[0].http.post("/v1/embeddings", json={"model": "starter-embed", **asked}).json()
    passed = servers[1].http.post("/v1/embeddings", json={"model": "there/starter-embed", **asked}).json()
    assert passed["data"] == direct["data"]
    assert passed["usage"] == direct["usage"]


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

    wanted = {
        ("here", "chat there/starter-chat"), ("here", "provider"), ("there", "chat starter-chat"),
        ("there", "prefill"), ("there", "decode"), ("there", "llm_request"),
    }  # fmt: skip
    eventually(lambda: spans().keys() >= wanted, lambda: f"{sorted(spans())}\n{servers[0].tail()}")
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
        assert one.span.end_time_unix_nano <= outer.span.end_time_unix_nano + 10**7, "clocks of two processes"
    said = answer.json()["choices"][0]["message"]["content"].strip()
    assert not any(secret.encode() in body or (len(said) > 3 and said.encode() in body) for body in collector.raw)
