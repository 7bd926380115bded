"""Conversations of routers continue at other servers, because the home node of their key knows the target."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtime.gateway.peers import conversations
from runtime.gateway.peers.conversations import PeerConversations
from tests.unit.http.hops.rig import Fleet, Node, opened
from tests.unit.http.hops.test_front import scripted, until

KEYS = [bytes([number]) * 16 for number in range(32)]


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with opened(tmp_path) as fleet:
        yield fleet


def known(node: Node) -> dict[bytes, str]:
    found = {key: node.fake.gateway.dispatcher.conversations.target_of(key) for key in KEYS}
    return {key: target for key, target in found.items() if target is not None}


async def test_a_server_learns_another_ones_choice_from_the_home(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "ASK_SECONDS", 60.0)
    monkeypatch.setattr(conversations, "TELL_SECONDS", 60.0)
    nodes = [scripted(fleet.node(f"node-{number}")) for number in (1, 2)]
    await fleet.start(*nodes)

    def names() -> list[str]:
        return ["node-1", "node-2"]

    front, other = (PeerConversations(name, names, fleet.reports, fleet.peer_client) for name in ("front-1", "front-2"))
    for key in KEYS:
        front.tell(key, "chat/ü", 60.0)
    await until(lambda: sum(len(known(node)) for node in nodes) == len(KEYS))
    assert all(known(node) for node in nodes), "each node is the home of some"
    assert [await other.find(key) for key in KEYS[:4]] == ["chat/ü"] * 4
    assert await other.find(b"x" * 16) is None
    own = PeerConversations("node-1", names, fleet.reports, fleet.peer_client)
    assert {await own.find(key) for key in known(nodes[0])} == {None}, "its own are not requested"


async def test_with_a_missing_or_slow_home_the_conversation_is_new(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = scripted(fleet.node("node-1"))
    await fleet.start(node)
    front = PeerConversations("front-1", lambda: ["node-1"], fleet.reports, fleet.peer_client)
    node.fake.gateway.dispatcher.conversations.remember(KEYS[0], "chat", 60.0)
    monkeypatch.setattr(conversations, "ASK_SECONDS", 0.0)
    assert await front.find(KEYS[0]) is None
    monkeypatch.setattr(conversations, "ASK_SECONDS", 60.0)
    assert await front.find(KEYS[0]) == "chat"
    await node.kill()
    assert await front.find(KEYS[0]) is None
    front.tell(KEYS[0], "chat", 60.0)
    await until(lambda: not front._telling)
    alone = PeerConversations("front-1", list, fleet.reports, fleet.peer_client)
    assert await alone.find(KEYS[0]) is None


@pytest.mark.parametrize("path", ["short", "x" * 32, "0" * 34, f"{'0' * 32}?seconds=much&target=a"])
async def test_malformed_keys_of_conversations_are_refused(fleet: Fleet, path: str) -> None:
    node = scripted(fleet.node("node-1"))
    await fleet.start(node)
    with pytest.raises(Exception, match="status 400"):
        await fleet.peer_client.ask("PUT", "node-1", node.address, f"{conversations.PATH}/{path}")
