"""Ollama's own Python package, unchanged, against the real server."""

import base64
import json
from datetime import timedelta, timezone
from typing import Any

import numpy as np
import ollama
import pytest
from openai import NotFoundError, OpenAI

from tests.eventually import PATIENCE
from tests.system.serving import Server
from tests.system.tools import TOOLS

pytestmark = pytest.mark.real
HELLO: Any = [{"role": "user", "content": "hello world"}]
GREEDY = {"temperature": 0}
CITY = {"type": "object", "properties": {"city": {"enum": ["paris", "rome"]}}, "required": ["city"]}


@pytest.fixture(scope="module")
def clients(server: Server) -> ollama.Client:
    return ollama.Client(host=server.url, timeout=PATIENCE)


def test_a_chat_with_its_counts_and_times(clients: ollama.Client) -> None:
    answer = clients.chat("uppercase:latest", HELLO, options=GREEDY)
    assert (answer.message.role, answer.message.content) == ("assistant", "HELLO WORLD")
    assert (answer.model, answer.done, answer.done_reason) == ("uppercase:latest", True, "stop")
    assert answer.eval_count == len("HELLO WORLD") + 1
    assert answer.prompt_eval_count
    assert answer.prompt_eval_count > len("hello world")
    assert answer.total_duration
    assert answer.load_duration is not None
    assert answer.eval_duration
    assert 0 < answer.eval_duration <= answer.total_duration - answer.load_duration


async def test_a_chat_as_it_comes(server: Server) -> None:
    parts = list(ollama.Client(host=server.url).chat("uppercase", HELLO, stream=True, options=GREEDY))
    other = ollama.AsyncClient(host=server.url)
    again = [part async for part in await other.chat("uppercase", HELLO, stream=True, options=GREEDY)]
    for lines in (parts, again):
        assert "".join(line.message.content or "" for line in lines) == "HELLO WORLD"
        assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
        assert len(lines) >= 2
        last = lines[-1]
        assert (last.done_reason, last.eval_count) == ("stop", len("HELLO WORLD") + 1)
        assert last.prompt_eval_duration
        assert last.eval_duration
        parts_of = last.load_duration, last.prompt_eval_duration, last.eval_duration
        assert sum(part or 0 for part in parts_of) == last.total_duration


def test_a_begun_answer_is_continued(clients: ollama.Client) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "HELLO"}]
    assert clients.chat("uppercase", begun, options=GREEDY).message.content == " WORLD"
    parts = clients.chat("uppercase", begun, stream=True, options=GREEDY)
    assert "".join(part.message.content or "" for part in parts) == " WORLD"


@pytest.mark.parametrize("kind", ["", "application/x-www-form-urlencoded", "text/plain"])
def test_programs_need_not_say_that_it_is_json(server: Server, kind: str) -> None:
    body = json.dumps({"model": "uppercase", "messages": HELLO, "stream": False, "options": {"num_predict": 2.0}})
    headers = {"User-Agent": "Mozilla/5.0 (Windows NT; Windows NT 10.0; en-US) WindowsPowerShell/5.1.22621.2506"}
    headers |= {"Content-Type": kind} if kind else {}
    answer = server.http.post("/api/chat", content=body.encode(), headers=headers)
    assert answer.json()["eval_count"] == 2
    page = server.http.post("/api/chat", content=body.encode(), headers={**headers, "Origin": "http://evil.example"})
    assert page.status_code == 403


def test_options_limit_stop_and_sample_the_answer(clients: ollama.Client) -> None:
    cut = clients.chat("uppercase", HELLO, options={**GREEDY, "num_predict": 3})
    assert (cut.message.content, cut.done_reason, cut.eval_count) == ("HEL", "length", 3)
    stopped = clients.chat("uppercase", HELLO, options={**GREEDY, "stop": [" "]})
    assert stopped.message.content == "HELLO"
    sampled = {"temperature": 2.0, "seed": 7, "top_k": 50, "top_p": 0.95, "min_p": 0.0, "num_predict": 20}
    requested: Any = [{"role": "user", "content": "tell me something"}]
    one, other = (clients.chat("starter-chat", requested, options=sampled).message.content for _ in range(2))
    assert one == other
    for options in ({"top_p": 3}, {"stop": 4}, {"temperature": "warm"}):
        with pytest.raises(ollama.ResponseError, match=r"options\.|Expected") as wrong:
            clients.chat("uppercase", HELLO, options=options)
        assert wrong.value.status_code == 400


def test_options_that_bind_nothing_are_named(server: Server) -> None:
    body = {"model": "uppercase", "messages": HELLO, "stream": False}
    options = {"mirostat": 1, "num_gpu": 9, "num_ctx": 4096, "temperature": 0}
    answer = server.http.post("/api/chat", json={**body, "options": options})
    assert answer.json()["message"]["content"] == "HELLO WORLD"
    warning = answer.headers["X-Roundhouse-Warning"]
    assert "mirostat" in warning
    assert "512 tokens" in warning
    assert "num_gpu" not in warning
    assert (
        "X-Roundhouse-Warning" not in server.http.post("/api/chat", json={**body, "options": {"num_ctx": 512}}).headers
    )


def test_generate_takes_prompts_with_or_without_the_template(clients: ollama.Client, server: Server) -> None:
    answer = clients.generate("uppercase", "hello world", options=GREEDY)
    assert (answer.response, answer.done_reason) == ("HELLO WORLD", "stop")
    lines = list(clients.generate("uppercase", "hello world", stream=True, options=GREEDY))
    assert "".join(line.response or "" for line in lines) == "HELLO WORLD"
    raw = clients.generate("uppercase", "<|user|>hello world<|end|><|assistant|>", raw=True, options=GREEDY)
    assert raw.response == "HELLO WORLD"
    for more in ({"suffix": "x"}, {"template": "{{ .Prompt }}"}, {"context": [1, 2]}):
        with pytest.raises(ollama.ResponseError) as wrong:
            clients.generate("uppercase", "x", **more)  # type: ignore[call-overload]
        assert next(iter(more)) in wrong.value.error
        assert wrong.value.status_code == 400


def test_a_format_binds_the_answer(clients: ollama.Client) -> None:
    requested: Any = [{"role": "user", "content": "alice is 30 years old and lives in paris"}]
    plain = clients.chat("extract-json", requested, format="json", options=GREEDY)
    assert json.loads(plain.message.content or "")["name"] == "alice"
    bound = clients.chat("starter-chat", requested, format=CITY, options=GREEDY)
    assert json.loads(bound.message.content or "")["city"] in ("paris", "rome")


def test_logprobs_are_those_of_the_sent_tokens(clients: ollama.Client) -> None:
    answer = clients.chat("uppercase", HELLO, logprobs=True, top_logprobs=2, options={**GREEDY, "num_predict": 3})
    assert answer.logprobs is not None
    assert [one.token for one in answer.logprobs] == ["H", "E", "L"]
    assert all(one.logprob <= 0 and one.top_logprobs and len(one.top_logprobs) == 2 for one in answer.logprobs)


def test_what_a_model_cannot_do_is_refused(clients: ollama.Client) -> None:
    seen: Any = [{"role": "user", "content": "what is it?", "images": [base64.b64encode(b"\x89PNG").decode()]}]
    with pytest.raises(ollama.ResponseError, match="takes no images") as blind:
        clients.chat("starter-chat", seen)
    with pytest.raises(ollama.ResponseError, match="does not support thinking") as thoughtless:
        clients.chat("starter-chat", HELLO, think=True)
    assert blind.value.status_code == thoughtless.value.status_code == 400
    assert clients.chat("uppercase", HELLO, think=False, options=GREEDY).message.content == "HELLO WORLD"
    with pytest.raises(ollama.ResponseError, match="no model or adapter 'nobody'") as missing:
        clients.chat("nobody", HELLO)
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="made for embed"):
        clients.chat("starter-embed", HELLO)


def test_requests_with_tools_are_accepted(clients: ollama.Client) -> None:
    """test_reasoning.py tests calls, with a model that can make them."""
    answer = clients.chat("starter-chat", HELLO, tools=TOOLS, options={**GREEDY, "num_predict": 8})
    assert answer.message.content
    assert not answer.message.tool_calls


def test_embeddings_of_both_paths_equal_openais(clients: ollama.Client, client: OpenAI) -> None:
    texts = ["a cat sat on the mat", "quarterly revenue grew"]
    expected = [d.embedding for d in client.embeddings.create(model="starter-embed", input=texts).data]
    many = clients.embed("starter-embed", texts)
    assert np.allclose(many.embeddings, expected, atol=1e-5)
    assert many.prompt_eval_count
    assert many.total_duration
    assert np.allclose(clients.embed("embed:latest", texts[0]).embeddings, expected[:1], atol=1e-5)
    assert np.allclose(clients.embeddings("starter-embed", texts[0]).embedding, expected[0], atol=1e-5)
    assert np.shape(clients.embed("starter-embed", "word " * 900).embeddings) == (1, 384)
    with pytest.raises(ollama.ResponseError, match="256 tokens"):
        clients.embed("starter-embed", "word " * 900, truncate=False)


def test_the_list_and_the_details_of_a_model(clients: ollama.Client, server: Server) -> None:
    found = {one.model: one for one in clients.list().models}
    assert {"starter-chat:latest", "starter-embed:latest", "uppercase:latest"} <= found.keys()
    assert not {"starter-rerank:latest", "starter-speech:latest"} & found.keys(), "Ollama's clients cannot ask for them"
    adapter = found["uppercase:latest"]
    assert adapter.details
    assert adapter.details.parent_model == "starter-chat"
    assert adapter.digest == server.model("uppercase")["digest"].removeprefix("sha256:")
    embed = found["starter-embed:latest"]
    assert embed.details
    assert embed.details.parameter_size == "22.7M"
    assert embed.size
    assert embed.size > 40e6
    displayed = clients.show("starter-chat:latest")
    assert displayed.capabilities == ["completion", "tools"]
    assert displayed.modelinfo
    family = displayed.modelinfo["general.architecture"]
    assert displayed.modelinfo[f"{family}.context_length"] == 512
    assert displayed.modelinfo["general.basename"] == "starter-chat"
    assert displayed.parameters == "num_ctx 512", "Continue goes by it, and cannot read an empty line"
    assert displayed.template
    assert "tools" in displayed.template.lower(), "LiteLLM sends tools to no other"
    embedding = clients.show("starter-embed")
    assert (embedding.capabilities, embedding.parameters, embedding.template) == (["embedding"], "", "")
    with pytest.raises(ollama.ResponseError, match="nobody") as missing:
        clients.show("nobody")
    assert missing.value.status_code == 404


def test_a_listed_name_works_on_every_path(clients: ollama.Client, client: OpenAI) -> None:
    """Open WebUI requests exactly the listed names, with tags. LibreChat uses them on OpenAI's paths."""
    for one in clients.list().models:
        assert one.model
        assert ":" in one.model
        assert clients.show(one.model).modified_at
    requested = {"messages": HELLO, "temperature": 0}
    answer = client.chat.completions.create(model="uppercase:latest", **requested)
    assert answer.choices[0].message.content == "HELLO WORLD"
    assert client.models.retrieve("uppercase:latest").id == "uppercase"
    with pytest.raises(NotFoundError, match="'nobody'"):
        client.chat.completions.create(model="nobody:latest", **requested)


def test_a_model_is_loaded_listed_and_unloaded(clients: ollama.Client, server: Server) -> None:
    loaded = clients.generate("starter-chat", "")
    assert (loaded.done, loaded.done_reason, loaded.response) == (True, "load", "")
    assert server.model("starter-chat")["state"] == "ready"
    running = {one.model: one for one in clients.ps().models}
    assert running["starter-chat:latest"].context_length == 512
    assert running["starter-chat:latest"].size_vram
    assert running["starter-chat:latest"].size_vram > 10e6
    leaves = running["starter-chat:latest"].expires_at
    assert leaves is not None
    assert leaves.astimezone(timezone(timedelta(hours=14))).year > 2200, "no zone's last day"
    assert clients.chat("starter-chat", [], keep_alive=0).done_reason == "unload"
    assert server.model("starter-chat")["state"] == "absent"
    assert "starter-chat:latest" not in {one.model for one in clients.ps().models}
    assert clients.chat("uppercase", HELLO, options=GREEDY, keep_alive="0s").message.content == "HELLO WORLD"
    server.wait_state("starter-chat", "absent")
    assert clients.chat("uppercase", HELLO, options=GREEDY, keep_alive=-1).message.content == "HELLO WORLD"
    assert server.model("starter-chat")["state"] == "ready"
    assert not server.model("starter-chat")["pinned"]


def test_a_pull_of_what_is_here(clients: ollama.Client) -> None:
    assert clients.pull("starter-chat").status == "success"
    lines = list(clients.pull("starter-chat:latest", stream=True))
    assert [lines[0].status, lines[-1].status] == ["pulling manifest", "success"]
    assert any(line.total and line.total == line.completed for line in lines)
    for name in ("nobody", "/srv/models/x"):
        with pytest.raises(ollama.ResponseError, match=r"org/name|models add") as wrong:
            clients.pull(name)
        assert wrong.value.status_code == 400


def test_only_adapters_are_deleted(clients: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="--recipes") as kept:
        clients.delete("starter-embed")
    assert kept.value.status_code == 409


def test_an_error_in_a_stream_is_its_last_line(clients: ollama.Client) -> None:
    requested: Any = [{"role": "user", "content": "word " * 600}]
    with pytest.raises(ollama.ResponseError, match="512") as long:
        list(clients.chat("starter-chat", requested, stream=True))
    assert long.value.status_code == 400


def test_the_version_and_unknown_paths(server: Server) -> None:
    version = tuple(map(int, server.http.get("/api/version").json()["version"].split(".")))
    assert version >= (0, 13, 4), "Codex asks for the first Ollama with Responses"
    assert isinstance(server.http.post("/api/push", json={"model": "x"}).json()["error"], str)
