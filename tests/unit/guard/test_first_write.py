"""An answer's head and the beginning of its body are sent together, but neither waits for the other."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.http.guard.protocol import LARGE, _FirstWrite


class Transport:
    def __init__(self) -> None:
        self.calls: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def close(self) -> None:
        self.calls.append(b"closed")

    def is_closing(self) -> bool:
        return False


@pytest.fixture
async def cycle() -> Any:
    made = SimpleNamespace(transport=Transport())
    made.real = made.transport
    made.transport = _FirstWrite(made, asyncio.get_running_loop())
    return made


async def test_head_and_body_of_one_turn_are_one_write(cycle: Any) -> None:
    cycle.transport.write(b"head ")
    assert not cycle.transport.is_closing()
    cycle.transport.write(b"body")
    cycle.transport.write(b"more")
    await asyncio.sleep(0)
    assert cycle.real.calls == [b"head body", b"more"]
    assert cycle.transport is cycle.real, "later writes stay in order"


async def test_a_head_does_not_wait_for_a_later_body(cycle: Any) -> None:
    cycle.transport.write(b"head")
    await asyncio.sleep(0)
    assert cycle.real.calls == [b"head"]
    cycle.transport.write(b"body")
    assert cycle.real.calls == [b"head", b"body"]


async def test_a_large_body_is_not_copied(cycle: Any) -> None:
    body = bytes(LARGE + 1)
    cycle.transport.write(b"head")
    cycle.transport.write(body)
    await asyncio.sleep(0)
    assert cycle.real.calls[0] == b"head"
    assert cycle.real.calls[1:] == [body]
    assert cycle.real.calls[1] is body


async def test_a_head_is_sent_before_the_connection_closes(cycle: Any) -> None:
    cycle.transport.write(b"head")
    cycle.transport.close()
    await asyncio.sleep(0)
    assert cycle.real.calls == [b"head", b"closed"]
