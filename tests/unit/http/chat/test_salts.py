"""Teams share no cached prompts: each dialect hands the engine a salt that follows from the team's."""

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from models.messages import ResponseEnd, ResponseStart, Usage
from tenants.caller import Caller
from tests.unit.http.fakes import CallerLayer, FakeGateway, application, recipe

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
REQUESTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
    "/api/chat": {"messages": MESSAGES},
    "/api/generate": {"prompt": "hi"},
    "/v2/chat": {"messages": MESSAGES},
}


async def salt(folder: Path, path: str, team: str, **more: Any) -> Any:
    """The salt that the engine gets with a request of the caller whose team has the salt `team`."""
    gateway = FakeGateway(folder, [recipe("chat", "chat")])
    gateway.links["chat"].script = lambda _: [
        ResponseStart(status=400, content_type="application/json"), ResponseEnd(usage=Usage()),
    ]  # fmt: skip
    app = application(gateway, [(CallerLayer, {"caller": Caller(salt=team)})])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        await client.post(path, json={"model": "chat", **REQUESTS.get(path, {"messages": MESSAGES}), **more})
    [request] = gateway.links["chat"].requests
    return msgspec.json.decode(request.body).get("cache_salt")


@pytest.mark.parametrize("path", REQUESTS)
async def test_each_team_has_its_own(tmp_path: Path, path: str) -> None:
    first, again, other = [await salt(tmp_path, path, team) for team in ("one", "one", "two")]
    assert first == again != other
    assert len(first) == len(other) == 64, "a digest, from which nobody learns the team's"


async def test_a_clients_own_separates_within_its_team(tmp_path: Path) -> None:
    mine, again, yours, none = [
        await salt(tmp_path, CHAT, team, **own)
        for team, own in (
            ("one", {"cache_salt": "mine"}),
            ("one", {"cache_salt": "mine"}),
            ("two", {"cache_salt": "mine"}),
            ("one", {"cache_salt": None}),
        )
    ]
    assert mine == again
    assert len({mine, yours, none}) == 3
    assert none == await salt(tmp_path, CHAT, "one")


@pytest.mark.parametrize("wrong", ["", 5, ["mine"]])
async def test_an_invalid_one_is_left_to_the_engine_which_refuses_it(tmp_path: Path, wrong: object) -> None:
    assert await salt(tmp_path, CHAT, "one", cache_salt=wrong) == wrong


async def test_there_is_none_without_a_team_or_a_cached_prompt(tmp_path: Path) -> None:
    assert await salt(tmp_path, CHAT, "") is None
    assert await salt(tmp_path, CHAT, "", cache_salt="mine") == "mine"
    assert await salt(tmp_path, "/tokenize", "one") is None
