"""`roundhouse validate` on recipes that are right and wrong."""

import json
from pathlib import Path

import pytest

from runtime.cli.options import root
from tests.unit.cli.conftest import Run

SETS = sorted(path.name for path in (root() / "recipes").iterdir() if path.is_dir())


def config(architecture: str) -> dict[str, str]:
    return {"config.json": json.dumps({"architectures": [architecture], "num_labels": 1}), "model.safetensors": "0"}


BAD = """id: m
version: 1
task: chat
source: {path: weights}
engine: {name: vllm}
memory: {kv_cash: 1GiB}
batching: {max_requests: 0}
"""


@pytest.mark.parametrize("name", SETS)
def test_the_shipped_recipes_are_valid(run: Run, name: str) -> None:
    result = run("validate", str(root() / "recipes" / name))
    assert result.exit_code == 0, result.stderr


def test_each_fault_has_its_file_and_line(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    result = run("validate", str(file))
    assert result.exit_code == 1
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0] == "error: The recipes have 2 faults."
    assert "bad.yaml:6: " in lines[1]
    assert "bad.yaml:7: " in lines[2]


def test_unknown_flags_of_engines_are_faults(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "flags.yaml"
    model = "version: 1\ntask: embed\nsource: {path: weights}\nengine:\n  name: sentence-transformers\n  flags: "
    file.write_text(f"id: a\n{model}{{thread: 2}}\n---\nid: b\n{model}{{packed: 7}}\n")
    result = run("validate", str(file))
    assert result.exit_code == 1
    assert "flags.yaml:7: engine flag 'thread' is not known; write 'threads'" in result.stderr
    assert "flags.yaml:15: engine flag 'packed' cannot be 7; write true or false" in result.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("{vad_threshold: 50}", "'vad_threshold' cannot be 50; write a number from 0 to 1"),
        ("{vad_threshold: .nan}", "'vad_threshold' cannot be nan; write a number from 0 to 1"),
        ("{best_of: 0}", "'best_of' cannot be 0; write a whole number of at least 1"),
    ],
)
def test_values_with_which_no_recording_has_a_text_are_faults(run: Run, tmp_path: Path, flags: str, words: str) -> None:
    file = tmp_path / "flags.yaml"
    engine = f"engine:\n  name: faster-whisper\n  flags: {flags}\n"
    file.write_text(f"id: a\nversion: 1\ntask: transcribe\nsource: {{path: weights}}\n{engine}")
    result = run("validate", str(file))
    assert result.exit_code == 1
    assert f"engine flag {words}" in result.stderr


def test_faults_are_printed_as_json(run: Run, tmp_path: Path) -> None:
    reported = json.loads(run("validate", str(root() / "recipes/starter"), "--json").stdout)
    assert "starter-chat" in reported["recipes"]
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    assert len(json.loads(run("validate", str(file), "--json").stdout)["error"]["faults"]) == 2


def test_a_folder_without_recipes_is_refused(run: Run, tmp_path: Path) -> None:
    assert run("validate", str(tmp_path / "nothing.yaml")).exit_code == 1


@pytest.mark.parametrize(
    ("task", "engine", "files", "words"),
    [
        (
            "transcribe",
            "faster-whisper",
            config("LlamaForCausalLM"),
            "LlamaForCausalLM",
        ),
        ("chat", "vllm", {"adapter_config.json": "{}"}, "is an adapter"),
        ("chat", "vllm", {"model.bin": "", "vocabulary.json": ""}, "CTranslate2"),
        ("chat", "vllm", {"modules.json": "[]", "model.safetensors": "0"}, "sentence-transformers"),
        (
            "embed",
            "sentence-transformers",
            config("BertForSequenceClassification"),
            "rerank",
        ),
    ],
)
def test_sources_of_another_task_are_faults(
    run: Run, tmp_path: Path, task: str, engine: str, files: dict[str, str], words: str
) -> None:
    (tmp_path / "weights").mkdir()
    for name, text in files.items():
        (tmp_path / "weights" / name).write_text(text)
    file = tmp_path / "m.yaml"
    file.write_text(f"id: m\nversion: 1\ntask: {task}\nsource: {{path: weights}}\nengine: {{name: {engine}}}\n")
    assert run("validate", str(file)).exit_code == 0
    wrong = run("validate", str(file), "--sources")
    assert wrong.exit_code == 1
    assert words in wrong.stderr
    assert "m.yaml:4:" in wrong.stderr


def test_the_shipped_sources_fit_their_task(run: Run) -> None:
    result = run("validate", str(root() / "recipes/starter"), "--sources")
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("max_model_len: 512", "context_length"),
        ("device: cuda", "--device"),
        ("num_ctx: 512", "context_length"),
        ("tool_call_parser: hermes", "engine.flags"),
        ("contxt_length: 512", "context_length"),
    ],
)
def test_a_key_of_another_server_gets_a_hint(run: Run, tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(f"id: m\nversion: 1\ntask: chat\nsource: {{path: w}}\nengine: {{name: vllm}}\n{line}\n")
    result = run("validate", str(file))
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 2


def test_missing_sources_are_faults(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("id: m\nversion: 1\ntask: chat\nsource: {path: weights}\nengine: {name: vllm}\n")
    assert run("validate", str(file)).exit_code == 0
    assert run("validate", str(file), "--sources").exit_code == 1
