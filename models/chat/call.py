"""What a call of the engine gives back: its events, and its exact usage."""

from collections.abc import AsyncGenerator, AsyncIterator

from models.chat.vllm.usage import UsageMeter
from models.messages import Event, Usage


class ChatCall(AsyncIterator[Event]):
    """The events of one call. `usage` is exact at any time, also after a cancelled or closed call."""

    def __init__(self, events: AsyncGenerator[Event, None], meter: UsageMeter) -> None:
        self._events = events
        self._meter = meter

    def __aiter__(self) -> "ChatCall":
        return self

    async def __anext__(self) -> Event:
        return await self._events.__anext__()

    async def aclose(self) -> None:
        """End the call now: its work in the engine is aborted."""
        await self._events.aclose()

    @property
    def usage(self) -> Usage:
        return self._meter.usage()
