"""A request that fails on its way to EngineCore leaves no state behind in the slot.

vLLM registers a request's state (prompt, token ids, answer so far) and only then encodes the request for EngineCore.
When that fails, or is cancelled, `AsyncLLM.generate` has no request yet that it could abort.
"""

from contextvars import ContextVar
from typing import Any

_REGISTERED: ContextVar[list[str] | None] = ContextVar("roundhouse_registered", default=None)
"""Internal ids of the engine requests that the current `add_request` has registered."""


def undo_failed(engine: Any) -> None:
    """Make `engine.add_request` abort what it registered, in the slot and in EngineCore, whenever it raises."""
    register, add_request = engine.output_processor.add_request, engine.add_request

    def registered(request: Any, *arguments: Any, **named: Any) -> None:
        register(request, *arguments, **named)
        if (ids := _REGISTERED.get()) is not None:
            ids.append(request.request_id)

    async def added(*arguments: Any, **named: Any) -> Any:
        ids: list[str] = []
        token = _REGISTERED.set(ids)
        try:
            return await add_request(*arguments, **named)
        except BaseException:
            await engine.abort(ids, internal=True)
            raise
        finally:
            _REGISTERED.reset(token)

    engine.output_processor.add_request, engine.add_request = registered, added
