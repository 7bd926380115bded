"""Codex CLI, Claude Code and other vendors' own clients, all unchanged, against the real server."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import DOCS, Fence, fences
from tests.eventually import PATIENCE, eventually
from tests.system.agents.recorder import recorded
from tests.system.agents.scripted import (
    CLAUDE_SAYS,
    CODEX_SAYS,
    LIGHT_SAYS,
    NOTES,
    PASSWORDS,
    TASK_OF_CLAUDE,
    TASK_OF_CODEX,
    serve_scripted,
)
from tests.system.frameworks.environments import agents, interpreter
from tests.system.serving import ROOT, Server

pytestmark = pytest.mark.real
HERE = Path(__file__).parent
PERSON = {"name": "alice", "age": 30, "city": "paris"}
TOO_LONG = ("maximum context length is 8192 tokens", "prompt is too long")
"""Texts from which agents notice that they must shorten a conversation, for each API."""
JAVASCRIPT = (
    "openai", "openai responses", "@anthropic-ai/sdk", "ollama", "@ai-sdk/openai", "@ai-sdk/anthropic",
    "@ai-sdk/openai-compatible",
)  # fmt: skip
OTHERS = ("litellm", "pydantic-ai", "openai-agents", "openai-agents chat", "llama-index", "instructor", "llm")
OWN = (
    "openai in Python", "openai responses in Python", "anthropic in Python", "ollama in Python", "cohere",
    "huggingface_hub", "langchain",
)  # fmt: skip


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the agents' working folder."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory, work: Path) -> Iterator[Server]:
    with serve_scripted(tmp_path_factory.mktemp("scripted"), work) as server:
        server.wait_ready().wait_state("starter-chat", "ready")
        server.http.post("/v1/models/scripted/load").raise_for_status()  # a slow load takes longer than clients wait
        yield server


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of a user who has just installed the agent."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), **more}


def documented(info: str, url: str, model: str) -> str:
    """Return the block of docs/agents.md that sets up an agent, for this server and model."""
    lines = (DOCS / "agents.md").read_text().splitlines()
    (text,) = (fence.text for fence in fences(lines) if isinstance(fence, Fence) and info in fence.info)
    return text.replace("http://127.0.0.1:8000", url).replace("my-model", model)


def run_codex(url: str, home: Path, work: Path, model: str, task: str, *options: str) -> str:
    """Return what `codex exec` prints at the end."""
    (home / "config.toml").write_text(documented("codex", url, model))
    command = [agents() / "node_modules/.bin/codex", "exec", "--skip-git-repo-check"]
    command += ["--dangerously-bypass-approvals-and-sandbox", *options, task]
    done = subprocess.run(
        command,
        cwd=work,
        env=environment(home, CODEX_HOME=str(home)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def run_claude(url: str, home: Path, work: Path, model: str, task: str, *options: str) -> dict[str, Any]:
    """Return the answer of `claude --print`."""
    lines = documented("claude", url, model).splitlines()
    more = dict(line.removeprefix("export ").split("=", 1) for line in lines)
    command = [agents() / "node_modules/.bin/claude", "--print", task, *options]
    command += ["--allowedTools", "Read,Write", "--output-format", "json"]
    done = subprocess.run(
        command,
        cwd=work,
        env=environment(home, CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", **more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def check_row(client: str, warnings: list[str]) -> None:
    """Check that docs/agents.md names exactly what was left out of this client's requests."""
    (row,) = (line for line in (DOCS / "agents.md").read_text().splitlines() if line.startswith(f"| {client} | `"))
    named = set(re.findall(r"`([^`]+)`", row))
    listed = [part.partition(": ")[2] for warning in warnings for part in warning.split("; ") if "left out" in part]
    left_out = {name.removeprefix("tools of type ") for names in listed for name in names.split(", ")}
    assert left_out == named, warnings


def test_codex_reads_a_file_writes_another_and_answers(scripted: Server, work: Path, tmp_path: Path) -> None:
    (work / "notes.txt").write_text(NOTES.format(PASSWORDS["codex"]))
    with recorded(scripted.url) as (url, warnings):
        assert run_codex(url, tmp_path, work, "scripted", TASK_OF_CODEX) == CODEX_SAYS
    assert (work / "copy.txt").read_text() == PASSWORDS["codex"]
    check_row("Codex", warnings)


def test_claude_code_reads_a_file_writes_another_and_answers(scripted: Server, work: Path, tmp_path: Path) -> None:
    (work / "notes.txt").write_text(NOTES.format(PASSWORDS["claude"]))
    (work / "copy.txt").unlink(missing_ok=True)
    with recorded(scripted.url) as (url, warnings):
        answer = run_claude(url, tmp_path, work, "scripted", TASK_OF_CLAUDE)
    assert (answer["result"], answer["is_error"], answer["num_turns"]) == (CLAUDE_SAYS, False, 3)
    assert (work / "copy.txt").read_text() == PASSWORDS["claude"]
    check_row("Claude Code", warnings)


def test_both_agents_get_answers_of_a_real_model(scripted: Server, work: Path, tmp_path: Path) -> None:
    """The starter model cannot follow instructions, so its answers make no sense."""
    (tmp_path / "short.md").write_text("Be brief.")
    assert run_codex(
        scripted.url, tmp_path, work, "starter-chat", "hello", "-c", f"model_instructions_file={tmp_path}/short.md"
    )
    answer = run_claude(
        scripted.url, tmp_path, work, "starter-chat", "hello", "--system-prompt", "Be brief.", "--tools", "Read"
    )
    assert answer["is_error"] is False


@pytest.fixture(scope="module")
def answers(scripted: Server) -> dict[str, dict[str, Any]]:
    """Return each client's results by case."""
    commands = (
        ["node", HERE / "clients.mjs", agents(), scripted.url],
        [interpreter("others"), "-m", "tests.system.agents.other_clients", scripted.url],
        [sys.executable, "-m", "tests.system.agents.own_clients", scripted.url],
    )
    found: dict[str, dict[str, Any]] = {}
    for command in commands:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr[-2000:]
        found |= json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("client", [*JAVASCRIPT, *OTHERS, *OWN])
def test_a_client_works_as_it_is(client: str, answers: dict[str, dict[str, Any]]) -> None:
    found = answers[client]
    assert (found["text"], found["stream"]) == ("HELLO WORLD", "HELLO WORLD")
    assert found["tools"] == ["set_light", {"state": "on"}, LIGHT_SAYS]
    if client == "@ai-sdk/anthropic":  # asks unknown models with a tool named `json`, which the adapter does not know
        assert {name: type(value) for name, value in found["schema"].items()} == {"name": str, "age": int, "city": str}
    else:
        assert found["schema"] == PERSON
    assert found["error"]["status"] == 404
    assert "no model or adapter 'nobody'" in found["error"]["text"]
    assert found["tooLong"]["status"] == 400
    assert any(words in found["tooLong"]["text"] for words in TOO_LONG), found["tooLong"]
    assert found["stop"] is None


def test_a_stream_that_a_client_leaves_is_cancelled(scripted: Server, answers: dict[str, dict[str, Any]]) -> None:
    """The other clients' streams end by themselves, as LiteLLM keeps reading."""

    def cancelled() -> Counter[str]:
        lines = [json.loads(line) for line in scripted.log.read_text().splitlines() if '"request ended"' in line]
        return Counter(line["endpoint"] for line in lines if line["end"] == "cancelled")

    least = Counter({"/v1/chat/completions": 6, "/v1/responses": 3, "/v1/messages": 2, "/api/chat": 1})
    eventually(lambda: cancelled() >= least, cancelled)


# --- Vercel's AI SDK names stored items by their ids ----------------------------------------------------------------
def turns(url: str, **options: Any) -> dict[str, dict[str, Any]]:
    """Return what turns.mjs prints, whole and streamed."""
    command = ["node", HERE / "turns.mjs", agents(), url, "scripted", json.dumps(options)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def storing(scripted: Server) -> Iterator[Server]:
    """The server while it stores responses of requests without a key."""

    def stores() -> bool:
        body = {"model": "scripted", "input": "Hello.", "max_output_tokens": 1}
        return bool(scripted.http.post("/v1/responses", json=body).json()["store"])

    scripted.command("teams", "edit", "default", "--store-responses", "1")
    eventually(stores)
    yield scripted
    scripted.command("teams", "edit", "default", "--store-responses", "0")
    eventually(lambda: not stores())


def test_vercels_default_provider_goes_on_from_stored_items(storing: Server) -> None:
    for found in turns(storing.url).values():
        assert found["texts"] == [LIGHT_SAYS] * 3, found
        assert found["kinds"] == [
            "user", "function_call", "function_call_output", "item_reference", "user", "item_reference", "user",
        ]  # fmt: skip


def test_vercels_default_provider_says_what_to_do_where_nothing_is_stored(scripted: Server) -> None:
    for found in turns(scripted.url).values():
        assert (found["texts"], found["status"]) == ([LIGHT_SAYS], 400), found
        assert "set providerOptions: {openai: {store: false}}" in found["error"]
    for found in turns(scripted.url, store=False).values():
        assert found["texts"] == [LIGHT_SAYS] * 3, found
