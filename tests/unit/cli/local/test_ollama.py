"""`roundhouse models add ollama:NAME`: models that Ollama has pulled to this machine."""

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.cli.failures import RefusedError
from runtime.cli.local import ollama
from tests.unit.cli.conftest import Run, model
from tests.unit.cli.fake_server import Answer, FakeServer, ReceivedRequest
from tests.unit.cli.test_model_edits import proposal

LIBRARY = "registry.ollama.ai/library"


class Store:
    """A folder as Ollama writes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def pull(self, name: str, **layers: str | None) -> None:
        """Write a model's manifest, and a file for each layer that is not None."""
        entries = []
        for kind, content in layers.items():
            digest = f"sha256:{len(list(self.folder.glob('blobs/*'))):064x}"
            if content is not None:
                blob = self.folder / "blobs" / digest.replace(":", "-")
                blob.parent.mkdir(parents=True, exist_ok=True)
                blob.write_text(content)
            entries.append({"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest, "size": 1})
        manifest = self.folder / "manifests" / name
        manifest.parent.mkdir(parents=True, exist_ok=True)
        manifest.write_text(json.dumps({"schemaVersion": 2, "layers": entries}))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    return Store(tmp_path / "ollama")


@pytest.mark.parametrize(
    ("manifest", "names", "short"),
    [
        (f"{LIBRARY}/llama3.2/latest", ["llama3.2", "llama3.2:latest", f"{LIBRARY}/llama3.2:latest"], "llama3.2"),
        (f"{LIBRARY}/llama3.2/1b", ["llama3.2:1b", "library/llama3.2:1b"], "llama3.2:1b"),
        ("registry.ollama.ai/mattw/tune/latest", ["mattw/tune"], "mattw/tune"),
        ("hf.co/org/name-GGUF/Q4_K_M", ["hf.co/org/name-GGUF:Q4_K_M"], "hf.co/org/name-GGUF:Q4_K_M"),
        ("localhost:5000/org/name/latest", ["localhost:5000/org/name"], "localhost:5000/org/name"),
    ],
)
def test_a_model_is_found_by_each_spelling_of_its_name(
    store: Store, manifest: str, names: list[str], short: str
) -> None:
    store.pull(manifest, model="GGUF")
    for name in names:
        found = ollama.find(name)
        assert (found.name, found.file.read_text(), found.overrides, found.notes) == (short, "GGUF", {}, ())


def test_parameters_become_values_of_the_recipe_and_notes_say_what_stays_behind(store: Store) -> None:
    stop = ["<|end|>", "[INST]", "<end>", "User:"]
    parameters = {"temperature": 0.6, "repeat_penalty": 1.1, "num_ctx": 4096, "stop": stop, "mirostat": 2,
                  "presence_penalty": 1.5, "num_predict": 128, "num_gpu": 1}  # fmt: skip
    store.pull(f"{LIBRARY}/pirate/latest", model="GGUF", params=json.dumps(parameters), system="Speak like a pirate.",
               adapter="GGUF", projector="GGUF", messages="[]", template="{{ .Prompt }}")  # fmt: skip
    found = ollama.find("pirate")
    assert found.overrides == {
        "engine.flags.override_generation_config": {
            "temperature": 0.6,
            "repetition_penalty": 1.1,
            "presence_penalty": 1.5,
        },
        "context_length": 4096,
        "system": "Speak like a pirate.",
        "stop": ["User:"],
    }
    notes = "\n".join(found.notes)
    for text in ("peft", "images", "example messages", "num_predict, mirostat."):
        assert text in notes


@pytest.mark.parametrize(
    ("manifest", "params", "words"),
    [
        ('{"layers": null}', "{}", "has no GGUF file"),
        ("[]", "{}", "is damaged at odd: latest is no object"),
        ('{"layers": [{"digest": 5}]}', "{}", "is damaged at odd: its manifest has no layers"),
        ("", "[]", "is damaged at odd: sha256-"),
        ("", "{", "is damaged at odd: "),
    ],
)
def test_odd_files_are_refused(store: Store, manifest: str, params: str, words: str) -> None:
    store.pull(f"{LIBRARY}/odd/latest", model="GGUF", params=params)
    if manifest:
        (store.folder / "manifests" / LIBRARY / "odd" / "latest").write_text(manifest)
    with pytest.raises(RefusedError, match=words):
        ollama.find("odd")


def test_it_is_linked_and_added_under_its_name(
    store: Store, server: FakeServer, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(received: ReceivedRequest) -> Answer:
        return Answer(proposal(id="tune:1b") if received.json.get("dry_run") else {"id": "tune:1b", "new": True})

    server.on("POST", "/v1/models", answer)
    server.on("GET", "/v1/models/tune%3A1b", model("tune:1b"))
    store.pull(f"{LIBRARY}/tune/1b", model="GGUF", params='{"temperature": 0.6, "num_ctx": 4096}', system="Be brief.")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # a link that is there already is replaced
        result = run("models", "add", "ollama:tune:1b", "--yes", "--set", "context_length=512")
        assert result.exit_code == 0, result.stderr
    link = tmp_path / "ollama-models" / "tune-1b" / "tune-1b.gguf"
    assert link.read_text() == "GGUF"
    body: dict[str, Any] = next(received.json for received in server.received if received.method == "POST")
    assert (body["source"], body["id"]) == (str(link), "tune:1b")
    assert body["overrides"] == {
        "engine.flags.override_generation_config": {"temperature": 0.6}, "context_length": 512, "system": "Be brief.",
    }  # fmt: skip
    assert run("models", "add", "ollama://tune:1b", "--id", "mine", "--dry-run").exit_code == 0  # as LocalAI writes it
    assert server.received[-1].json["id"] == "mine"


@pytest.mark.parametrize("name", ["absent", "", "../../../etc", "a/b/c/d", "llama3.2:../latest"])
def test_an_unknown_name_is_refused_with_those_that_are_there(store: Store, run: Run, name: str) -> None:
    store.pull(f"{LIBRARY}/llama3.2/latest", model="GGUF")
    store.pull("hf.co/org/name/Q8_0", model="GGUF")
    result = run("models", "add", f"ollama:{name}", "--yes")
    assert result.exit_code == 1
    assert "which has hf.co/org/name:Q8_0, llama3.2." in result.stderr


def test_what_cannot_be_taken_over_is_refused(store: Store, run: Run) -> None:
    assert "which has no models." in run("models", "add", "ollama:any", "--yes").stderr
    store.pull(f"{LIBRARY}/tensors/latest", tensor="safetensors")
    assert "has no GGUF file" in run("models", "add", "ollama:tensors", "--yes").stderr
    store.pull(f"{LIBRARY}/half/latest", model="GGUF", params=None)
    assert "cannot be read: No such file" in run("models", "add", "ollama:half", "--yes").stderr
    (store.folder / "manifests" / LIBRARY / "half" / "latest").write_text("{")
    damaged = run("models", "add", "ollama:half", "--yes")
    assert (damaged.exit_code, "is damaged at half" in damaged.stderr) == (1, True)


def test_the_folder_is_the_users_or_that_of_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    service = Store(tmp_path / "service" / ".ollama" / "models")
    monkeypatch.setattr(ollama, "SERVICE", service.folder)
    service.pull(f"{LIBRARY}/tune/latest", model="of the service")
    assert ollama.find("tune").file.read_text() == "of the service"
    Store(tmp_path / "home" / ".ollama" / "models").pull(f"{LIBRARY}/tune/latest", model="of the user")
    assert ollama.find("tune").file.read_text() == "of the user"
