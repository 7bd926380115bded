"""Requests to try on the server that has just started, as commands to copy."""

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from runtime.cli.options import root
from runtime.cli.remote.client import KEY, Json

SAMPLE = "models/starter/pack/samples/kitchen-light.wav"
QUESTION = "What is a slot?"
SENTENCE = "hello world"
ADAPTER = "uppercase"
TEXTS = ["a cat sat on the mat"]
QUERY = "What is the capital of France?"
DOCUMENTS = ["Bananas are yellow.", "Paris is the capital of France.", "Berlin is in Germany."]


def sample_requests(url: str, models: Sequence[Json]) -> list[tuple[str, str]]:
    """One request per task that is served: a title, and a curl command that works where the server was started."""
    by_task = {str(model["task"]): model for model in reversed(models)}
    result: list[tuple[str, str]] = []
    if chat := by_task.get("chat"):
        adapters = chat["adapters"]
        name = ADAPTER if ADAPTER in adapters else (adapters[0] if adapters else chat["id"])
        text = SENTENCE if adapters else QUESTION
        body: Json = {"model": name, "messages": [{"role": "user", "content": text}], "temperature": 0}
        title = f"chat, answered by the adapter {name}" if adapters else "chat"
        result.append((title, _curl(f"{url}/v1/chat/completions", body)))
    if embed := by_task.get("embed"):
        result.append(("embeddings", _curl(f"{url}/v1/embeddings", {"model": embed["id"], "input": TEXTS})))
    if rerank := by_task.get("rerank"):
        body = {"model": rerank["id"], "query": QUERY, "documents": DOCUMENTS}
        result.append(("rerank", _curl(f"{url}/v1/rerank", body)))
    if speech := by_task.get("transcribe"):
        command = (
            f"curl -s {url}/v1/audio/transcriptions{_key()} -F model={speech['id']} -F file=@{shlex.quote(_sample())}"
        )
        result.append(("transcription", command))
    return result


def _curl(url: str, body: Json) -> str:
    return f"curl -s {url}{_key()} -H 'Content-Type: application/json' \\\n  -d {shlex.quote(json.dumps(body))}"


def _key() -> str:
    """The header, where the server was asked with a key."""
    return f' -H "Authorization: Bearer ${KEY}"' if os.environ.get(KEY) else ""


def _sample() -> str:
    """A recording that ships, relative to where the user is if it lies below."""
    file = root() / SAMPLE
    if not file.is_file():
        return "recording.wav"
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)
