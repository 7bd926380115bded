"""A request's features for routers, the same in every dialect."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from models.tasks import Call, task_of
from models.tasks.kind import CallSummary
from registry.recipes.router import RouterSpec
from routing.decision import Features
from runtime.gateway.context import RequestContext


@dataclass(frozen=True, slots=True)
class RouteInput:
    features: Features
    conversation: bytes | None
    """Key of the conversation. None if the request belongs to none."""
    is_continued: bool
    """Whether the body shows that it is not the first request of its conversation."""


def read(endpoint: str, calls: Sequence[Call], context: RequestContext, router: RouterSpec) -> RouteInput:
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
