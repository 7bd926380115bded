"""The decision for traffic and for explain, made in one place: what differs is only whether somebody answers."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace

import msgspec
import numpy as np

from models.messages import EmbedRequest, EmbedResult
from registry.errors import BadRequest, RoundhouseError, Unfit
from registry.names import DEFAULT_TEAM
from registry.recipes.definition import Task
from routing.deciding.decide import decide
from routing.decision import Decision
from routing.features import Vector
from routing.routers.router import Router
from runtime.gateway.backend import LOCAL, Call, Lease, RouteChoice, Target
from runtime.gateway.context import RequestContext
from runtime.gateway.names import ModelRef
from runtime.gateway.routing.cards import RouterCardView, card
from runtime.gateway.routing.conversations import Conversations
from runtime.gateway.routing.requests import RouteInput, read
from runtime.gateway.routing.store import RouterStore, RouterView
from runtime.gateway.routing.targets import Resolve, Targets
from tenants.caller import EVERYBODY, Caller

VECTOR_SECONDS = 0.25
"""How long an embedding is waited for; after that letters alone decide."""
MOST_CHARACTERS = 2000

LeaseOf = Callable[[RequestContext, Target], AbstractAsyncContextManager[Lease]]


class RouterDispatcher:
    """What a router's name is turned into."""

    def __init__(self, store: RouterStore, targets: Targets, resolve: Resolve, lease: LeaseOf) -> None:
        self.store = store
        self._targets, self._resolve, self._lease = targets, resolve, lease
        self._conversations = Conversations()

    async def route(
        self, router: Router, endpoint: str, calls: Sequence[Call], model_ref: ModelRef, context: RequestContext
    ) -> Target:
        """The target of a request, which remembers who chose it. The conversation stays there.

        Raises Unavailable (no_route), Forbidden, BadRequest (wrong_task), and what resolving the target raises.
        """
        route_input, decision = await self.explain(router, endpoint, calls, model_ref, context)
        target = self._resolve(ModelRef(model_ref.task, decision.target, written_by=DEFAULT_TEAM), context.caller)
        self._conversations.hold(route_input.conversation, decision.target, router.spec.conversation.stay)
        return replace(target, requested=str(model_ref.name), routed=RouteChoice(router.label, decision))

    # --- what is told of them ---------------------------------------------------------------------------------------
    def cards(self, caller: Caller) -> list[RouterCardView]:
        """Those of which the caller may use a target."""
        cards = list[RouterCardView]()
        for name in self.store.names():
            with suppress(Unfit):  # its files cannot be read: who asks for it is told
                if (one := self.card(name, caller)) is not None:
                    cards.append(one)
        return cards

    def card(self, name: str, caller: Caller) -> RouterCardView | None:
        """None: it is no router's name, or the caller may use none of its targets."""
        router = self.store.find(name)
        if router is None:
            return None
        return card(router, self.store.show(router.spec.id), self._targets.facts(router.spec, caller).targets)

    def priced(self, view: RouterView, caller: Caller) -> RouterView:
        """With what its decisions compare its targets by."""
        router = self.store.find(f"{view.name}@{view.version}")
        facts = {} if router is None else self._targets.facts(router.spec, caller).targets
        return msgspec.structs.replace(view, prices={name: fact.price for name, fact in facts.items() if fact.usable})

    # --- a decision -------------------------------------------------------------------------------------------------

    async def explain(
        self, router: Router, endpoint: str, calls: Sequence[Call], model_ref: ModelRef, context: RequestContext
    ) -> tuple[RouteInput, Decision]:
        """The same decision, of which nothing follows."""
        spec, task = router.spec, model_ref.task
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
        vector = await self.vector(router, route_input.features.text, context)
        # what follows is of one moment: nobody leaves before the decision is carried out
        is_held = route_input.is_continued and spec.conversation.stay > 0  # a version before may have held it
        held = self._conversations.held(route_input.conversation) if is_held else None
        facts = self._targets.facts(spec, context.caller, held, calls)
        return route_input, decide(replace(route_input.features, vector=vector), router, facts)

    async def vector(self, router: Router, text: str, context: RequestContext) -> Vector | None:
        """The text's embedding, if the router wants one and its model is resident. Never an error, never a load."""
        name = router.embedding
        if name is None or not text:
            return None
        try:
            target = self._resolve(ModelRef(Task.EMBED, name), EVERYBODY)
            if target.backend != LOCAL or not self._targets.is_resident(target):
                return None  # to look at a text must not send it elsewhere
            request = EmbedRequest(inputs=[router.read(text)[:MOST_CHARACTERS]], truncate=True)
            inside = replace(context, caller=EVERYBODY, source="probe")
            async with asyncio.timeout(VECTOR_SECONDS), self._lease(inside, target) as lease:
                async for event in lease.run(request):
                    if isinstance(event, EmbedResult):
                        return np.frombuffer(event.vectors, "<f4", count=event.dimensions).astype(np.float32)
        except (RoundhouseError, TimeoutError):
            pass  # letters alone decide, and the decision says so
        return None
