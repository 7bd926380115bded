"""`roundhouse models add`, `edit`, `remove` and `export`: the calls and the output."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Run, model
from tests.unit.cli.fake_server import Answer, FakeServer, ReceivedRequest

PLAN = {"why": "enough is free", "bytes_needed": 2**30, "bytes_free": 2**31, "budget_bytes": 2**32, "victims": []}


def proposal(**more: Any) -> dict[str, Any]:
    return {
        "object": "model.proposal", "id": "mine", "task": "chat", "engine": "vllm", "recipe": "id: mine\n",
        "choices": [{"key": "context_length", "value": "512", "why": "all that the model was trained for"}],
        "notes": ["It has no chat template."], "fit": "fits", "advice": "It fits.",
        "plan": PLAN, "lacking_bytes": 0, "weights_bytes": 9,
        "fetch_bytes": 2**20, **more,
    }  # fmt: skip


@pytest.fixture
def adding(server: FakeServer) -> FakeServer:
    def answer(received: ReceivedRequest) -> Answer:
        if received.json.get("dry_run"):
            return Answer(proposal())
        return Answer({"object": "model.added", "id": "mine", "new": True, "model": model("mine")}, 201)

    server.on("POST", "/v1/models", answer)
    server.on("GET", "/v1/models/mine", model("mine"))
    return server


def test_add_prints_the_reasons_and_adds_after_yes(adding: FakeServer, run: Run) -> None:
    result = run(
        "models", "add", "org/name@v1", "--yes", "--set", "memory.kv_cache=2GiB", "--set", "context_length=512"
    )
    assert result.exit_code == 0, result.stderr
    assert "all that the model was trained for" in result.stdout
    assert "It fits." in result.stdout
    assert "to fetch      1.0 MiB" in result.stdout
    assert "mine: added, the first request loads it" in result.stdout
    looked, added = (received.json for received in adding.received if received.method == "POST")
    assert looked["dry_run"] is True
    assert added["overrides"] == {"memory.kv_cache": "2GiB", "context_length": 512}
    assert (added["source"], added["id"]) == ("org/name@v1", "mine")


def test_a_dry_run_adds_nothing(adding: FakeServer, run: Run) -> None:
    result = run("models", "add", "org/name", "--dry-run", "--json")
    assert json.loads(result.stdout)["object"] == "model.proposal"
    assert len([received for received in adding.received if received.method == "POST"]) == 1


def test_without_a_terminal_there_is_no_question(adding: FakeServer, run: Run) -> None:
    result = run("models", "add", "org/name")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert len([received for received in adding.received if received.method == "POST"]) == 1


def test_a_local_folder_is_sent_as_its_absolute_path(adding: FakeServer, run: Run, tmp_path: Path) -> None:
    assert run("models", "add", str(tmp_path), "--yes").exit_code == 0
    assert next(a for a in adding.received if a.method == "POST").json["source"] == str(tmp_path.resolve())


def test_a_gguf_is_sent_by_its_own_name_even_as_a_link(adding: FakeServer, run: Run, tmp_path: Path) -> None:
    blob, link = tmp_path / "blobs" / "sha256-b1", tmp_path / "smol" / "smol.gguf"
    blob.parent.mkdir()
    link.parent.mkdir()
    blob.write_bytes(b"GGUF")
    link.symlink_to(blob)
    assert run("models", "add", str(link), "--yes").exit_code == 0
    assert next(a for a in adding.received if a.method == "POST").json["source"] == str(link)
    sent = len(adding.received)
    for command in (("add", "--yes"), ("check",)):
        refused = run("models", command[0], str(blob), *command[1:])
        assert refused.exit_code == 1
        assert f"ln -s {blob} NAME/NAME.gguf" in refused.stderr
    blob.write_bytes(b"PK")
    assert "Give the model's folder" in run("models", "add", str(blob), "--yes").stderr
    assert "docs/migrate.md" in run("models", "add", str(blob.rename(tmp_path / "Modelfile")), "--yes").stderr
    assert len(adding.received) == sent


def test_a_model_that_does_not_fit_is_refused_with_the_calculation(server: FakeServer, run: Run) -> None:
    server.on("POST", "/v1/models", proposal(fit="does_not_fit", lacking_bytes=2**30, advice="too large"))
    result = run("models", "add", "org/name", "--yes")
    assert result.exit_code == 1
    assert "too large" in result.stderr
    assert "lacks         1.0 GiB" in result.stdout


def test_files_that_could_not_be_fetched_are_reported(adding: FakeServer, run: Run) -> None:
    failure = {"message": "the hub is away", "code": "hub_unavailable"}
    adding.on("GET", "/v1/models/mine", model("mine", state="failed", failure=failure))
    result = run("models", "add", "org/name", "--yes")
    assert result.exit_code == 4
    assert "the hub is away" in result.stderr


def test_models_are_edited_removed_and_exported(server: FakeServer, run: Run, tmp_path: Path) -> None:
    edited = {"id": "m", "version": 2, "before": 1, "changed": ["dtype"], "waits": True}
    server.on("PATCH", "/v1/models/m", edited)
    result = run("models", "edit", "m", "--set", "dtype=float16", "--set", "description=")
    assert "version 2 takes effect once the model is not in use (dtype)" in result.stdout
    assert server.received[-1].json == {"changes": {"dtype": "float16", "description": None}}
    server.on("DELETE", "/v1/models/m", {"id": "m", "versions": [2], "still": 1})
    assert "Version 1 from the server's own files" in run("models", "remove", "m").stdout
    server.on("GET", "/v1/models/m/recipe", Answer("id: m\n"))
    assert run("models", "export", "m").stdout == "id: m\n"
    assert run("models", "export", "m", "-o", str(tmp_path / "m.yaml")).exit_code == 0
    assert (tmp_path / "m.yaml").read_text() == "id: m\n"
    result = run("models", "export", "m", "-o", str(tmp_path / "n.yaml"), "--json")
    assert (json.loads(result.stdout)["recipe"], (tmp_path / "n.yaml").read_text()) == ("id: m\n", "id: m\n")
    assert run("models", "edit", "m").exit_code == 2


def test_reload_prints_faults(server: FakeServer, run: Run) -> None:
    server.on("POST", "/v1/recipes/reload", {"changed": False, "models": [], "faults": ["a.yaml:2: wrong"]})
    result = run("models", "reload")
    assert result.exit_code == 1
    assert "a.yaml:2: wrong" in result.stderr
    reported = run("models", "reload", "--json")
    assert (reported.exit_code, json.loads(reported.stdout)["faults"]) == (1, ["a.yaml:2: wrong"])
