"""The chat family's part of the OpenAPI document is what the installed vLLM gives."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[4]


def test_the_chat_schemas_are_current() -> None:
    command = [sys.executable, ROOT / "scripts" / "chat-schemas", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
