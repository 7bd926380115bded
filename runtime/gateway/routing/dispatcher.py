"""Chooses a router's target, with the same decision for traffic and for explain."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from typing import Annotated, Literal, Protocol

import msgspec
from cachetools import TLRUCache
from msgspec import Meta

from models.messages import EmbedRequest, EmbedResult
from models.tasks import Call
from registry.base.lazy import import_in_thread
from registry.errors import BadRequest, Forbidden, RoundhouseError, Unavailable, Unfit
from registry.files.context import Ability
from registry.names import DEFAULT_TEAM
from registry.recipes.definition import Task
from registry.recipes.router import RouterSpec, RouterTarget
from routing.decide import decide
from routing.decision import Decision, Facts, TargetFacts, Vector
from routing.routers.content import Router
from runtime.gateway.backend import TargetState
from runtime.gateway.names import ModelRef
from runtime.gateway.request import Request
from runtime.gateway.routing.requests import RouteInput, read
from runtime.gateway.routing.store import RouterStore, RouterView
from runtime.gateway.target import Lease, RouteChoice, Target
from tenants.caller import EVERYBODY, Caller
from tenants.costs.prices import MILLION, PriceList

VECTOR_SECONDS = 0.25
"""Longest wait for an embedding. After that only the character model decides."""
MOST_CHARACTERS = 2000
MAX_CONVERSATIONS = 100_000
PROBE_ENDPOINT = "/v1/embeddings"


class TargetSource(Protocol):
    """The gateway's parts that a decision needs."""

    def resolve(self, model_ref: ModelRef, caller: Caller) -> Target: ...
    def state_of(self, target: Target) -> TargetState: ...
    def context_length(self, target: Target) -> int | None: ...
    def lease_inside(self, request: Request, target: Target) -> AbstractAsyncContextManager[Lease]: ...


class Budgets(Protocol):
    def affords(
        self, caller: Caller, calls: Sequence[Call], context_of: Callable[[Target], int | None]
    ) -> Callable[[Target], bool]:
        """Return a function that tells whether the budgets of team and key allow the calls at a target."""
        ...

    def has_room(self, caller: Caller, target: Target, call: Call) -> bool:
        """Whether the limits allow a call that helps to choose."""
        ...


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

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._targets: TLRUCache[bytes, tuple[str, float]] = TLRUCache(
            MAX_CONVERSATIONS, ttu=lambda _key, entry, now: now + entry[1], timer=clock
        )

    def target_of(self, key: bytes | None) -> str | None:
        entry = None if key is None else self._targets.get(key)
        return None if entry is None else entry[0]

    def remember(self, key: bytes | None, target: str, seconds: float) -> None:
        if key is not None and seconds > 0:
            self._targets[key] = (target, seconds)


class SharedConversations(Protocol):
    """Conversations that began on other servers of a fleet."""

    async def find(self, key: bytes) -> str | None:
        """Find the target of a conversation. None if it is unknown or no answer comes in time."""
        ...

    def tell(self, key: bytes, target: str, seconds: float) -> None:
        """Start announcing its target."""
        ...


class Targets:
    """Current facts about a router's targets, which decisions compare."""

    def __init__(self, source: TargetSource, budgets: Budgets) -> None:
        self._source, self._budgets = source, budgets

    def facts(
        self, router: RouterSpec, caller: Caller, current: str | None = None, calls: Sequence[Call] = ()
    ) -> Facts:
        """calls: of the request. Without any, every target is within budget."""
        affords = self._budgets.affords(caller, calls, self._source.context_length)
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
        state = self._source.state_of(target)
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

    def __init__(self, store: RouterStore, source: TargetSource, budgets: Budgets) -> None:
        self.store = store
        self._source, self._budgets = source, budgets
        self._targets, self.conversations = Targets(source, budgets), Conversations()
        self.others: SharedConversations | None = None
        """None without a fleet."""
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
        route_input = read(endpoint, calls, context, spec)
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
        state = self._source.state_of(target)
        if not (state.is_local and state.is_resident):
            return None  # classifying a text must not send it to a provider
        return target, EmbedRequest(inputs=[router.read(text)[:MOST_CHARACTERS]], truncate=True)

    async def vector(self, router: Router, text: str, request: Request) -> "Vector | None":
        """Embed the text at the request's cost, if its limits allow. Never raises and never causes a load."""
        found = self.embedding_call(router, text)
        if found is None:
            return None
        target, call = found
        is_admitted = request.attempt.admission is not None
        if not is_admitted and not self._budgets.has_room(request.context.caller, target, call):
            return None
        await import_in_thread("numpy")  # only routers with an embedding need numpy
        import numpy as np

        probe = Request(replace(request.context, caller=EVERYBODY, source="probe"), PROBE_ENDPOINT)
        try:
            async with asyncio.timeout(VECTOR_SECONDS), self._source.lease_inside(probe, target) as lease:
                async for event in lease.run(call):
                    if isinstance(event, EmbedResult):
                        request.routing_tokens = sum(event.tokens)
                        if target.price is not None:
                            request.routing_cost = target.price.cost(prompt=request.routing_tokens)
                        return np.frombuffer(event.vectors, "<f4", count=event.dimensions).astype(np.float32)
        except (RoundhouseError, TimeoutError):
            pass  # the character model decides alone, and the decision says so
        return None
