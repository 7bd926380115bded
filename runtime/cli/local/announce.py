"""Announce a starting server: its progress, its URL, and sample requests."""

import contextlib
import json
import logging
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from runtime.cli.failures import Failure, RefusedError
from runtime.cli.options import root
from runtime.cli.output import emit, say
from runtime.cli.remote.client import KEY, Client, Json
from runtime.cli.remote.progress import Bar, bar

SAMPLE = "models/starter/pack/samples/kitchen-light.wav"
QUESTION = "What is a slot?"
SENTENCE = "hello world"
ADAPTER = "uppercase"
TEXTS = ["a cat sat on the mat"]
QUERY = "What is the capital of France?"
DOCUMENTS = ["Bananas are yellow.", "Paris is the capital of France.", "Berlin is in Germany."]


def sample_requests(url: str, models: Sequence[Json]) -> list[tuple[str, str]]:
    """Return a title and a curl command per task, to run where the server was started."""
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
    """Return the header for the key, if one is set."""
    return f' -H "Authorization: Bearer ${KEY}"' if os.environ.get(KEY) else ""


def _sample() -> str:
    """Return the path of a bundled recording, relative if it is below the working directory."""
    file = root() / SAMPLE
    if not file.is_file():
        return "recording.wav"
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)


POLL_SECONDS, UNSEEN_POLL_SECONDS = 0.1, 0.5
"""Seconds between polls, with and without a visible bar. Polls take processor time from the loads."""


def is_for_people() -> bool:
    """Return whether the output goes to a terminal; otherwise it goes to the server's log, whose lines are JSON."""
    return sys.stdout.isatty()


def _pause(progress_bar: Bar) -> None:
    time.sleep(POLL_SECONDS if progress_bar.is_drawn else UNSEEN_POLL_SECONDS)


def wait_until_ready(client: Client, server: int, progress_bar: Bar) -> Json | None:
    """Return the answer of /health/ready once it is 200; None if the server has ended."""
    began = time.monotonic()
    while os.getppid() == server:
        with contextlib.suppress(Failure):
            return client.get("/health/ready")
        progress_bar.show(f"starting, {time.monotonic() - began:.0f} s", 0.0)
        _pause(progress_bar)
    return None


def wait_for_loads(client: Client, server: int, progress_bar: Bar) -> list[Json] | None:
    """Return the models once none is loading; None if our key may not list them."""
    try:
        models: list[Json] = client.get("/v1/models")["data"]
    except RefusedError as error:
        say(error.message, logging.WARNING)
        return None
    while os.getppid() == server:
        loading = [model for model in models if model.get("state") == "loading"]
        if not loading:
            break
        model = loading[0]
        progress = model["progress"] or {"phase": "waiting", "percent": 0.0}
        progress_bar.show(f"loading {model['id']}: {progress['phase']}", progress["percent"] / 100)
        _pause(progress_bar)
        models = client.get("/v1/models")["data"]
    return models


def main(arguments: Sequence[str]) -> int:
    """Announce the server. arguments: the URL, the server's process id, and optionally --json."""
    url, server, as_json = arguments[0], int(arguments[1]), "--json" in arguments
    began = time.monotonic()
    with Client(url) as client, bar(not as_json) as progress_bar:
        ready = wait_until_ready(client, server, progress_bar)
        if ready is None:
            return 0
        if not as_json:
            seconds = time.monotonic() - began
            say(f"answering at {url} after {seconds:.1f} s; models without preload load at their first request")
        named = wait_for_loads(client, server, progress_bar)
    # without adapters, routers and providers' models
    models = [model for model in named or () if "state" in model]
    for name, fault in ready.get("faults", {}).items():
        say(f"warning: adapter {name} was refused: {fault}", logging.WARNING)
    for model in models:
        if model.get("problem"):
            say(f"warning: {model['problem']}", logging.WARNING)
    if as_json:
        emit({"url": url, "pid": server, "models": {model["id"]: model["state"] for model in models}})
        return 0
    ready_after = f"Roundhouse is ready after {time.monotonic() - began:.1f} s: {url}"
    if not is_for_people():
        say(ready_after, console=f"{url}/console", documentation=f"{url}/docs")
        return 0
    print(f"\n{ready_after}\nconsole: {url}/console  documentation: {url}/docs")
    if named == []:
        print("\nThere is no model yet. Add one: roundhouse models add SOURCE (a folder, or ORG/NAME on a hub)")
    for title, command in sample_requests(url, models):
        print(f"\n# {title}\n{command}")
    print("\nCtrl-C stops it after running requests have finished.", flush=True)
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, Failure):
        sys.exit(main(sys.argv[1:]))
