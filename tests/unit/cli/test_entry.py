"""The installed command: `serve` starts itself again before anything else is imported, everything else does not."""

import os
import subprocess
import sys

import pytest

CODE = """
import os, sys
print(sum(name.startswith("typer") for name in sys.modules), os.environ.get("ROUNDHOUSE_SERVER_ID"), flush=True)
from runtime.cli.entry import main
main()
"""


@pytest.mark.parametrize(
    ("arguments", "starts", "code"),
    [(("serve", "--port", "1"), 2, 2), (("serve", "--help"), 1, 0), (("version",), 1, 0), (("status", "-x"), 1, 2)],
)
def test_serve_starts_itself_again_once(arguments: tuple[str, ...], starts: int, code: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ROUNDHOUSE_SERVER_ID"}
    command = [sys.executable, "-c", CODE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == code, done.stderr
    stated = [line.split() for line in done.stdout.splitlines() if line.startswith("0 ")]
    assert [ident == "None" for _, ident in stated] == [True, False][:starts]
