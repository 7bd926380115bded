"""An engine listens on Unix sockets and on Gloo's ports on loopback, which are harmless."""

import os
import socket

import psutil
import pytest

from tests.contract.chat_engine.bench import Bench

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="package")]
GLOO_GROUPS = 13
"""The number of ports with vLLM 0.32: one for each group of workers (tensor, pipeline, data and more)."""


def listening(process: psutil.Process) -> list[tuple[str, int]]:
    return [tuple(c.laddr) for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]


async def test_only_gloo_listens_and_only_on_loopback(bench: Bench) -> None:
    slot = psutil.Process()
    (core,) = (child for child in slot.children() if "EngineCore" in child.name())
    assert listening(slot) == []
    ports = listening(core)
    assert len(ports) <= GLOO_GROUPS, ports
    assert {address for address, _ in ports} <= {"127.0.0.1", "::1"}
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    for address, port in ports:
        for junk in (b"", b"abc", bytes(8), os.urandom(1 << 16)):
            with socket.create_connection((address, port)) as peer:
                peer.sendall(junk)
    tokens, _ = await bench.greedy("still there", None, 4)
    assert tokens
    assert core.is_running()
