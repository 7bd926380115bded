"""The server can listen on every address of this machine, by number or by name."""

import os
from contextlib import closing
from pathlib import Path

import httpx
import psutil
import pytest

from tests.eventually import eventually
from tests.system.serving import STARTER, Server

pytestmark = pytest.mark.real


def has_ipv6() -> bool:
    return any(address.address == "::1" for found in psutil.net_if_addrs().values() for address in found)


@pytest.mark.parametrize(
    ("host", "called"),
    [
        ("localhost", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2"),
        pytest.param("::1", "[::1]", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")),
    ],
)
def test_an_address_of_this_machine(host: str, called: str, tmp_path: Path) -> None:
    """LitServe only accepts three of them. Its own variable for a key has no effect."""
    env = {**os.environ, "LIT_SERVER_API_KEY": "litserves"}
    server = Server(tmp_path / "a" / "data", [STARTER / "starter-embed.yaml"], "--host", host, "--slots", "1", env=env)
    server.http = httpx.Client(base_url=f"http://{called}:{server.port}", timeout=600)
    with closing(server):
        server.wait_ready()
        assert [one["id"] for one in server.http.get("/v1/models").json()["data"]] == ["starter-embed"]
        if called != "127.0.0.1":
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{server.url}/health/live")
        reported = f"http://{called if host != 'localhost' else host}:{server.port}"
        eventually(lambda: reported in server.log.read_text(), server.tail)  # logged by another thread
        assert server.stop() == 0
    assert "LIT_SERVER_API_KEY" in server.log.read_text()
