"""The facts about a request that a server of the fleet sends along when it forwards it.

They travel in one header next to the client's own bytes. Only the fleet's port accepts it (`runtime.http.fleet`).
"""

import base64
import binascii
import time
from typing import Annotated, Self

import msgspec
from msgspec import Meta

from registry.base.json import NOT_JSON
from registry.errors import BadRequest
from routing.decision import LEFT_SUFFIX, Decision
from runtime.gateway.context import ExactTarget, RequestContext, Source
from runtime.gateway.target import RouteChoice, Target
from tenants.caller import EVERYBODY, PERSON_MARK, VISITOR, Caller, Scope, ServiceClass

HEADER = "x-roundhouse-context"
MAX_BYTES = 8192
Text = Annotated[str, Meta(max_length=512)]
Printable = Annotated[str, Meta(max_length=512, pattern=r"^[ -~]*\Z")]
"""A name that becomes part of an answer's headers."""
Milliseconds = Annotated[int, Meta(ge=0, le=10**9)]


class HopRoute(msgspec.Struct, frozen=True, array_like=True):
    """The router that chose the target, and its reason."""

    router: Printable
    target: Printable
    reason: Text
    score: float | None = None
    previous: Printable | None = None


class Hop(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request's caller, urgency and exact weights."""

    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:/-]{1,128}\Z")]
    """The request's id."""
    model: Text
    revision: Text
    requested: Text
    """The name as the client wrote it, which the answer repeats."""
    service_class: ServiceClass
    source: Source = "api"
    team: Text = ""
    """The key's team, according to the server that received the request."""
    key: Annotated[str, Meta(max_length=64)] = ""
    """The key's id, never the key itself. Empty if the client sent none."""
    is_visitor: bool = False
    """Whether the caller has no key and may only use inference."""
    scopes: tuple[Scope, ...] = ()
    """A person's scopes, which only the server knows at which they signed in. Empty for keys."""
    adapter: Printable = ""
    digest: Annotated[str, Meta(pattern=r"^(sha256:[0-9a-f]{64})?\Z")] = ""
    """Digest of the adapter's version."""
    attempt: Annotated[int, Meta(ge=1, le=100)] = 1
    left: Milliseconds | None = None
    """Time until the answer has to be complete."""
    first_left: Milliseconds | None = None
    """Time until the answer has to begin."""
    route: HopRoute | None = None

    @classmethod
    def of(cls, context: RequestContext, target: Target, attempt: int) -> Self:
        """Describe a request that is forwarded to a target."""
        version = target.version
        route = None
        if target.routed is not None:
            decision = target.routed.decision
            route = HopRoute(target.routed.router, decision.target, decision.reason, decision.score, decision.previous)
        return msgspec.structs.replace(
            cls.of_change(context),
            model=target.model,
            revision=target.revision,
            requested=target.requested[:512],
            adapter=target.adapter or "",
            digest="" if version is None else version.digest,
            attempt=attempt,
            route=route,
        )

    @classmethod
    def of_change(cls, context: RequestContext) -> Self:
        """Describe a request that changes names and so has no target."""
        caller = context.caller
        is_person = (caller.key or "").startswith(PERSON_MARK)
        return cls(
            id=context.id,
            model="",
            revision="",
            requested="",
            service_class=context.service_class,
            source=context.source,
            team=caller.team,
            key=caller.key or "",
            is_visitor=caller is VISITOR,
            scopes=tuple(sorted(caller.scopes)) if is_person else (),
            left=_milliseconds(context.deadline),
            first_left=_milliseconds(context.first_by),
        )

    @property
    def caller(self) -> Caller:
        """The caller, if the client sent no key."""
        return VISITOR if self.is_visitor else EVERYBODY

    @property
    def exact_target(self) -> ExactTarget:
        return ExactTarget(
            self.model,
            self.revision,
            self.adapter,
            self.digest,
            self.requested,
            self._route_choice(),
            self.attempt == 1,
        )

    def _route_choice(self) -> RouteChoice | None:
        """The router's choice, as answers and ledger show it."""
        if self.route is None:
            return None
        route = self.route
        reason = route.reason.removesuffix(LEFT_SUFFIX)
        scores = {} if route.score is None else {reason.partition(":")[2]: route.score}
        return RouteChoice(route.router, Decision(route.target, reason, scores, previous=route.previous))


def encode(hop: Hop) -> str:
    """The value of the header."""
    return base64.b64encode(_ENCODER.encode(hop)).decode()


def decode(value: bytes) -> Hop:
    """Raises BadRequest for what no server of a fleet sends."""
    if len(value) <= MAX_BYTES:
        try:
            return _DECODER.decode(base64.b64decode(value, validate=True))
        except (*NOT_JSON, binascii.Error):
            pass
    raise BadRequest(f"{HEADER} cannot be read: do all servers of the fleet run one version?", code="invalid_context")


def moment(milliseconds: int | None) -> float | None:
    """Monotonic seconds in so many milliseconds."""
    return None if milliseconds is None else time.monotonic() + milliseconds / 1e3


def _milliseconds(moment: float | None) -> int | None:
    return None if moment is None else round(max(0.0, moment - time.monotonic()) * 1e3)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Hop)
