"""Runs an example like a reader: in the checkout, with the server's address filled in."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import ENVIRONMENTS, ROOT, Example
from tests.system.frameworks.environments import agents, interpreter

ADDRESS = "http://127.0.0.1:8000"
SECONDS = 600


class Failed(AssertionError):
    """The example failed, or did not end."""


def missing(language: str) -> str | None:
    """Return why examples of a language cannot run here, or None if they can."""
    if language == "js" and shutil.which("node") is None:
        return "node is not installed"
    return None


def run(example: Example, url: str, data: Path | None = None) -> str:
    """Run an example; returns what it prints. Raises Failed if its exit code is not 0 or it takes too long.

    data: the server's data directory, if known.
    """
    code = example.code.replace(ADDRESS, url)
    other = next((name for name in ENVIRONMENTS if name in example.info), None)
    python = str(interpreter(other)) if other else sys.executable
    match example.language:
        case "bash":
            command = ["bash", "-euo", "pipefail", "-c", code]
        case "python":
            command = [python, "-c", code]
        case _:
            command = ["node", "--input-type=module", "-e", code]
    tools = str(Path(python).parent)
    environment = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "ROUNDHOUSE_URL": url,
        "COLUMNS": "100",
    }
    if data is not None:
        environment["ROUNDHOUSE_DATA_DIR"] = str(data)
    folder = agents() if "agents" in example.info else ROOT
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        raise Failed(f"{example.name} had not ended after {SECONDS} s") from late
    if done.returncode:
        raise Failed(f"{example.name} ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout
