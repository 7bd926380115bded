"""A server on a tiny random base, for all tests of a module."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.chat import fixtures as chat_fixtures
from tests.faults.tiny import RECIPE, Tiny
from tests.system.serving import Server
from tests.unit.adapters.fake_hub import FakeHub, serve


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, bool]]:
    """Yield a folder for data, and whether it is a disk of 32 MiB that a test may fill."""
    folder = tmp_path_factory.mktemp("data")
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, check=False, capture_output=True).returncode == 0
    yield folder, mounted
    if mounted:
        subprocess.run(["umount", "-l", str(folder)], check=False)


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    """The hub that the server of `tiny` uses."""
    with serve() as hub, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield hub


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, small_disk: tuple[Path, bool], hub: FakeHub) -> Iterator[Tiny]:
    folder = tmp_path_factory.mktemp("tiny")
    chat_fixtures.write_base(folder / "base")
    recipe = folder / "tiny.yaml"
    recipe.write_text(RECIPE.format(base=folder / "base", host=8))
    server = Server(small_disk[0], [recipe], "--slots", "2")
    try:
        server.wait_ready()
        assert server.http.post("/v1/models/tiny/load", timeout=600).status_code == 200, server.tail()
        yield Tiny(server, folder)
    finally:
        server.close()
