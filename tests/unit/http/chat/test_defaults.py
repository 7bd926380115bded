"""The system message and stop sequences of a recipe, in every dialect of chat."""

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from models.messages import ResponseEnd, ResponseStart, Usage
from tests.unit.http.fakes import FakeGateway, application, recipe

SYSTEM, OWN = {"role": "system", "content": "Be brief."}, {"role": "system", "content": "Be long."}
HI, DEVELOPER = {"role": "user", "content": "hi"}, {"role": "developer", "content": "Be long."}
NO_SYSTEM = {"role": "system", "content": ""}
STOP = ["User:", "###"]
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


async def engine_body(folder: Path, path: str, body: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The body that a request with `body` hands to the engine of a recipe with `changes`."""
    gateway = FakeGateway(folder, [recipe("chat", "chat").model_copy(update=changes)])
    gateway.links["chat"].script = lambda _: [
        ResponseStart(status=400, content_type="application/json"), ResponseEnd(usage=Usage()),
    ]  # fmt: skip
    app = application(gateway)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        await client.post(path, json={"model": "chat", **body})
    [request] = gateway.links["chat"].requests
    decoded: dict[str, Any] = msgspec.json.decode(request.body)
    return decoded


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (CHAT, {"messages": [HI]}, {"messages": [SYSTEM, HI], "stop": STOP}),
        (CHAT, {"messages": [HI], "stop": None}, {"messages": [SYSTEM, HI], "stop": STOP}),
        (CHAT, {"messages": [HI, OWN], "stop": "x"}, {"messages": [HI, OWN], "stop": "x"}),
        (CHAT, {"messages": [DEVELOPER, HI], "stop": []}, {"messages": [DEVELOPER, HI], "stop": []}),
        (CHAT, {"messages": [NO_SYSTEM, HI]}, {"messages": [NO_SYSTEM, HI], "stop": STOP}),
        (CHAT, {"messages": [5, HI]}, {"messages": [SYSTEM, 5, HI]}),
        (CHAT, {"messages": "hi"}, {"messages": "hi"}),
        ("/v1/completions", {"prompt": "hi"}, {"prompt": "hi", "stop": STOP}),
        (MESSAGES, {"messages": [HI]}, {"system": "Be brief.", "messages": [HI], "stop_sequences": STOP}),
        (MESSAGES, {"messages": [HI], "system": "", "stop_sequences": ["x"]}, {"system": "", "stop_sequences": ["x"]}),
        (MESSAGES, {"messages": [OWN, HI]}, {"system": None, "messages": [OWN, HI], "stop_sequences": STOP}),
        ("/v1/messages/count_tokens", {"messages": [HI]}, {"system": "Be brief.", "messages": [HI]}),
        (RESPONSES, {"input": "hi"}, {"input": [SYSTEM, HI], "stop": STOP}),
        (f"{RESPONSES}/input_tokens", {"input": "hi"}, {"input": [SYSTEM, HI]}),
        (RESPONSES, {"input": [HI]}, {"input": [SYSTEM, HI]}),
        (RESPONSES, {"input": "hi", "instructions": "Be long."}, {"input": "hi", "instructions": "Be long."}),
        (RESPONSES, {"input": [DEVELOPER, HI]}, {"input": [DEVELOPER, HI]}),
        ("/tokenize", {"messages": [HI]}, {"messages": [SYSTEM, HI]}),
        ("/tokenize", {"prompt": "hi"}, {"prompt": "hi"}),
        ("/api/chat", {"messages": [HI]}, {"messages": [SYSTEM, HI], "stop": STOP}),
        ("/api/chat", {"messages": [HI], "options": {"stop": ["x"]}}, {"messages": [SYSTEM, HI], "stop": ["x"]}),
        ("/api/generate", {"prompt": "hi", "system": ""}, {"messages": [SYSTEM, HI]}),
        ("/api/generate", {"prompt": "hi", "system": "Be long."}, {"messages": [OWN, HI]}),
        ("/api/generate", {"prompt": "hi", "raw": True}, {"prompt": "hi", "stop": STOP}),
        ("/v2/chat", {"messages": [HI]}, {"messages": [SYSTEM, HI], "stop": STOP}),
    ],
)  # fmt: skip
async def test_they_are_added_to_requests_without_their_own(
    tmp_path: Path, path: str, body: dict[str, Any], expected: dict[str, Any]
) -> None:
    sent = await engine_body(tmp_path, path, body, system="Be brief.", stop=tuple(STOP))
    assert {name: sent.get(name) for name in expected} == expected
    if path in ("/tokenize", "/v1/messages/count_tokens", f"{RESPONSES}/input_tokens"):
        assert not sent.keys() & {"stop", "stop_sequences"}
    if path == RESPONSES:
        assert sent.get("instructions") == body.get("instructions"), "the answer repeats them"


async def test_a_recipe_without_them_adds_nothing(tmp_path: Path) -> None:
    sent = await engine_body(tmp_path, CHAT, {"messages": [HI]})
    assert sent == {"model": "chat", "messages": [HI]}
