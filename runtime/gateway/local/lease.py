"""A turn on a model of this machine: calls to its slot, and what a recipe adds to a chat body."""

import asyncio
import hmac
import secrets
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Self

import msgspec

from models.messages import AdapterRef, Chunk, EmbedRequest, Event, HttpCall, Message, Progress, ResponseStart, Usage
from models.tasks import Call
from models.tasks.chat import TOKEN_LIMITS, ChatPayload
from models.tasks.kind import ANSWER_TOKEN
from registry.errors import DeadlineExceeded, RoundhouseError
from registry.recipes.definition import Recipe
from routing.replicas import Reason
from runtime.gateway.request import Request
from runtime.gateway.target import Target, total
from runtime.residency.entry import ModelEntry
from runtime.scheduling.admission import REVOKED, SlotLease
from runtime.slots import frames
from runtime.slots.link import FrameCall
from tenants.caller import ServiceClass

TIERS = {ServiceClass.CRITICAL: "priority", ServiceClass.INTERACTIVE: "default", ServiceClass.BATCH: "flex"}
"""OpenAI's names for the classes."""
CONTINUED = {"add_generation_prompt": False, "continue_final_message": True}
"""vLLM's fields for continuing the last message."""
WITHOUT_REASONING = {"reasoning_effort": "none", "chat_template_kwargs": None}
"""vLLM's fields for models that reason, since their reasoning would come before the beginning."""
GPT_OSS = "openai_gptoss"
"""The reasoning parser of gpt-oss, which refuses that effort, and whose answers vLLM does not continue."""
SYSTEM_ROLES = ("system", "developer")
STOP_FIELDS: Mapping[str, str] = {
    "/v1/chat/completions": "stop",
    "/v1/completions": "stop",
    "/v1/responses": "stop",
    "/v1/messages": "stop_sequences",
}
"""The field for stop sequences on each path that generates text."""


class LocalLease:
    """`runtime.gateway.target.Lease`."""

    uses_device = True

    def __init__(
        self,
        request: Request,
        target: Target,
        entry: ModelEntry,
        adapter: AdapterRef | None,
        turn: SlotLease,
        calls: AsyncExitStack,
        reason: Reason,
    ) -> None:
        self.request, self.entry, self.turn, self._reason = request, entry, turn, reason
        self._target, self._adapter, self._stack = target, adapter, calls
        self._calls: list[FrameCall] = []
        self._tokens = 0
        self.load_seconds, self.is_cold = 0.0, False

    @property
    def queued_seconds(self) -> float:
        return self.turn.ticket.queued_seconds

    @property
    def swap_seconds(self) -> float:
        return self.turn.ticket.swap_seconds

    @property
    def revision(self) -> str:
        return self.entry.loaded_revision or self.entry.revision

    @property
    def replica(self) -> int:
        return self.entry.number if len(self.entry.replicas) > 1 else 0

    @property
    def replica_reason(self) -> Reason | None:
        return self._reason if self.replica else None

    @property
    def pool(self) -> str:
        return self.turn.ticket.claim.pool

    @property
    def flag(self) -> None:
        """Always None: the engine counts usage itself."""
        return None

    @property
    def first_goal(self) -> float | None:
        pool = self.entry.recipe.pools.get(self.pool)
        return None if pool is None else pool.ttft

    @property
    def context_length(self) -> int | None:
        return self.entry.context_length

    @property
    def usage(self) -> Usage:
        return total([call.usage for call in self._calls if call.usage is not None])

    def run(self, call: Call) -> "LocalEvents":
        return LocalEvents(self, call)

    async def start(self, call: Call) -> FrameCall:
        """Send a call to the slot. The end of the lease cancels it."""
        engine_request, id_ = self._engine_request(call), self.request.context.id
        frame_call = self.turn.link.call(lambda uid: frames.Call.of(uid, engine_request, id_))
        self._calls.append(frame_call)
        await self._stack.enter_async_context(frame_call)
        self.turn.ticket.aborted.add_done_callback(  # a drain deadline ends the call with an error
            lambda done: None if done.cancelled() else _abort(frame_call, done.result())
        )
        return frame_call

    def count(self, data: bytes) -> None:
        """Charge the tokens of a stream as they arrive, since the estimate may be far too low."""
        self._tokens += data.count(b"\n\n")
        self.turn.progress(self._tokens * ANSWER_TOKEN)

    def _engine_request(self, call: Call) -> Message:
        context, trace = self.request.context, self.request.trace
        if isinstance(call, EmbedRequest) and call.truncate is None and context.preference.strict:
            return msgspec.structs.replace(call, truncate=False)
        if not isinstance(call, ChatPayload):
            return call
        served = self._adapter.digest if self._adapter else self.entry.model
        tier = TIERS[context.service_class] if context.hints.echoes_class else ""
        repeated = {"service_tier": tier} if tier and call.path == "/v1/responses" else {}
        begun = self._begun() if call.continues else {}
        body = {**call.body, **defaults(self.entry.recipe, call.path, call.body)}
        return HttpCall(
            path=call.path,
            body=msgspec.json.encode({**body, **self._salt(call), "model": served, **repeated, **begun}),
            served=served,
            display_name=self._target.requested,
            adapter=self._adapter,
            request_id=f"{context.id}-{secrets.token_hex(4)}",  # unique even if clients reuse ids
            team=context.caller.team,
            priority=int(context.service_class),
            tier=tier,
            strict=context.preference.strict,
            trace=dict(trace.headers) if trace else {},
        )

    def _begun(self) -> Mapping[str, Any]:
        flags = self.entry.recipe.engine.flags
        parser = flags.get("reasoning_parser") or flags.get("reasoning-parser")
        return CONTINUED if parser in (None, "", GPT_OSS) else {**CONTINUED, **WITHOUT_REASONING}

    def _salt(self, call: ChatPayload) -> dict[str, str]:
        """Separate the prefix caches of teams, since timing would reveal other teams' prompts."""
        team, own = self.request.context.caller.salt, call.body.get("cache_salt")
        if not team or call.path not in TOKEN_LIMITS or not isinstance(own, str | None) or own == "":
            return {}
        return {"cache_salt": hmac.digest(team.encode(), (own or "").encode(), "sha256").hex()}


class LocalEvents:
    """The events of one call. Not a generator, because every token passes through it."""

    def __init__(self, lease: LocalLease, call: Call) -> None:
        self._lease, self._call = lease, call
        self._frame_call: FrameCall | None = None
        self._until = lease.request.context.begin_by

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        frame_call = self._frame_call
        if frame_call is None:
            frame_call = self._frame_call = await self._lease.start(self._call)
        while True:
            event = await (frame_call.next() if self._until is None else self._next_in_time(frame_call, self._until))
            if event is None:
                raise StopAsyncIteration
            if isinstance(event, Progress):
                continue
            self._until = self._lease.request.context.deadline
            if isinstance(event, Chunk):
                self._lease.count(event.data)
            elif isinstance(event, ResponseStart) and isinstance(self._call, ChatPayload) and self._call.fills:
                return msgspec.structs.replace(event, warning="")  # it concerns a bound that the client did not set
            return event

    async def _next_in_time(self, frame_call: FrameCall, until: float) -> Event | Progress | None:
        try:
            async with asyncio.timeout(until - time.monotonic()):
                return await frame_call.next()
        except TimeoutError:
            raise too_late(self._lease.entry.model) from None


def _abort(call: FrameCall, error: RoundhouseError) -> None:
    """End a call with an error. A revoked batch line keeps its turn and place until it has left the engine."""
    if error.code == REVOKED:
        call.stop(error)
    else:
        call.fail(error)


def too_late(model: str) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"The request's deadline passed before '{model}' had answered. Send it again with more time, or later."
    )


def defaults(recipe: Recipe, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a chat body that the recipe adds or extends.

    A system message of the client's own, even an empty one, replaces the recipe's; so does a list of stop sequences.
    A body of the wrong shape is left to the engine, which refuses it.
    """
    added: dict[str, Any] = {}
    if recipe.system:
        added |= _system(recipe.system, path, body)
    if recipe.stop and (name := STOP_FIELDS.get(path)) and body.get(name) is None:
        added[name] = list(recipe.stop)
    return added


def _system(text: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    match path:
        case "/v1/messages" | "/v1/messages/count_tokens":
            own = body.get("system") is not None or _has_system(body.get("messages"))
            return {} if own else {"system": text}
        case "/v1/responses" | "/v1/responses/input_tokens":
            # not as `instructions`, which the answer repeats
            turns = body.get("input")
            if isinstance(turns, str):
                turns = [{"role": "user", "content": turns}]
            return {} if body.get("instructions") is not None else _before("input", turns, text)
        case "/v1/chat/completions" | "/tokenize":
            return _before("messages", body.get("messages"), text)
        case _:  # a prompt without a chat template
            return {}


def _before(name: str, turns: object, text: str) -> dict[str, Any]:
    if not isinstance(turns, list) or _has_system(turns):
        return {}
    return {name: [{"role": "system", "content": text}, *turns]}


def _has_system(turns: object) -> bool:
    return isinstance(turns, list) and any(
        isinstance(turn, dict) and turn.get("role") in SYSTEM_ROLES for turn in turns
    )
