"""Another Roundhouse as a provider: real engines there, none here; the official SDKs against the second server."""

from collections.abc import Iterator

import anthropic
import openai
import pytest

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
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    folder = tmp_path_factory.mktemp("providers")
    there = Server(folder / "there" / "data", [STARTER])
    here: Server | None = None
    try:
        recipe = folder / "there.yaml"
        recipe.write_text(RECIPE.format(url=there.url))
        here = Server(folder / "here" / "data", [recipe], "--slots", "1")
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
