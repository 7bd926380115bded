"""Models of other nodes: chooses the node that answers, and makes the attempt there.

 1. The name is known here,                     another backend's target
    and its weights and adapter are here
 2. The name is known on a node                 that node's weights, by revision and digest
 3. No node knows it, but one that left within  503 (no_node)
    LEFT_SECONDS did, or a front has no nodes
 4. No node knows it                            this server's error or, on a front, one that lists what exists

A request is sent at most MAX_NODES times, to the next node or again to the only one, and only as long as the client
has received nothing.

If no node can take it, but reports are overdue on connections that have not broken, it waits for them up to
OVERDUE_SECONDS: after a pause of this machine, for example, the server has yet to read what arrived meanwhile.

A node is late (`fleet.lateness`) if the first byte of a stream takes more than LATE_SECONDS beyond twice the start time
that it predicts. Whole answers, requests that wait for a load, and the lowest class are never late.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from hashlib import blake2b
from typing import Any

from fleet.choose import FleetTarget, explain, prefix_key
from fleet.reports import NodeReport
from fleet.table import ReportTable
from models.tasks.chat import ChatPayload
from registry.base.wording import quoted
from registry.catalog import ResolvedName
from registry.errors import Conflict, NodeFailed, NotFound, RoundhouseError, Unavailable
from routing.replicas import prefix_of
from runtime.gateway.backend import LoadProgress, TargetState
from runtime.gateway.names import ModelRef, Names
from runtime.gateway.peers.connection import PeerAnswer, PeerClient, PeerRequest
from runtime.gateway.peers.hop import Hop, encode
from runtime.gateway.peers.names import PeerNames
from runtime.gateway.request import Request
from runtime.gateway.target import Lease, Target
from runtime.gateway.views.fleet import FleetPassedView
from tenants.caller import Caller, ServiceClass
from tenants.costs.prices import batch_price_list, price_list
from tenants.ledger.rows import BATCH

log = logging.getLogger("roundhouse.fleet")
_Exchange = AbstractAsyncContextManager[PeerAnswer]
NAME = "peers"
MAX_NODES = 2
"""The most nodes that a request is sent to."""
LATE_SECONDS = 5.0
OVERDUE_SECONDS, LOOK_SECONDS = 4.0, 0.05
"""Within OVERDUE_SECONDS a connection without data breaks (after REPORT_SECONDS), and another one is opened."""
LEFT = "left"
"""The reason for a node if better ones were tried already or lack the weights."""


class PeerBackend:
    """`runtime.gateway.backend.Backend`, `RetryPolicy` and `Relay`.

    Args:
        own: names of this server. None on a front, which has none.
        is_stored: whether this server has the files of an adapter.
        has_weights: whether it can load a model, as far as known.
    """

    name = NAME

    def __init__(
        self,
        own: Names | None,
        peers: PeerNames,
        reports: ReportTable,
        client: PeerClient,
        is_stored: Callable[[str], bool] = lambda _: True,
        has_weights: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._own, self._peers, self._reports, self._client = own, peers, reports, client
        self._is_stored, self._has_weights = is_stored, has_weights
        self.passed: Callable[[FleetPassedView], None] = lambda _view: None
        """Called with each forwarded request and the reason for its node."""
        self.retry = self.relay = self

    # --- names ------------------------------------------------------------------------------------------------------
    def resolve(self, model_ref: ModelRef, caller: Caller) -> Target | None:
        if self._own is not None and self._is_here(partial(self._own.resolve, model_ref, caller)):
            return None
        try:
            name, resolved = self._peers.names.resolve(model_ref, caller)
        except NotFound:
            if (self._own is None and not self._peers.nodes()) or self._peers.was_on_left_node(model_ref, caller):
                raise _no_node(str(model_ref.name)) from None
            if self._own is None:
                raise
            return None
        model = self._peers.models[resolved.recipe.id]
        price = model.recipe.price
        return Target(
            name,
            model.recipe.id,
            model.revision,
            resolved.adapter_name,
            resolved.version,
            NAME,
            abilities=model.abilities,
            price=price_list(price),
            batch_price=batch_price_list(price),
            is_strict=model.recipe.strict,
        )

    def find(self, name: str, caller: Caller) -> ResolvedName | None:
        """Resolve a name whose requests go to other nodes. None if they stay here."""
        own = self._own
        if own is not None and self._is_here(lambda: (name, own.find(name, caller))):
            return None
        try:
            return self._peers.names.find(name, caller)
        except RoundhouseError:
            return None

    def _is_here(self, resolve: Callable[[], tuple[str, ResolvedName]]) -> bool:
        """Whether this server handles the name, if only with an error.

        False if files of the adapter or model are missing here and other nodes may have them.
        """
        try:
            _, resolved = resolve()
        except NotFound:
            return False
        except RoundhouseError:
            return True
        model = resolved.recipe.id
        if not self._has_weights(model) and model in self._peers.models and self._peers.models[model].problem is None:
            return False
        digest = None if resolved.version is None else resolved.version.digest
        return digest is None or self._is_stored(digest) or not self._peers.nodes_storing(digest)

    # --- states -----------------------------------------------------------------------------------------------------
    def load_progress(self, target: Target) -> LoadProgress | None:
        """Always None: the node reports the progress of its loads itself."""
        return None

    def context_length(self, target: Target) -> int | None:
        model = self._peers.models.get(target.model)
        return None if model is None else model.view.context_length

    def state_of(self, target: Target) -> TargetState:
        replicas = [
            replica
            for node in self._nodes(target)
            if (stored := self._reports.get(node)) is not None
            for replica in stored.report.replicas
            if replica.model == target.model
        ]
        waiting = min((replica.waiting for replica in replicas), default=0)
        return TargetState(is_local=True, is_resident=any(replica.ready for replica in replicas), waiting=waiting)

    # --- attempts ---------------------------------------------------------------------------------------------------
    def total_timeout(self, target: Target) -> float | None:
        return None

    def retry_delay(self, target: Target, error: Exception, attempts: int, seconds_left: float | None) -> float | None:
        is_late = seconds_left is not None and seconds_left <= 0
        return 0.0 if isinstance(error, NodeFailed) and error.again and attempts < MAX_NODES and not is_late else None

    def lease(self, request: Request, target: Target) -> AbstractAsyncContextManager[Lease]:
        raise Unavailable(f"'{target.model}' is on another node, which takes whole requests only.")

    def send(self, request: Request, target: Target) -> AbstractAsyncContextManager[PeerAnswer]:
        message = request.message
        if request.context.hop is not None:
            raise Conflict("A request is passed on once.")  # `Gateway.choose` never forwards these
        if message is None or request.context.source == BATCH:  # nodes with the model claim its batch lines themselves
            raise Unavailable(f"'{target.requested}' is on another node of the fleet, which takes lines for it.")
        return _Sending(self, self._reports, request, target)

    async def begin(self, request: Request, target: Target) -> "tuple[_Exchange, str, float | None]":
        """Choose a node. Returns the exchange with it, its name, and seconds until the first byte is due, if ever.

        Raises Unavailable.
        """
        try:
            node, reason = self._choose(request, target)
        except Unavailable:
            await self._wait_for_reports(target, request.context.seconds_left())
            node, reason = self._choose(request, target)
        request.nodes.append(node)
        self.passed(
            FleetPassedView(
                at=round(time.time(), 3), id=request.context.id, team=request.context.caller.team, model=target.model,
                adapter=target.adapter or "", node=node, attempt=len(request.nodes), reason=reason,
            )
        )  # fmt: skip
        self._reports.count_sent(node, target.model, asyncio.get_running_loop().time())
        hop = Hop.of(request.context, target, len(request.nodes))
        stored, message = self._reports.get(node), request.message
        assert stored is not None, "it reports"
        assert message is not None, "`send` has checked it"
        path = request.endpoint + (f"?{message.query}" if message.query else "")
        passed = PeerRequest(
            "POST", node, stored.report.address, path, request.context.headers, encode(hop), request.context.id
        )
        exchange = self._client.send(passed, message.body)
        return exchange, node, _first_byte_due(request, stored.report, target.model)

    async def _wait_for_reports(self, target: Target, seconds_left: float | None) -> None:
        """Wait until a node that can take the request reports, or none is overdue. seconds_left: for its answer."""
        loop, digest = asyncio.get_running_loop(), None if target.version is None else target.version.digest
        end = loop.time() + min(OVERDUE_SECONDS, OVERDUE_SECONDS if seconds_left is None else seconds_left)

        def is_overdue(node: str) -> bool:
            return self._reports.get(node) is not None and self._reports.fresh(node, loop.time()) is None

        while loop.time() < end and not self._nodes(target):
            if not any(map(is_overdue, self._peers.nodes_with(target.model, target.revision, digest))):
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _choose(self, request: Request, target: Target) -> tuple[str, str]:
        """Choose the node for the next attempt, with the reason. Raises Unavailable.

        The policy ranks nodes by the models and adapters they have in memory. Only untried nodes with exactly these
        weights count. If none is left, any other node that can load them takes the request, late nodes last.
        """
        now = asyncio.get_running_loop().time()
        digest = None if target.version is None else target.version.digest
        draw = int.from_bytes(blake2b(request.context.id.encode(), digest_size=8).digest(), "big")
        wish = FleetTarget(target.model, target.revision, digest, draw)
        prefix = _prefix(request, digest)
        best = explain(wish, prefix, self._reports, now)
        for node in best.tries:  # usually the first one fits, so the other nodes need not be checked
            if node not in request.nodes and self._takes(node, target, now):
                return node, best.reason if (node,) == best.tries[:1] else LEFT
        possible = self._nodes(target)
        if self._reports.has_late:
            possible = sorted(possible, key=lambda node: self._reports.is_out(node, now))
        for node in [node for node in possible if node not in request.nodes] or possible:
            return node, best.reason if (node,) == best.tries[:1] else LEFT
        raise _no_node(target.model)

    def _nodes(self, target: Target) -> Sequence[str]:
        """The nodes that have the target's weights, send reports and take new requests."""
        now = asyncio.get_running_loop().time()
        digest = None if target.version is None else target.version.digest
        having = self._peers.nodes_with(target.model, target.revision, digest)
        return [node for node in having if self._takes(node, target, now)]

    def _takes(self, node: str, target: Target, now: float) -> bool:
        """Whether a node has the target's weights, sends reports and takes new requests."""
        report = self._reports.fresh(node, now)
        if report is None or report.draining:
            return False
        digest = None if target.version is None else target.version.digest
        return self._peers.has_weights(node, target.model, target.revision, digest)


class _Sending:
    """An attempt at a node, which reports to the table whether the answer's first byte is late."""

    __slots__ = ("_backend", "_exchange", "_is_counted", "_node", "_reports", "_request", "_sent_at", "_target")

    def __init__(self, backend: PeerBackend, reports: ReportTable, request: Request, target: Target) -> None:
        self._backend, self._reports, self._request, self._target = backend, reports, request, target
        self._exchange: _Exchange
        self._node, self._sent_at, self._is_counted = "", 0.0, False

    async def __aenter__(self) -> PeerAnswer:
        self._exchange, self._node, due = await self._backend.begin(self._request, self._target)
        loop = asyncio.get_running_loop()
        self._sent_at = loop.time()
        timer = None if due is None else loop.call_later(due, self._count, True)
        try:
            answer = await self._exchange.__aenter__()
        finally:
            if timer is not None:
                timer.cancel()
        if answer.status < 400:  # refusals prove nothing: they do not need the engine
            self._count(False)
        return answer

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._exchange.__aexit__(*error)

    def _count(self, is_late: bool) -> None:
        if self._is_counted:
            return
        self._is_counted = True
        now = asyncio.get_running_loop().time()
        if self._reports.count_answer(self._node, self._sent_at, now, is_late=is_late):
            text = (
                "answers of a node begin late: others get its requests" if is_late else "a node answers in time again"
            )
            log.warning(text, extra={"node": self._node})


def _no_node(name: str) -> Unavailable:
    return Unavailable(
        f"No node of the fleet can answer with {quoted(name)} now: roundhouse fleet nodes.",
        code="no_node",
        retry_after=1,
    )


def _first_byte_due(request: Request, report: NodeReport, model: str) -> float | None:
    """Seconds until the first byte of an answer is due. None if it is never late."""
    if request.context.service_class > ServiceClass.INTERACTIVE or not _is_stream(request):
        return None
    starts = [
        replica.start_seconds for replica in report.replicas if replica.model == model and replica.state == "ready"
    ]
    return LATE_SECONDS + 2 * starts[0] if starts else None


def _is_stream(request: Request) -> bool:
    first = next(iter(request.calls), None)
    return isinstance(first, ChatPayload) and first.body.get("stream") is True


def _prefix(request: Request, digest: str | None) -> int | None:
    """The ring position of a prompt's beginning. None if the engine has no prefix cache."""
    first = next(iter(request.calls), None)
    if not isinstance(first, ChatPayload):
        return None
    return prefix_key(request.context.caller.salt or "", digest, prefix_of(first.body))
