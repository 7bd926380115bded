"""Requests that wait, by rank, grouped by the adapter that they need. No policy here."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heapreplace
from operator import attrgetter

from runtime.scheduling.rank import Rank
from tenants.classes import ServiceClass


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """`digest` None: the base itself. `since`: clock seconds."""

    id: str
    digest: str | None
    since: float
    rank: Rank


_rank = attrgetter("rank")


class Waiting:
    """One list in order of rank per digest. Adding, removing and promoting take O(log waiting), besides moving
    the list's pointers."""

    def __init__(self) -> None:
        self._by_id: dict[str, QueuedRequest] = {}
        self._queues: dict[str | None, list[QueuedRequest]] = {}
        self._by_age: OrderedDict[str, None] = OrderedDict()
        """Those that are not promoted, the oldest first."""
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._by_id

    def add(
        self,
        request_id: str,
        digest: str | None,
        now: float,
        service_class: ServiceClass = ServiceClass.INTERACTIVE,
        share: float = 0.0,
    ) -> None:
        """Raises ValueError when the id waits already."""
        if request_id in self._by_id:
            raise ValueError(f"request {request_id} waits already")
        self._arrivals += 1
        self._put(QueuedRequest(request_id, digest, now, Rank(service_class, share, self._arrivals)))
        self._by_age[request_id] = None

    def remove(self, request_id: str) -> QueuedRequest | None:
        request = self._by_id.pop(request_id, None)
        if request is not None:
            queue = self._queues[request.digest]
            del queue[bisect_left(queue, request.rank, key=_rank)]
            if not queue:
                del self._queues[request.digest]
            self._by_age.pop(request_id, None)
        return request

    def remove_all(self, digest: str) -> list[str]:
        """Take out everything that waits for a digest; the ids in order of rank."""
        ids = [request.id for request in self._queues.get(digest, ())]
        for request_id in ids:
            self.remove(request_id)
        return ids

    def promote_oldest(self) -> bool:
        """Give the oldest request that is not promoted yet a rank before all others. False: there is none."""
        oldest = next(iter(self._by_age), None)
        if oldest is None:
            return False
        request = self.remove(oldest)
        assert request is not None
        self._put(replace(request, rank=request.rank.promoted()))
        return True

    def count(self, digest: str | None) -> int:
        return len(self._queues.get(digest, ()))

    def head(self, digest: str | None) -> QueuedRequest | None:
        """The first request of a digest."""
        queue = self._queues.get(digest)
        return queue[0] if queue else None

    def heads(self) -> list[QueuedRequest]:
        """The first request of each adapter (not of the base), in order of rank."""
        return sorted((queue[0] for digest, queue in self._queues.items() if digest is not None), key=_rank)

    def take(self, digests: Iterable[str | None], limit: int) -> list[QueuedRequest]:
        """Take out up to `limit` requests of these digests, in order of rank. O(digests + limit · log digests)."""
        heap = [(head.rank, head) for head in map(self.head, digests) if head is not None]
        heapify(heap)
        taken: list[QueuedRequest] = []
        while heap and len(taken) < limit:
            request = heap[0][1]
            self.remove(request.id)
            taken.append(request)
            following = self.head(request.digest)
            if following is None:
                heappop(heap)
            else:
                heapreplace(heap, (following.rank, following))
        return taken

    def _put(self, request: QueuedRequest) -> None:
        self._by_id[request.id] = request
        insort(self._queues.setdefault(request.digest, []), request, key=_rank)
