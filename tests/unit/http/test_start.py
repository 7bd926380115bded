"""A server that cannot start says why in words, not in a traceback."""

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.types import Message

from registry.errors import Conflict
from runtime.http.middleware import ContextMiddleware


@pytest.mark.parametrize(
    "error", [Conflict("A newer one."), PermissionError(13, "Permission denied", "/data/state.db")]
)
async def test_what_keeps_it_from_starting_is_one_line(error: Exception) -> None:
    sent: list[Message] = []

    async def start() -> None:
        raise error

    async def stop() -> None:
        raise AssertionError("it never began")

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        sent.append(message)

    def no_request(*_: object) -> Any:
        raise AssertionError("there is no request")

    app = ContextMiddleware(Starlette(), no_request, no_request, start, stop)
    with pytest.raises(type(error)):  # uvicorn's to take: it has been told
        await app({"type": "lifespan", "state": {}}, receive, send)
    assert sent == [{"type": "lifespan.startup.failed", "message": str(error)}]
