"""An engine of a simulated node: its queue, and its adapters' places as `runtime.scheduling.placement` gives them.

| an adapter      | entered when                                              | its requests                        |
|-----------------|-----------------------------------------------------------|-------------------------------------|
| is away         | it lost its place to another one                          | the first one has it brought        |
| is incoming     | a request came for it: it is staged, then needs a place   | wait; others go first               |
| has a place     | a place is free, or its adapter is unused and unneeded    | start, and wait until it has moved  |
| closes its      | another adapter has waited CLOSE_SECONDS for a place      | wait; the place is given away after |
| place           |                                                           | the last one that runs              |
"""

from collections import Counter, OrderedDict, deque
from typing import Literal

from fleet.simulation.traffic import SimRequest

CLOSE_SECONDS = 0.5
Phase = Literal["loading", "ready", "draining"]


class SimReplica:
    """An engine. Teams take turns in its queue."""

    __slots__ = (
        "blocked", "closing", "device", "held", "incoming", "lined", "loaded", "model", "phase", "placed", "places",
        "prefixes", "queues", "running", "seconds", "settles", "waiting",
    )  # fmt: skip

    def __init__(self, model: str, held: int, device: int, places: int) -> None:
        self.model, self.held, self.device, self.places = model, held, device, places
        self.phase: Phase = "loading"
        self.queues: OrderedDict[str, deque[SimRequest]] = OrderedDict()
        self.waiting = self.running = 0
        self.lined = Counter[str]()
        """Waiting requests by adapter."""
        self.placed: OrderedDict[str, int] = OrderedDict()
        """Requests that use an adapter in a place; the least recently used one first."""
        self.settles: dict[str, float] = {}
        """The time at which an adapter has moved into its place."""
        self.incoming: set[str] = set()
        self.blocked: list[str] = []
        """Staged adapters that wait for a place."""
        self.closing: set[str] = set()
        self.prefixes: OrderedDict[int, None] = OrderedDict()
        self.seconds = 0.0

    # --- requests ---------------------------------------------------------------------------------------------------
    def enqueue(self, request: SimRequest) -> None:
        self.queues.setdefault(request.team, deque()).append(request)
        self.waiting += 1
        if request.digest is not None:
            self.lined[request.digest] += 1

    def next(self) -> SimRequest | None:
        """The first one that can start of the first team in turn that has one."""
        for team, queue in self.queues.items():
            for number, request in enumerate(queue):
                digest = request.digest
                if digest is None or (digest in self.placed and digest not in self.closing):
                    del queue[number]
                    self.queues.move_to_end(team) if queue else self.queues.pop(team)
                    self._left(request)
                    return request
        return None

    def clear(self) -> list[SimRequest]:
        """Take all that wait out of the queue."""
        requests = [request for queue in self.queues.values() for request in queue]
        self.queues.clear()
        for request in requests:
            self._left(request)
        return requests

    def _left(self, request: SimRequest) -> None:
        self.waiting -= 1
        if request.digest is not None:
            self.lined[request.digest] -= 1

    # --- places -----------------------------------------------------------------------------------------------------
    def has_settled(self, digest: str, now: float) -> bool:
        return digest in self.placed and self.settles[digest] <= now

    def use(self, digest: str, more: int) -> None:
        """Note that a request with it starts, or ends."""
        self.placed[digest] += more
        self.placed.move_to_end(digest)

    def fill(self, settles: float) -> bool:
        """Give places to adapters that wait for one. Returns whether one got it."""
        count = len(self.blocked)
        while self.blocked:
            if len(self.placed) >= self.places:
                victim = self._victim()
                if victim is None:
                    break
                del self.placed[victim], self.settles[victim]
                self.closing.discard(victim)
            digest = self.blocked.pop(0)
            self.incoming.discard(digest)
            self.placed[digest], self.settles[digest] = 0, settles
        if not self.blocked:
            self.closing.clear()
        return len(self.blocked) < count

    def _victim(self) -> str | None:
        unused = (one for one, users in self.placed.items() if not users)
        return next((one for one in unused if one in self.closing or not self.lined[one]), None)

    def close_one(self) -> None:
        """Let the least recently used place take no more requests."""
        used_last = next((one for one in self.placed if one not in self.closing), None)
        if used_last is not None:
            self.closing.add(used_last)
