"""The host tier of one engine: which adapters are staged or being staged, and which one leaves for another."""

from collections.abc import Collection

from cachetools import LRUCache

from runtime.scheduling.rank import Rank


class HostTier:
    """Rules 3 and 4 of `runtime.scheduling.placement`.

    The cache knows who was used when. Who leaves is decided here, since not all may: it never gets full by itself.
    """

    def __init__(self, capacity: int, staging_at_once: int) -> None:
        self.capacity, self.staging_at_once = capacity, staging_at_once
        self._staged = LRUCache[str, None](capacity)
        self._staging: set[str] = set()

    def __len__(self) -> int:
        return len(self._staged)

    def __contains__(self, digest: object) -> bool:
        """Staged already."""
        return digest in self._staged

    def staging(self, digest: str) -> bool:
        return digest in self._staging

    def finish(self, digest: str) -> bool:
        """A staging ended well. False: none was begun."""
        if digest not in self._staging:
            return False
        self._staging.remove(digest)
        self._staged[digest] = None
        return True

    def remove(self, digest: str) -> None:
        self._staging.discard(digest)
        self._staged.pop(digest, None)

    def used(self, digest: str) -> None:
        self._staged[digest]  # looked up, and so the one used last

    def clear(self) -> None:
        self._staged.clear()
        self._staging.clear()

    def begin(
        self, needed: dict[str, Rank], pinned: Collection[str], in_place: Collection[str]
    ) -> tuple[list[str], list[str]]:
        """What to stage now, and what to drop for it.

        Args:
            wanted: digest to the rank of its first blocked request, in order of rank.
            pinned: staged as well when there is room or something idle.
            in_place: digests whose host copy must stay.
        """
        stage: list[str] = []
        drop: list[str] = []
        for digest in [*needed, *(d for d in pinned if d not in needed)]:
            if digest in self._staged or digest in self._staging:
                continue
            if len(self._staging) >= self.staging_at_once:
                break
            if len(self._staged) + len(self._staging) >= self.capacity:
                victim = self._victim(needed, pinned, in_place, needed.get(digest))
                if victim is None:
                    break
                del self._staged[victim]
                drop.append(victim)
            self._staging.add(digest)
            stage.append(digest)
        return stage, drop

    def _victim(
        self, needed: dict[str, Rank], pinned: Collection[str], in_place: Collection[str], rank: Rank | None
    ) -> str | None:
        """For a pinned adapter that no request wants (`rank` None) only idle ones leave."""
        movable = [digest for digest in self._by_use() if digest not in in_place]
        idle = next((d for d in movable if d not in needed and d not in pinned), None)
        if idle is not None or rank is None:
            return idle
        pinned_one = next((d for d in movable if d not in needed), None)
        if pinned_one is not None:
            return pinned_one
        later = [d for d in movable if needed[d] > rank]
        return max(later, key=lambda d: needed[d], default=None)

    def _by_use(self) -> list[str]:
        """The staged ones, the least recently used first. The cache tells that only by giving them up."""
        order = [self._staged.popitem() for _ in range(len(self._staged))]
        self._staged.update(order)
        return [digest for digest, _ in order]
