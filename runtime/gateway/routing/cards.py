"""Routers in the list of models: clients choose from it by name."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from registry.recipes.definition import Task
from routing.facts import TargetFacts
from routing.routers.router import Router
from runtime.gateway.routing.store import RouterView


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
    abilities: Annotated[list[str], Meta(description="Of one of its targets at least.")]
    description: str


def card(router: Router, view: RouterView, facts: Mapping[str, TargetFacts]) -> RouterCardView | None:
    """None: the caller may use none of its targets."""
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
        abilities=[name for name, it_can in can.items() if it_can],
        description=router.spec.description,
    )
