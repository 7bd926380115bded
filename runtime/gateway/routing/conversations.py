"""Which target a conversation has: it stays there, so that the prefix cache is used."""

import hashlib
import time
from collections.abc import Callable

from cachetools import TLRUCache

MAX_CONVERSATIONS = 100_000


class Conversations:
    """Bounded; the least recently used ones are forgotten first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._held: TLRUCache[bytes, tuple[str, float]] = TLRUCache(
            MAX_CONVERSATIONS, ttu=lambda _key, held, now: now + held[1], timer=clock
        )

    def held(self, key: bytes | None) -> str | None:
        found = None if key is None else self._held.get(key)
        return None if found is None else found[0]

    def hold(self, key: bytes | None, target: str, seconds: float) -> None:
        if key is not None and seconds > 0:
            self._held[key] = (target, seconds)


def key_of(*parts: str) -> bytes:
    """A digest: what was said is not kept."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part.encode(errors="replace")
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.digest()
