"""Requests that wait, in arrival order, grouped by the adapter that they need. No policy here."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace


@dataclass(frozen=True, slots=True)
class Request:
    """`digest` None: the base itself. `since`: clock seconds. `number`: counts arrivals, so smaller is older."""

    id: str
    digest: str | None
    since: float
    number: int


class Waiting:
    """One first-in-first-out queue per digest; every operation but `heads` and `take` is O(1)."""

    def __init__(self) -> None:
        self._by_id: dict[str, Request] = {}
        self._queues: dict[str | None, OrderedDict[str, Request]] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._by_id

    def add(self, request_id: str, digest: str | None, now: float) -> Request:
        """Raises ValueError when the id waits already."""
        if request_id in self._by_id:
            raise ValueError(f"request {request_id} waits already")
        self._arrivals += 1
        request = Request(request_id, digest, now, self._arrivals)
        self._by_id[request_id] = request
        self._queues.setdefault(digest, OrderedDict())[request_id] = request
        return request

    def remove(self, request_id: str) -> Request | None:
        request = self._by_id.pop(request_id, None)
        if request is not None:
            queue = self._queues[request.digest]
            del queue[request_id]
            if not queue:
                del self._queues[request.digest]
        return request

    def remove_all(self, digest: str) -> list[str]:
        """Take out everything that waits for a digest; the ids in arrival order."""
        ids = list(self._queues.get(digest, ()))
        for request_id in ids:
            self.remove(request_id)
        return ids

    def count(self, digest: str | None) -> int:
        return len(self._queues.get(digest, ()))

    def head(self, digest: str | None) -> Request | None:
        """The oldest request of a digest."""
        queue = self._queues.get(digest)
        return next(iter(queue.values())) if queue else None

    def heads(self) -> list[Request]:
        """The oldest request of each adapter (not of the base), oldest first."""
        heads = [next(iter(queue.values())) for digest, queue in self._queues.items() if digest is not None]
        return sorted(heads, key=lambda request: request.number)

    def take(self, digests: Iterable[str | None], limit: int) -> list[Request]:
        """Take out up to `limit` requests of these digests, in arrival order. O(digests + limit · log digests)."""
        heap = [(head.number, head) for head in map(self.head, digests) if head is not None]
        heapify(heap)
        taken: list[Request] = []
        while heap and len(taken) < limit:
            request = heap[0][1]
            self.remove(request.id)
            taken.append(request)
            following = self.head(request.digest)
            if following is None:
                heappop(heap)
            else:
                heapreplace(heap, (following.number, following))
        return taken
