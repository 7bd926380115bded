"""README's way from a clone to one's own adapter: few commands, and each does what the page says."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import newcomer
from tests.docs.blocks import ROOT
from tests.newcomer import ANSWER, MAX_STEPS, URL, commands
from tests.system.serving import Server


def test_it_is_few_commands_in_the_order_of_their_need() -> None:
    reported = commands()
    assert len(reported) <= MAX_STEPS
    assert [line.split()[0].rpartition("/")[2] for line in reported[:3]] == ["git", "cd", "make"]
    assert reported[-1].startswith(".venv/bin/roundhouse chat --model my-tune ")


@pytest.mark.real
@pytest.mark.long
def test_somebody_who_clones_it_gets_there(server: Server, tmp_path: Path) -> None:
    """The installation is the one of the tests; the server, which `make serve` would start, is theirs, too."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("this is no clone")
    clone, enter, serve, *rest = commands()
    clone = clone.replace(URL, f"--quiet --depth 1 file://{ROOT}")
    link = f"ln -s {ROOT / '.venv'} .venv" if (ROOT / ".venv").exists() else f"mkdir .venv && ln -s {_bin()} .venv/bin"
    script = "\n".join([clone, enter, f"{serve} --dry-run > made", link, *rest])
    environment = {**os.environ, "ROUNDHOUSE_URL": server.url, "GIT_CONFIG_COUNT": "1",
                   "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}  # fmt: skip
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == ANSWER
        assert "exec .venv/bin/roundhouse serve" in (tmp_path / "roundhouse" / "made").read_text()
    finally:
        server.http.delete("/v1/adapters/my-tune?force=true")


@pytest.mark.real
@pytest.mark.timeout(newcomer.FIRST_START * 2)
@pytest.mark.skipif("ROUNDHOUSE_NEWCOMER" not in os.environ, reason="it installs everything: ROUNDHOUSE_NEWCOMER=1")
def test_the_whole_way_from_an_empty_folder(tmp_path: Path) -> None:
    """With the installation and a server of its own. `python -m tests.newcomer` tells the time of each step."""
    *_, last = newcomer.walk(tmp_path)
    assert last.printed.splitlines()[-1] == ANSWER


def _bin() -> Path:
    return Path(sys.executable).parent
