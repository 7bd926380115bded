"""The committed chat schemas of the OpenAPI document are those of the installed vLLM."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.eventually import PATIENCE

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[4]
SETTINGS = ("VLLM_", "ROUNDHOUSE_VLLM")
"""Prefixes of variables that engines leave in this process, because vLLM writes limits from some into its schemas."""


def test_the_chat_schemas_are_current() -> None:
    command = [sys.executable, ROOT / "scripts" / "chat-schemas", "--check"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=clean)
    assert done.returncode == 0, done.stderr
