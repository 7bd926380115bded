"""An engine of a simulated node: its queue, and adapter places as in `runtime.scheduling.placement`.

| an adapter  | entered when                                          | its requests                            |
|-------------|-------------------------------------------------------|-----------------------------------------|
| is away     | it lost its place to another one                      | the first one has it staged             |
| is incoming | a request arrived; it is staged, then needs a place   | wait; others go first                   |
| has a place | a place was free, or held an unused, unneeded adapter | start, and wait until it has moved      |
| is closing  | another adapter has waited CLOSE_SECONDS for a place  | wait; the place is given to another one |
|             |                                                       | after the last running request          |
"""

from collections import Counter, OrderedDict, deque
from typing import Literal

from cachetools import LRUCache

from fleet.simulation.traffic import SimRequest

CLOSE_SECONDS = 0.5
PREFIXES = 400
"""Beginnings of prompts in an engine's prefix cache."""
Phase = Literal["loading", "ready", "draining"]


class SimReplica:
    """An engine, in whose queue teams take turns."""

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
        """Running requests by placed adapter, least recently used first."""
        self.settles: dict[str, float] = {}
        """Time at which an adapter has moved into its place."""
        self.incoming: set[str] = set()
        self.blocked: list[str] = []
        """Staged adapters that wait for a place."""
        self.closing: set[str] = set()
        self.prefixes: LRUCache[int, None] = LRUCache(PREFIXES)
        self.seconds = 0.0

    # --- requests ---------------------------------------------------------------------------------------------------
    def enqueue(self, request: SimRequest) -> None:
        self.queues.setdefault(request.team, deque()).append(request)
        self.waiting += 1
        if request.digest is not None:
            self.lined[request.digest] += 1

    def next(self) -> SimRequest | None:
        """Take the next request that can start, by turns of teams."""
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
        """Remove and return all waiting requests."""
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
        """Count a request that starts (1) or ends (-1)."""
        self.placed[digest] += more
        self.placed.move_to_end(digest)

    def fill(self, settles: float) -> bool:
        """Give places to waiting adapters. Returns whether any got one."""
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
        unused = (digest for digest, users in self.placed.items() if not users)
        return next((digest for digest in unused if digest in self.closing or not self.lined[digest]), None)

    def close_one(self) -> None:
        """Close the least recently used place to further requests."""
        oldest = next((digest for digest in self.placed if digest not in self.closing), None)
        if oldest is not None:
            self.closing.add(oldest)
