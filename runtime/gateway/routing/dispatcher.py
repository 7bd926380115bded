"""Chooses a router's target, with the same decision for traffic and for explain.

`route_input_of` extracts the features of a request, which are the same in every dialect. `Targets` has the facts about
what it may go to.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import msgspec
from cachetools import TLRUCache
from msgspec import Meta

from models.messages import EmbedRequest, EmbedResult
from models.tasks import Call, task_of
from models.tasks.kind import CallSummary
from registry.base.lazy import import_in_thread
from registry.errors import BadRequest, Forbidden, RoundhouseError, Unavailable, Unfit
from registry.files.context import Ability
from registry.names import DEFAULT_TEAM
from registry.recipes.definition import Task
from registry.recipes.router import RouterSpec, RouterTarget
from routing.decide import decide
from routing.decision import Decision, Facts, Features, TargetFacts, Vector
from routing.routers.content import Router
from runtime.gateway.backend import Backend
from runtime.gateway.context import RequestContext
from runtime.gateway.names import ModelRef
from runtime.gateway.request import Request
from runtime.gateway.routing.store import RouterStore, RouterView
from runtime.gateway.sinks.tenants import LimitSink
from runtime.gateway.target import RouteChoice, Target
from tenants.caller import EVERYBODY, Caller
from tenants.costs.prices import MILLION, PriceList

if TYPE_CHECKING:  # a server without a fleet loads nothing of it
    from runtime.gateway.peers.conversations import PeerConversations

VECTOR_SECONDS = 0.25
"""Longest wait for an embedding. After that only the character model decides."""
MOST_CHARACTERS = 2000
MAX_CONVERSATIONS = 100_000
PROBE_ENDPOINT = "/v1/embeddings"


class TargetSource(Protocol):
    """The gateway's parts that a decision needs."""

    def resolve(self, model_ref: ModelRef, caller: Caller) -> Target: ...
    def context_length(self, target: Target) -> int | None: ...
    def backend_of(self, target: Target) -> Backend: ...


@dataclass(frozen=True, slots=True)
class RouteInput:
    features: Features
    conversation: bytes | None
    """Key of the conversation. None if the request belongs to none."""
    is_continued: bool
    """Whether the body shows that it is not the first request of its conversation."""


def route_input_of(endpoint: str, calls: Sequence[Call], context: RequestContext, router: RouterSpec) -> RouteInput:
    """Extract the features. Reads only those headers that the router names."""
    named_headers = {name for rule in router.rules for name in rule.when.headers} | {router.conversation.header}
    headers = {
        name: value.decode("latin-1")
        for raw, value in context.headers
        if (name := raw.decode("latin-1").lower()) in named_headers
    }
    summary = task_of(calls[0]).summary(calls[0]) if calls else CallSummary()
    key: bytes | None = None
    is_continued = False
    if named := headers.get(router.conversation.header):
        key, is_continued = key_of("header", router.id, context.caller.team, named), True
    elif summary.first:
        key = key_of("turns", router.id, context.caller.team, summary.user, "".join(summary.systems), summary.first)
        is_continued = summary.turns > 1 or summary.is_answered
    drawn = key if key is not None and router.conversation.stay > 0 else key_of("request", router.id, context.id)
    features = Features(
        text=summary.last,
        endpoint=endpoint,
        characters=summary.characters,
        tools=summary.tools,
        images=summary.images,
        json_schema=summary.json_schema,
        team=context.caller.team,
        service_class=context.service_class.label,
        language=summary.language,
        headers=headers,
        draw=int.from_bytes(drawn[:6]) / 2**48,
    )
    return RouteInput(features, key, is_continued)


def key_of(*parts: str) -> bytes:
    """A digest, so that no text of the conversation is stored."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part.encode(errors="replace")
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.digest()


class RouterCardView(msgspec.Struct, frozen=True, kw_only=True):
    """A router in OpenAI's model list."""

    id: str
    object: Literal["model"] = "model"
    created: Annotated[int, Meta(ge=0)]
    owned_by: str = "roundhouse"
    kind: Annotated[Literal["router"], Meta(description="A name in front of several models.")] = "router"
    task: Task
    version: str
    digest: str
    targets: Annotated[list[str], Meta(description="Those that the caller may use.")]
    abilities: Annotated[list[str], Meta(description="Abilities of at least one of its targets.")]
    description: str


def card(router: Router, view: RouterView, facts: Mapping[str, TargetFacts]) -> RouterCardView | None:
    """Build a router's card. None if the caller may use none of its targets."""
    usable = {name: fact for name, fact in facts.items() if fact.usable}
    if not usable:
        return None
    can = {
        "tools": any(fact.calls_tools for fact in usable.values()),
        "vision": any(fact.takes_images for fact in usable.values()),
    }
    return RouterCardView(
        id=view.name,
        created=int(view.versions[-1].created),
        task=router.spec.task,
        version=view.version,
        digest=view.digest,
        targets=list(usable),
        abilities=[name for name, is_able in can.items() if is_able],
        description=router.spec.description,
    )


class Conversations:
    """Targets to which conversations stick for the prefix cache, evicted by least recent use."""

    def __init__(self) -> None:
        self._targets: TLRUCache[bytes, tuple[str, float]] = TLRUCache(
            MAX_CONVERSATIONS, ttu=lambda _key, entry, now: now + entry[1]
        )

    def target_of(self, key: bytes | None) -> str | None:
        entry = None if key is None else self._targets.get(key)
        return None if entry is None else entry[0]

    def remember(self, key: bytes | None, target: str, seconds: float) -> None:
        if key is not None and seconds > 0:
            self._targets[key] = (target, seconds)


class Targets:
    """Current facts about a router's targets, which decisions compare."""

    def __init__(self, source: TargetSource, limits: LimitSink) -> None:
        self._source, self._limits = source, limits

    def facts(
        self, router: RouterSpec, caller: Caller, current: str | None = None, calls: Sequence[Call] = ()
    ) -> Facts:
        """calls: of the request. Without any, every target is within budget."""
        affords = self._limits.affords(caller, calls, self._source.context_length)
        return Facts(
            {target.name: self._fact(target, router.task, caller, affords) for target in router.targets}, current
        )

    def _fact(self, one: RouterTarget, task: Task, caller: Caller, affords: Callable[[Target], bool]) -> TargetFacts:
        model_ref = ModelRef(task, one.name, written_by=DEFAULT_TEAM)
        try:
            target = self._source.resolve(model_ref, caller)
        except RoundhouseError as error:
            is_allowed = not isinstance(error, Forbidden) and not self._is_of_another_team(model_ref, caller)
            return TargetFacts(usable=False, why_not=error.code, is_allowed=is_allowed)
        state = self._source.backend_of(target).state_of(target)
        return TargetFacts(
            is_local=state.is_local,
            is_resident=state.is_resident,
            waiting=state.waiting,
            price=price_of(target.price) if one.price is None else one.price,
            within_budget=affords(target),
            takes_images=Ability.VISION in target.abilities,
            calls_tools=Ability.TOOLS in target.abilities,
        )

    def _is_of_another_team(self, model_ref: ModelRef, caller: Caller) -> bool:
        """Whether it exists but belongs to another team."""
        if caller.team == DEFAULT_TEAM:
            return False
        with suppress(RoundhouseError):
            self._source.resolve(model_ref, EVERYBODY)
            return True
        return False


def price_of(price: PriceList | None) -> float:
    """One price to compare targets of the same task.

    For a million tokens, half of them input, plus an hour of audio and a thousand pairs.
    """
    return 0.0 if price is None else ((price.input + price.output) / 2 + price.audio_hour + price.pairs) / MILLION


class RouterDispatcher:
    """Turns a router's name into a target."""

    def __init__(self, store: RouterStore, source: TargetSource, limits: LimitSink) -> None:
        self.store = store
        self._source, self._limits = source, limits
        self._targets, self.conversations = Targets(source, limits), Conversations()
        self.others: PeerConversations | None = None
        """Conversations that began on other servers. None without a fleet."""
        self._announced = Conversations()
        """Targets that were announced to other servers."""

    async def route(self, router: Router, request: Request) -> Target:
        """Choose the target of a request, and keep its conversation there.

        Raises Unavailable (no_route), Forbidden, BadRequest (wrong_task), and what resolving the target raises.
        """
        model_ref, context = request.model_ref, request.context
        route_input, decision = await self.explain(router, request.endpoint, request.calls, model_ref, request)
        target = self._source.resolve(
            ModelRef(model_ref.task, decision.target, written_by=DEFAULT_TEAM), context.caller
        )
        self._remember(route_input.conversation, decision.target, router.spec.conversation.stay)
        return replace(target, requested=str(model_ref.name), routed=RouteChoice(router.label, decision))

    def _remember(self, key: bytes | None, target: str, seconds: float) -> None:
        self.conversations.remember(key, target, seconds)
        if self.others is not None and key is not None and seconds > 0 and self._announced.target_of(key) != target:
            self._announced.remember(key, target, seconds / 2)
            self.others.tell(key, target, seconds)

    async def _current(self, key: bytes | None) -> str | None:
        """Find the target of a continued conversation. None if it is unknown."""
        current = self.conversations.target_of(key)
        if current is None and key is not None and self.others is not None:
            return await self.others.find(key)
        return current

    # --- lists ------------------------------------------------------------------------------------------------------
    def cards(self, caller: Caller) -> list[RouterCardView]:
        """Cards of the routers with at least one target that the caller may use."""
        cards = list[RouterCardView]()
        for name in self.store.names():
            with suppress(Unfit, Unavailable):  # its files are unreadable; requests for it get the error
                if (one := self.card(name, caller)) is not None:
                    cards.append(one)
        return cards

    def card(self, name: str, caller: Caller) -> RouterCardView | None:
        """The card of a router. None if there is none, or if the caller may use none of its targets."""
        router = self.store.find(name)
        if router is None:
            return None
        return card(router, self.store.show(router.spec.id), self._targets.facts(router.spec, caller).targets)

    def context_length(self, card: RouterCardView, caller: Caller) -> int | None:
        """The shortest known context of a router's targets, since it chooses without regard to length."""
        refs = (ModelRef(card.task, name, written_by=DEFAULT_TEAM) for name in card.targets)
        lengths = (self._source.context_length(self._source.resolve(ref, caller)) for ref in refs)
        return min((length for length in lengths if length is not None), default=None)

    def priced(self, view: RouterView, caller: Caller) -> RouterView:
        """Add the prices that its decisions compare."""
        router = self.store.find(f"{view.name}@{view.version}")
        facts = {} if router is None else self._targets.facts(router.spec, caller).targets
        return msgspec.structs.replace(view, prices={name: fact.price for name, fact in facts.items() if fact.usable})

    # --- a decision -------------------------------------------------------------------------------------------------
    async def explain(
        self, router: Router, endpoint: str, calls: Sequence[Call], model_ref: ModelRef, request: Request
    ) -> tuple[RouteInput, Decision]:
        """Decide for calls without acting on it. Raises as `route`.

        request: pays for an embedding, if one is needed.
        """
        spec, task, context = router.spec, model_ref.task, request.context
        if model_ref.adapter:
            raise BadRequest(
                f"Router '{spec.id}' chooses who answers: leave 'adapter_id' out, or name a model instead of it.",
                param="adapter_id",
            )
        if spec.task is not task:
            raise BadRequest(
                f"Router '{spec.id}' is for {spec.task.value}, and this endpoint for {task.value}.",
                code="wrong_task",
                param="model",
            )
        route_input = route_input_of(endpoint, calls, context, spec)
        vector = await self.vector(router, route_input.features.text, request)
        stays = route_input.is_continued and spec.conversation.stay > 0  # an earlier version may have stored it
        current = await self._current(route_input.conversation) if stays else None
        # no await from here until the decision is carried out, so no target can disappear in between
        facts = self._targets.facts(spec, context.caller, current, calls)
        return route_input, decide(replace(route_input.features, vector=vector), router, facts)

    def embedding_call(self, router: Router, text: str) -> tuple[Target, EmbedRequest] | None:
        """The call that embeds a text. None if the router needs none or its model is not resident here."""
        if router.embedding is None or not text:
            return None
        try:
            target = self._source.resolve(ModelRef(Task.EMBED, router.embedding), EVERYBODY)
        except RoundhouseError:
            return None
        state = self._source.backend_of(target).state_of(target)
        if not (state.is_local and state.is_resident):
            return None  # classifying a text must not send it to a provider
        return target, EmbedRequest(inputs=[router.read(text)[:MOST_CHARACTERS]], truncate=True)

    async def vector(self, router: Router, text: str, request: Request) -> "Vector | None":
        """Embed the text at the request's cost, if its limits allow. Never raises and never causes a load."""
        embedding = self.embedding_call(router, text)
        if embedding is None:
            return None
        target, call = embedding
        is_admitted = request.attempt.admission is not None
        if not is_admitted and not self._limits.has_room(request.context.caller, target, call):
            return None
        await import_in_thread("numpy")  # only routers with an embedding need numpy
        import numpy as np

        probe = Request(replace(request.context, caller=EVERYBODY, source="probe"), PROBE_ENDPOINT)
        try:
            async with asyncio.timeout(VECTOR_SECONDS), self._source.backend_of(target).lease(probe, target) as lease:
                async for event in lease.run(call):
                    if isinstance(event, EmbedResult):
                        request.routing_tokens = sum(event.tokens)
                        if target.price is not None:
                            request.routing_cost = target.price.cost(prompt=request.routing_tokens)
                        return np.frombuffer(event.vectors, "<f4", count=event.dimensions).astype(np.float32)
        except (RoundhouseError, TimeoutError):
            pass  # the character model decides alone, and the decision says so
        return None
