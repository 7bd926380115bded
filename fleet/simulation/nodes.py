"""A node: its replicas, with given engine times, and its reports."""

from collections import OrderedDict
from collections.abc import Callable

from fleet.reports import DeviceReport, NodeReport, ReplicaReport
from fleet.simulation.clock import VirtualClock
from fleet.simulation.replicas import CLOSE_SECONDS, SimReplica
from fleet.simulation.scenario import Scenario
from fleet.simulation.traffic import SimRequest

GIB = 1 << 30
STAGED = 64
"""Number of prompt beginnings that an engine's cache holds."""


class SimNode:
    """A whole server."""

    def __init__(self, name: str, rack: int, scenario: Scenario, clock: VirtualClock) -> None:
        self.name, self.rack, self._scenario, self._clock = name, rack, scenario, clock
        self.boot, self.seq, self.epoch, self._began = 1, 0, 0, -1.0
        self.is_up, self.is_cut, self.is_draining, self.is_dark = True, False, False, False
        """is_dark: nothing answers, not even a connection reset."""
        self.slowness, self.lateness = 1.0, 0.0
        self.replicas: dict[str, SimReplica] = {}
        self.staged: OrderedDict[str, None] = OrderedDict()
        self._desired: dict[str, int] = {}
        self.under_way: dict[int, SimRequest] = {}
        self._adapters: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        self.busy_seconds, self._busy_at, self.work = 0.0, 0.0, 0
        self.on_end: Callable[[SimRequest], None] = lambda _request: None
        self.on_change: Callable[[SimNode], None] = lambda _node: None

    # --- requests ---------------------------------------------------------------------------------------------------
    def accepts(self, model: str) -> bool:
        replica = self.replicas.get(model)
        return not self.is_draining and replica is not None and replica.phase == "ready"

    def arrive(self, request: SimRequest) -> None:
        """Receive a request; requires that the node accepts its model."""
        self._count(1)
        self.under_way[id(request)] = request
        replica, digest = self.replicas[request.model], request.digest
        if digest is not None:
            request.is_hit = replica.has_settled(digest, self._clock.now)
            if digest not in replica.placed and digest not in replica.incoming:
                self._bring(replica, digest)
        replica.enqueue(request)
        self._pump(replica)

    def _pump(self, replica: SimReplica) -> None:
        one = self._scenario
        while replica.waiting and replica.running < one.at_once and (request := replica.next()) is not None:
            self._start(replica, request)

    def _start(self, replica: SimReplica, request: SimRequest) -> None:
        times, now = self._scenario.times, self._clock.now
        replica.running += 1
        request.began = now
        prompt = request.prompt
        if request.shared and request.prefix is not None:
            request.is_cached = request.prefix in replica.prefixes
            replica.prefixes[request.prefix] = None
            if request.is_cached:
                prompt -= request.shared
        swap = 0.0
        if request.digest is not None:
            replica.use(request.digest, 1)
            swap = max(0.0, replica.settles[request.digest] - now)
        beside = sum(one.running for one in self.replicas.values() if one.device == replica.device)
        step = (times.step + times.step_more * beside) * self.slowness
        first = swap + prompt / times.prompt_rate * self.slowness + step
        self._clock.after(first, self._first, request, self.boot)
        self._clock.after(first + (request.answer - 1) * step, self._end, replica, request, self.boot, now)

    def _bring(self, replica: SimReplica, digest: str) -> None:
        """Stage an adapter, after which it gets a place."""
        replica.incoming.add(digest)
        seconds = 0.0 if digest in self.staged else self._scenario.times.stage
        self._clock.after(seconds, self._staged, replica, digest, self.boot)

    def _staged(self, replica: SimReplica, digest: str, boot: int) -> None:
        if boot != self.boot or not self.is_up:
            return
        self.staged[digest] = None
        self.staged.move_to_end(digest)
        if len(self.staged) > STAGED:
            self.staged.popitem(last=False)
        self._adapters = None
        replica.blocked.append(digest)
        self._fill(replica)
        if digest in replica.blocked:
            self._clock.after(CLOSE_SECONDS, self._close, replica, digest, boot)

    def _close(self, replica: SimReplica, digest: str, boot: int) -> None:
        if boot == self.boot and self.is_up and digest in replica.blocked:
            replica.close_one()
            self._fill(replica)

    def _fill(self, replica: SimReplica) -> None:
        closing = sorted(replica.closing)
        if replica.fill(self._clock.now + self._scenario.times.place):
            self._adapters = None
            for digest in closing:
                if digest not in replica.placed and replica.lined[digest]:
                    self._bring(replica, digest)
            self._pump(replica)

    def _first(self, request: SimRequest, boot: int) -> None:
        if boot == self.boot and self.is_up and not self.is_cut and self._has(request):
            request.first = self._clock.now

    def _end(self, replica: SimReplica, request: SimRequest, boot: int, began: float) -> None:
        if boot != self.boot or not self.is_up:
            return
        self._count(-1)
        self.under_way.pop(id(request), None)
        replica.running -= 1
        seconds = self._clock.now - began
        replica.seconds += 0.05 * (seconds - replica.seconds) if replica.seconds else seconds
        if request.digest is not None:
            replica.use(request.digest, -1)
        if not self.is_cut and self._has(request):
            if request.first < 0:  # it was sent during a short cut
                request.first = self._clock.now
            self.on_end(request)
        self._pump(replica)
        self._fill(replica)
        if replica.phase == "draining" and not replica.running:
            self._unload(replica)

    def _has(self, request: SimRequest) -> bool:
        """Return whether its front still waits for this node."""
        return request.node == self.name and not request.outcome

    def _count(self, more: int) -> None:
        now = self._clock.now
        self.busy_seconds += self.work * (now - self._busy_at)
        self.work, self._busy_at = self.work + more, now

    def mean_work(self, since: float) -> float:
        """Return the mean number of running and waiting requests since `reset`."""
        self._count(0)
        return self.busy_seconds / max(1e-9, self._clock.now - since)

    def reset(self) -> None:
        """Start measuring work."""
        self._count(0)
        self.busy_seconds = 0.0

    # --- models -----------------------------------------------------------------------------------------------------
    def follow(self, epoch: int, desired: dict[str, int]) -> None:
        """Load and unload models to match `desired` (GiB by model). Ignores an older epoch."""
        if not self.is_up or epoch < self.epoch:
            return
        self.epoch, self._desired = epoch, desired
        for model, replica in list(self.replicas.items()):
            if model not in desired and replica.phase != "draining":
                replica.phase = "draining"
                for request in replica.clear():
                    self._count(-1)
                    self.under_way.pop(id(request), None)
                    if self._has(request):
                        request.outcome = "moved"
                        self.on_end(request)
                if not replica.running:
                    self._unload(replica)
        self._load()

    def _load(self) -> None:
        times, size = self._scenario.times, self._scenario.device_gib
        for model in sorted(self._desired.keys() - self.replicas.keys()):
            free = [size] * self._scenario.devices
            for replica in self.replicas.values():
                free[replica.device] -= replica.held
            device = free.index(max(free))
            if free[device] < self._desired[model]:
                continue
            replica = self.replicas[model] = SimReplica(model, self._desired[model], device, self._scenario.places)
            self._clock.after(times.load + times.load_gib * replica.held, self._loaded, replica, self.boot)

    def _loaded(self, replica: SimReplica, boot: int) -> None:
        if boot == self.boot and self.is_up and replica.phase == "loading":
            replica.phase = "ready"
            self.on_change(self)

    def _unload(self, replica: SimReplica) -> None:
        del self.replicas[replica.model]
        self._adapters = None
        self._load()
        self.on_change(self)

    def place_at_once(self, desired: dict[str, int]) -> None:
        """Load these models at once, at the beginning."""
        self.follow(self.epoch, desired)
        for replica in self.replicas.values():
            replica.phase = "ready"

    # --- start and stop ---------------------------------------------------------------------------------------------
    def stop(self) -> list[SimRequest]:
        """Stop at once. Returns the requests that were running or waiting."""
        self._count(-self.work)
        self.is_up = False
        self.boot += 1
        ended = list(self.under_way.values())
        self.under_way.clear()
        self.replicas.clear()
        self.staged.clear()
        self._adapters = None
        return ended

    def start(self) -> None:
        """Start as a new boot, with its files, unless another fault's end already did."""
        if self.is_up:
            return
        self.is_up, self.is_draining, self.seq, self._began = True, False, 0, self._clock.now
        self.on_change(self)

    def report(self) -> NodeReport:
        one, now = self._scenario, self._clock.now
        self.seq += 1
        if self._adapters is None:
            placed = tuple(digest for replica in self.replicas.values() for digest in replica.placed)
            self._adapters = placed, tuple(self.staged)
        used = [0] * one.devices
        replicas = []
        for replica in self.replicas.values():
            used[replica.device] += replica.held
            start = 0.0
            if replica.running >= one.at_once:
                start = (replica.waiting + 1) * replica.seconds / one.at_once
            replicas.append(
                ReplicaReport(
                    model=replica.model, state=replica.phase, ready=int(replica.phase == "ready"), capacity=one.at_once,
                    running=replica.running, waiting=replica.waiting, start_seconds=start,
                    request_seconds=replica.seconds, prefill_seconds=0.5 * one.prompt_tokens / one.times.prompt_rate,
                    token_seconds=replica.seconds / one.answer_tokens,
                    devices=(f"cuda:{replica.device}",),
                )
            )  # fmt: skip
        budget = one.device_gib * GIB
        devices = tuple(
            DeviceReport(device=f"cuda:{number}", budget=budget, used=held * GIB) for number, held in enumerate(used)
        )
        return NodeReport(
            node=self.name, boot=self.boot, seq=self.seq, uptime=now - self._began, version="1",
            address=f"https://{self.name}:8443", devices=devices, replicas=tuple(replicas),
            placed=self._adapters[0], staged=self._adapters[1], draining=self.is_draining,
        )  # fmt: skip
