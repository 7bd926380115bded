"""A path of another server is answered with advice on what does the same here, which exists."""

import re

import pytest
import typer.main

from docs.tables.cli import walk
from runtime.cli.main import app
from runtime.http.guard import foreign
from runtime.http.guard.access import PATHS, unknown_path_error

NAMED = re.compile(r"/[\w/{}]+")
COMMANDS = {name for name, _ in walk(typer.main.get_command(app), "roundhouse")}


@pytest.mark.parametrize(("path", "advice"), foreign.ADVICE.items())
def test_paths_and_commands_in_the_advice_exist(path: str, advice: str) -> None:
    plain = {known.replace(":path}", "}") for known in PATHS}
    assert path not in plain
    assert not path.endswith("/") or path[:-1] in plain, "its advice is only for paths below one that exists"
    assert set(NAMED.findall(advice.replace("ends in /v1", ""))) <= plain
    for command in re.findall(r"'(roundhouse [a-z ]+)'", advice):
        assert any(f"{known} ".startswith(f"{command} ") for known in COMMANDS), command


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/healthz", "It is at /health/live."),
        ("/api/blobs/sha256:29fd", "Upload an adapter to /v1/adapters"),
        ("/key/generate", "'roundhouse keys'"),
        ("/v1/images/generations", "No model here makes sound or pictures."),
        ("/openai/deployments/x/chat/completions", "OpenAI's client in place of Azure's"),
        ("/v1/chat/", "/v2/chat"),
        ("/v1/chat/completion", "Did you mean /v1/chat/completions?"),
        ("/models/jobs/5f2c", "/v1/models/{model}"),
        ("/v1/model_registrations/LLM", "'roundhouse models add'"),
        ("/sleep", "/v1/models/{model}/unload"),
        ("/invocations", "/v1/chat/completions"),
        ("/ui/", "The console is at /."),
        ("/inference", "transcribed at /v1/audio/transcriptions"),
        ("/asr", "transcribed at /v1/audio/transcriptions"),
        ("/detect-language", "`verbose_json`"),
        ("/lora-adapters", "/v1/adapters"),
        ("/load_lora_adapter", "It is at /v1/load_lora_adapter."),
        ("/inference/v1/generate", "/v1/completions"),
        ("/api/ps/Systran/faster-whisper-small", "/v1/models/{model}/unload"),
        ("/api/pull/Systran/faster-whisper-small", "'roundhouse models add'"),
        ("/v2/models/a/infer", "/v1/chat/completions"),
        ("/v2/health/ready", "It is at /health/ready."),
        ("/reranking", "It is at /v1/rerank."),
        ("/nonsense", "See /docs."),
        ("//nonsense", "See /docs."),
        ("/v1/health/live", "It is at /health/live."),
        ("/chat/completions", "It is at /v1/chat/completions."),
        ("/api/v1/chat/completions", "It is at /v1/chat/completions."),
        ("/openai/v1/chat/completions/", "It is at /v1/chat/completions."),
        ("/ollama/api/tags", "It is at /api/tags."),
    ],
)
def test_the_advice_on_a_path(path: str, words: str) -> None:
    error = unknown_path_error(path)
    assert error.code == "unknown_path"
    assert words in error.message
