"""Ollama's `keep_alive`.

Here a model stays until another one needs its room or its recipe's idle timeout has passed, so the only value with an
effect is 0: the model is unloaded after the answer, unless it is pinned or in use, or at once if there is nothing to
answer. That needs the scope `models`. For other keys the model stays, and a request that only unloads is refused.
"""

import asyncio
import re
from collections.abc import Mapping
from contextlib import aclosing

import msgspec

from registry.base.json import NOT_JSON
from registry.base.wording import quoted
from registry.errors import BadRequest, Forbidden, RoundhouseError
from runtime.gateway.context import RequestContext
from runtime.gateway.core import Gateway
from runtime.gateway.views.values import ModelView
from runtime.http.dialect import Endpoint, Parts, whole_answer
from runtime.http.ollama.answers import Timings, Writer
from runtime.http.ollama.models import base_model
from runtime.http.serving import serve
from tenants.caller import Caller, Scope

_NUMBER = r"(\d+(\.\d*)?|\.\d+)"
_DURATION = re.compile(rf"[+-]?({_NUMBER}|({_NUMBER}(ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)
"""Matches Go's durations, and seconds without a unit. Go reads no other digits, nor does `_ZERO`."""
_ZERO = re.compile(r"[^1-9]*")


_unloads: set[asyncio.Future[ModelView]] = set()
"""References to running unloads."""


class _KeepAliveFields(msgspec.Struct):
    model: str
    keep_alive: int | float | str | None = None
    messages: list[msgspec.Raw] | None = None
    prompt: str | None = None


def unloads(keep_alive: int | float | str | None) -> bool:
    """Whether the model should be unloaded after the answer. Raises BadRequest for an invalid duration."""
    if not isinstance(keep_alive, str):
        return keep_alive == 0
    if keep_alive and not _DURATION.fullmatch(keep_alive):
        raise BadRequest(
            f"'keep_alive' is {quoted(keep_alive)}, not a duration. Send seconds as a number, or a text such as "
            '"5m", "1h30m", "0" or "-1s".',
            param="keep_alive",
        )
    return bool(keep_alive) and _ZERO.fullmatch(keep_alive) is not None


def serve_with_keep_alive(
    gateway: Gateway, context: RequestContext, endpoint: Endpoint, body: bytes, query: Mapping[str, str]
) -> Parts:
    """Like `serve`, and unloads the model after the answer if requested. Raises Forbidden."""
    parts = serve(gateway, context, endpoint, body, query)
    return apply_keep_alive(endpoint.path, gateway, context.caller, body, parts)


def apply_keep_alive(path: str, gateway: Gateway, caller: Caller, body: bytes, parts: Parts) -> Parts:
    """Wrap an answer so that the model is unloaded after it if requested. Raises Forbidden."""
    if b'"keep_alive"' not in body:
        return parts
    try:
        request = msgspec.json.decode(body, type=_KeepAliveFields)
        if not unloads(request.keep_alive):
            return parts
    except (BadRequest, *NOT_JSON):
        return parts  # the answer is an error
    is_empty = path in ("/api/chat", "/api/generate") and not (request.messages or request.prompt)
    if Scope.MODELS not in caller.scopes:
        if is_empty:  # continuing would load the model
            raise Forbidden("This key may unload no model: it needs the scope 'models'.", code="insufficient_scope")
        return parts
    if is_empty:
        return _unload_only(path, gateway, caller, request.model, parts)
    return _unload_after(gateway, caller, request.model, parts)


async def _unload_after(gateway: Gateway, caller: Caller, model: str, parts: Parts) -> Parts:
    async with aclosing(parts):
        async for part in parts:
            yield part
    await _unload(gateway, caller, model)


async def _unload_only(path: str, gateway: Gateway, caller: Caller, model: str, parts: Parts) -> Parts:
    """Unload without answering. Starts `parts` only for an unknown name, since they would load the model."""
    async with aclosing(parts):
        if await _unload(gateway, caller, model):
            answer = Writer(model, path == "/api/chat", Timings()).only("unload")
            async for part in whole_answer(msgspec.json.encode(answer)):
                yield part
            return
        async for part in parts:
            yield part


async def _unload(gateway: Gateway, caller: Caller, name: str) -> bool:
    """Unload a model unless it is pinned or in use. Returns whether the caller has such a model."""
    try:
        model = gateway.services.models.show(base_model(gateway.services.models.show(name, caller)))
    except RoundhouseError:
        return False
    if isinstance(model, ModelView) and not (model.running or model.waiting or model.pinned):
        leaving = asyncio.ensure_future(gateway.services.models.unload(model.id))
        _unloads.add(leaving)
        leaving.add_done_callback(_unloads.discard)
        await asyncio.shield(leaving)  # continues if the client leaves
    return True
