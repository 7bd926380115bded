"""One server's membership in a fleet: it joins, stays, follows the others and leaves.

| a server                | its row in the database    | new requests from others | its own clients               |
|-------------------------|----------------------------|--------------------------|-------------------------------|
| is starting             | none                       | none                     | none                          |
| has joined              | renewed each RENEW_SECONDS | accepted                 | answered                      |
| is drained              | marked as draining         | refused with 421         | answered                      |
| is stopping             | given up                   | refused with 421         | running ones may finish       |
| loses the database      | its lease may end          | accepted                 | answered                      |
| has lost its name       | another server's           | refused with 421         | answered, with a log message  |
"""

import asyncio
import datetime
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress

from prometheus_client import Gauge

from fleet.membership.members import (
    DEAD_SECONDS,
    LEASE_SECONDS,
    RENEW_SECONDS,
    Member,
    MemberTable,
    NewMember,
    OlderState,
)
from fleet.reports import NodeReport
from fleet.signatures import FleetKey
from fleet.table import ReportTable
from fleet.tls import FleetTls
from registry.base.wording import quoted
from registry.errors import Conflict, NodeFailed, NotFound, RoundhouseError, Unavailable
from runtime.gateway.context import RequestContext
from runtime.gateway.peers.connection import Body, PeerAnswer, PeerClient, PeerRequest
from runtime.gateway.peers.following import Follower
from runtime.gateway.peers.hop import Hop, encode
from runtime.gateway.peers.names import PeerNames
from runtime.gateway.peers.placing import Placer
from runtime.gateway.peers.planning import FleetPlanning
from runtime.gateway.peers.reporting import Reporter
from runtime.gateway.peers.views import PeerCards, is_clock_off, view_member
from runtime.gateway.views.fleet import FleetBlockView, FleetMemberView, FleetPassedView, FleetView
from tenants.caller import Caller, Scope

log = logging.getLogger("roundhouse.fleet")
SWEEP_SECONDS = 10.0
"""Seconds between two checks for dead servers."""
LAST_PASSED, KEPT_PASSED = 50, 1_000
"""Forwarded requests: the number shown, and the number kept for finding their nodes."""
NAMES_SECONDS, POLL_SECONDS = 2.0, 0.02
LOOK = "/fleet/v1/look"
"""Path by which another server makes this one read its row immediately."""
LOOK_SECONDS = 2.0
"""Seconds that a node has to read it."""
WARN_DAYS = 14
"""Days before the certificate expires at which log warnings begin, one a day."""


async def _nothing() -> None:
    """Do nothing."""


class Fleet:
    """A server's membership in its fleet. Created and closed on the event loop.

    Args:
        new: the server's description of itself.
    """

    def __init__(
        self,
        fleet: str,
        new: NewMember,
        identity: FleetTls | FleetKey,
        members: MemberTable,
        client: PeerClient,
        reports: ReportTable,
        names: PeerNames,
        cards: PeerCards,
    ) -> None:
        self.fleet, self.own, self.identity, self.cards = fleet, new, identity, cards
        self._members, self._client, self._reports, self._names = members, client, reports, names
        self.reporter: Reporter | None = None
        """None on a front, which has nothing to report."""
        self.placer: Placer
        self.planning: FleetPlanning
        """Both are set when the fleet is opened."""
        self._follower = Follower(new.name, client, reports, names, client.lost)
        self._present: Sequence[Member] = ()
        self._boot, self._renewed_at = 0, 0.0
        self._steady_since = self._swept_at = 0.0
        """Time since when each renewal was punctual. Only after a while have others renewed their leases too."""
        self.is_database_older = False
        """Whether the database was restored to an older state and is no longer used."""
        self.on_older_database: Callable[[], None] = lambda: None
        self.blocks: Callable[[], Sequence[FleetBlockView]] = tuple
        """Returns the blocks of shared limits that this server holds."""
        self.passed: deque[FleetPassedView] = deque(maxlen=KEPT_PASSED)
        """The last requests that it forwarded."""
        self.read_names: Callable[[], Awaitable[None]] = _nothing
        """Applies what other servers have changed in the shared names."""
        self.end_rows: Callable[[str], int] = lambda _server: 0
        """Closes a dead server's open rows in the ledger and its shares of limits. Blocks."""
        self._task: asyncio.Task[None] | None = None
        self._renewing = asyncio.Lock()
        self.is_draining = self.is_leaving = False
        self.dropped_headers = 0
        self.clock_offset = 0.0
        """Seconds by which this machine's clock is ahead of the database's."""
        self._certificate_days, self._certificate_fault = WARN_DAYS + 1, ""
        """Days until the certificate expires, rounded up, and why a new one is not used, as the log last considered
        them: each is logged once."""

    @property
    def takes_requests(self) -> bool:
        """Whether requests forwarded by others are accepted."""
        return not self.is_leaving

    # --- life -------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Join, after the port for the fleet was opened. Raises Conflict, Unavailable."""
        self._boot = await asyncio.to_thread(self._members.join, self.own)
        if self.reporter is not None:
            self.reporter.boot = self._boot
        self._renewed_at = self._steady_since = asyncio.get_running_loop().time()
        log.info("joined the fleet", extra={"fleet": self.fleet, "server": self.own.name, "boot": self._boot})
        await self._renew()
        self._task = asyncio.create_task(self._stay(), name="fleet")
        self.placer.start()
        await self._wait_for_nodes()

    async def _wait_for_nodes(self) -> None:
        """Wait for the first report of each node, at most NAMES_SECONDS: without them no model is known."""
        loop, nodes = asyncio.get_running_loop(), set(self.nodes()) - {self.own.name}
        end = loop.time() + NAMES_SECONDS
        while loop.time() < end and not all(map(self.reports_now, nodes)):  # noqa: ASYNC110 - many reports
            await asyncio.sleep(POLL_SECONDS)

    def nodes(self) -> list[str]:
        """Names of the nodes with a valid lease in the database."""
        return [one.name for one in self._present if one.role == "node"]

    def leave(self) -> None:
        """Leave because the server stops, so that others send no more requests. Returns immediately."""
        self.is_leaving = self.is_draining = True

    def cut_off(self) -> None:
        """End the requests that this server forwarded, because the time that a stop leaves them is over."""
        self._client.cut_off()

    async def close(self) -> None:
        self.leave()
        await self.placer.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            with suppress(RoundhouseError):  # otherwise the lease expires
                await asyncio.to_thread(self._members.leave, self.own.name, self._boot)
        await self._follower.close()
        await self._client.close()
        await asyncio.to_thread(self._members.close)

    async def _stay(self) -> None:
        was_away = False
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            self._refresh_certificate()
            if self.is_database_older:
                continue
            try:
                await self._renew()
                await self._sweep()
                was_away = False
            except OlderState as error:
                self._refuse_database(error)
            except RoundhouseError as error:
                if not was_away:
                    log.error("the fleet's database does not answer", extra={"cause": error.message})
                was_away = True
            except Exception:  # no error may end the loop; the next renewal may succeed
                log.exception("the fleet's members cannot be read")

    async def _renew(self) -> None:
        async with self._renewing:  # so that the rows read last are the newest
            present = await asyncio.to_thread(self._members.renew, self.own.name, self._boot)
            if present is None:
                if not self.is_leaving:
                    log.error("another server has this one's name: it takes no more requests of the fleet")
                self.leave()
                return
            now = asyncio.get_running_loop().time()
            if now - self._renewed_at > LEASE_SECONDS:
                self._steady_since = now
            self._renewed_at = now
            self._compare_clocks(time.time() - self._members.now())
            self._present = present
            own = next((one for one in present if one.name == self.own.name), None)
            self.is_draining = self.is_leaving or (own is not None and own.draining)
            self._follower.set(present)

    def _compare_clocks(self, offset: float) -> None:
        if is_clock_off(offset) and not is_clock_off(self.clock_offset):
            log.warning("this machine's clock is not the database's: set it", extra={"seconds_ahead": round(offset, 3)})
        self.clock_offset = offset

    def now(self) -> float:
        """Seconds since the epoch by the database's clock, as far as known."""
        return self._members.now()

    def _refuse_database(self, error: OlderState) -> None:
        self.is_database_older = self.placer.is_stopped = True
        self.on_older_database()
        log.error(
            "the fleet's database is in an older state and is not used any more: restore the newer state, or restart "
            "the fleet's servers",
            extra={"cause": error.message},
        )

    async def _sweep(self) -> None:
        """Close open rows of dead servers, once others had time to renew leases that expired with the database away."""
        now = self._renewed_at
        if now - self._steady_since < DEAD_SECONDS or now - self._swept_at < SWEEP_SECONDS:
            return
        self._swept_at = now
        for name, rows in (await asyncio.to_thread(self._members.sweep, self.end_rows)).items():
            log.warning("requests of a dead server were ended as interrupted", extra={"server": name, "requests": rows})

    def _refresh_certificate(self) -> None:
        try:
            if self.identity.refresh():
                self._certificate_fault = ""
                log.info("a renewed certificate is in use", extra={"ends": str(self.identity.ends)})
        except RoundhouseError as error:
            if error.message != self._certificate_fault:
                self._certificate_fault = error.message
                log.error("a renewed certificate is not used", extra={"cause": error.message})
        if (seconds := self.certificate_seconds) is None:
            return
        days = math.ceil(seconds / 86_400)
        if days == self._certificate_days:
            return
        self._certificate_days = days
        if days == 0:
            log.error("this server's certificate has expired, so new connections fail: roundhouse fleet ca renew")
        elif days <= WARN_DAYS:
            left = str(datetime.timedelta(seconds=round(seconds)))
            log.warning("this server's certificate ends soon: roundhouse fleet ca renew", extra={"left": left})

    def export_certificate(self, gauge: Gauge) -> None:
        """Let metrics say when the certificate expires, unless the fleet uses a key."""
        if self.certificate_seconds is not None:
            gauge.labels(self.own.name).set_function(lambda: self.certificate_seconds or 0.0)

    @property
    def certificate_seconds(self) -> float | None:
        """Seconds until this server's certificate expires, 0 if it has, None if the fleet uses a key instead."""
        if (ends := self.identity.ends) is None:
            return None
        return max(0.0, (ends - datetime.datetime.now(datetime.UTC)).total_seconds())

    def count_dropped(self) -> None:
        """Count a fleet header that arrived at the public port and was dropped."""
        self.dropped_headers += 1

    # --- reports ----------------------------------------------------------------------------------------------------
    def events(self) -> AsyncIterator[tuple[str, bytes]]:
        """This node's names and reports. Raises NotFound for a front."""
        if self.reporter is None:
            raise NotFound("A front has nothing to report.", code="unknown_path")
        return self.reporter.events()

    # --- changes of names, of fronts --------------------------------------------------------------------------------
    def model_of(self, name: str, caller: Caller, *, is_adapter: bool) -> str:
        """The model with this name, or the base of the adapter. Raises NotFound, BadRequest (ambiguous)."""
        catalog = self._names.names.managed_by(caller)
        return catalog.adapter(name).key.base if is_adapter else catalog.model(name).id

    async def wait_for_model(self, model: str) -> None:
        """Wait until a node reports a model, at most NAMES_SECONDS."""
        end = asyncio.get_running_loop().time() + NAMES_SECONDS
        while model not in self._names.models and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110 - many changes
            await asyncio.sleep(POLL_SECONDS)

    def node_for(self, model: str | None) -> str:
        """Choose a node for a change of names, one with the model if possible. Raises Unavailable."""
        with suppress(NotFound):
            model = None if model is None else self._names.names.catalog.model(model).id
        now = asyncio.get_running_loop().time()
        reports = {node: self._reports.fresh(node, now) for node in self._names.nodes()}
        nodes = [node for node, report in reports.items() if report is not None and not report.draining]
        if not nodes:
            raise Unavailable(
                "No node of the fleet takes requests now: roundhouse fleet nodes.", code="no_node", retry_after=1
            )
        having = set(nodes if model is None else self._names.nodes_of(model))
        return next((node for node in nodes if node in having), nodes[0])

    def nodes_with_model(self, model: str) -> list[str]:
        """The nodes that can load a model, by name."""
        return self._names.nodes_of(model)

    def node_of_request(self, request: str) -> str | None:
        """Find the node that got a request last. None if it is unknown or the node has left."""
        node = next((one.node for one in reversed(self.passed) if one.id == request), None)
        return node if node is not None and self.reports_now(node) else None

    def has_moved(self, model: str) -> bool:
        """Whether a model is to be on other nodes only, and one of them can answer with it now."""
        nodes = self.placer.row.replicas.get(model, ())
        if self.own.name in nodes:
            return False
        now = asyncio.get_running_loop().time()
        reports = [report for node in nodes if (report := self._reports.fresh(node, now)) is not None]
        return any(
            replica.model == model and replica.state == "ready"
            for report in reports
            if not report.draining
            for replica in report.replicas
        )

    def reports_now(self, node: str) -> bool:
        return self._reports.fresh(node, asyncio.get_running_loop().time()) is not None

    def exchange(
        self,
        context: RequestContext,
        method: str,
        node: str,
        path: str,
        body: Body,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> AbstractAsyncContextManager[PeerAnswer]:
        """Forward a request to a node from `node_for`, or one that `reports_now`. path: including the query."""
        stored = self._reports.get(node)
        assert stored is not None, "it reports"
        hop = encode(Hop.of_change(context))
        request = PeerRequest(method, node, stored.report.address, path, headers, hop, context.id)
        return self._client.exchange(request, body)

    # --- for people -------------------------------------------------------------------------------------------------
    def view(self, caller: Caller) -> FleetView:
        """Describe the fleet. Only administrators see requests of other teams."""
        loop = asyncio.get_running_loop()
        members = [self._view(one, loop.time()) for one in self._present]
        is_admin = Scope.ADMIN in caller.scopes
        return FleetView(
            name=self.fleet,
            server=self.own.name,
            role=self.own.role,
            boot=self._boot,
            certificate_ends="" if (ends := self.identity.ends) is None else f"{ends:%Y-%m-%d %H:%M}",
            is_joined=loop.time() - self._renewed_at < LEASE_SECONDS,
            nodes=sum(member.role == "node" for member in members),
            fronts=sum(member.role == "front" for member in members),
            dropped_headers=self.dropped_headers,
            ignored_reports={str(reason): count for reason, count in sorted(self._reports.ignored.items())},
            epoch=self.placer.row.epoch,
            is_followed=not self.placer.is_old,
            desired={model: list(nodes) for model, nodes in self.placer.row.replicas.items()},
            blocks=list(self.blocks()) if is_admin else [],
            passed=[one for one in reversed(self.passed) if is_admin or one.team == caller.team][:LAST_PASSED],
            members=members,
        )

    async def drain(self, name: str, draining: bool, caller: Caller, *, force: bool = False) -> FleetView:
        """Stop or resume sending new requests to a node.

        Raises NotFound; Conflict for a front, the last node, or the last one that has a pinned model in memory.
        """
        role = next((one.role for one in self._present if one.name == name), None) if draining else None
        if role == "front":
            raise Conflict(
                f"'{name}' is a front, which only clients send requests to: lead them to another server, then stop it. "
                "It finishes its running requests.",
                code="not_a_node",
            )
        if role == "node" and not force:
            self._check_others(name)
        if self.is_database_older:
            raise Unavailable("The fleet's database is in an older state and is not used.", code="database_unavailable")
        await asyncio.to_thread(self._members.drain, name, draining)
        await self._renew()
        if role == "node" and not force:
            try:
                self._check_others(name)
            except Conflict:  # another node was drained meanwhile, maybe at another server
                await asyncio.to_thread(self._members.drain, name, False)
                await self._renew()
                raise
        await self._notify(name)
        return self.view(caller)

    async def _notify(self, name: str) -> None:
        """Make a node read its row now. If it is unreachable or older, it reads the row at its next renewal."""
        node = next((one for one in self._present if one.name == name and one.role == "node"), None)
        if node is not None and name != self.own.name:
            with suppress(NodeFailed, TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._client.ask("POST", name, node.address, LOOK)

    async def look(self) -> None:
        """Read this server's row now. Raises Unavailable."""
        if not self.is_database_older:
            await self._renew()

    def _check_others(self, name: str) -> None:
        """Raises Conflict if no other node takes requests, or if none of them has a model that is pinned here."""
        others = [one.name for one in self._present if one.role == "node" and one.name != name and not one.draining]
        if not others:
            raise Conflict(
                f"'{name}' is the last node that takes requests. Drain it with force=true (--force), or start "
                "another one first.",
                code="last_node",
            )
        own = self.reporter if name == self.own.name else None
        models = self._names.by_node.get(name, {}) if own is None else own.models()
        reports = [self._report_of(other) for other in others]
        ready = {
            replica.model for report in reports if report is not None for replica in report.replicas if replica.ready
        }
        pinned = sorted(id_ for id_, model in models.items() if model.view.pinned and id_ not in ready)
        if pinned:
            raise Conflict(
                f"'{name}' is the last node that has {' and '.join(map(quoted, pinned))} in memory, pinned there. "
                "Drain it with force=true (--force), or place it on another node first (roundhouse fleet place).",
                code="last_node",
            )

    def _report_of(self, node: str) -> NodeReport | None:
        """The latest report of a node, including this one."""
        if node == self.own.name:
            return None if self.reporter is None else self.reporter.report()
        stored = self._reports.get(node)
        return None if stored is None else stored.report

    def _view(self, member: Member, now: float) -> FleetMemberView:
        stored, report = self._reports.get(member.name), self._report_of(member.name)
        age = None if stored is None else now - stored.at
        certificate = None if report is None else report.certificate_seconds
        offset = None if report is None else report.clock_offset
        if member.name == self.own.name:
            age, certificate, offset = 0.0, self.certificate_seconds, self.clock_offset
        lease_seconds, is_late = member.lease_seconds - (now - self._renewed_at), self._reports.is_out(member.name, now)
        return view_member(member, report, age, lease_seconds, certificate, offset, is_late=is_late)
