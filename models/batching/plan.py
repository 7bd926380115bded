"""Choose the items of the next step: requests in turn, within a token budget.

Pure: no clock, no thread, no log. `models.batching.worker` runs what this decides.

 1. The request at the head of the ring always gets an item in, even one that is larger than the budget by itself.
 2. Then each request in ring order gives one item a round, until no round adds any.
 3. An item joins while items x longest stays within `max_tokens`, and while no more than a stated part is padding;
    for an engine that runs without padding, while the sum stays within `max_tokens`.
    A request whose next item may not join is passed over for this batch.
 4. The head goes to the end of the ring.

So a request that has n others before it gets an item within n + 1 batches, and one with a single item (a search
query) is done then, whatever the others hold: a huge request has one turn at a time like everybody. Where the next
batch is prepared while one runs, that is one batch later.
Within a request the longest item goes first: neighbours are alike in length, and little is padding.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

P = TypeVar("P")

PADDED = 1.5
"""Padded tokens over real ones that a batch of requests may reach. A bound on waste, not a measured optimum."""
SMALL = 512
"""Batches of up to this many padded tokens may be padding to any part: the fixed cost of a step is larger."""


@dataclass(frozen=True, slots=True)
class Item(Generic[P]):
    """A text or pair. `tokens` is at least 1."""

    index: int
    """Place in its request."""
    tokens: int
    payload: P


@dataclass(frozen=True, slots=True)
class BatchEntry(Generic[P]):
    key: int
    """The request's key."""
    item: Item[P]


class RequestRing(Generic[P]):
    """Waiting items by request. `padded`: a batch's items all cost as the longest."""

    def __init__(self, padded: bool = True) -> None:
        self.padded = padded
        self._lines: OrderedDict[int, deque[Item[P]]] = OrderedDict()
        self.tokens = self.items = 0
        """Tokens and number of all waiting items."""

    def __len__(self) -> int:
        """Number of requests that have items waiting."""
        return len(self._lines)

    def add(self, key: int, items: Iterable[Item[P]]) -> None:
        """Put a request at the end of the ring. One without items is forgotten."""
        if key in self._lines:
            raise KeyError(key)
        line = deque(sorted(items, key=lambda item: -item.tokens))
        if line:
            self._lines[key] = line
            self.tokens += sum(item.tokens for item in line)
            self.items += len(line)

    def drop(self, key: int) -> int:
        """Forget a request; the number of items that were still waiting."""
        line = self._lines.pop(key, ())
        self.tokens -= sum(item.tokens for item in line)
        self.items -= len(line)
        return len(line)

    def take(self, max_tokens: int, max_items: int) -> list[BatchEntry[P]]:
        """The next batch, longest item first; empty exactly when nothing waits."""
        chosen: list[BatchEntry[P]] = []
        longest = real = 0
        head = next(iter(self._lines), None)
        candidates = list(self._lines)
        while candidates and len(chosen) < max_items:
            remaining = []
            for key in candidates[: max_items - len(chosen)]:
                line = self._lines[key]
                tokens = line[0].tokens
                padded = max(longest, tokens) * (len(chosen) + 1) if self.padded else real + tokens
                if chosen and not _joins(padded, real + tokens, max_tokens):
                    continue
                longest, real = max(longest, tokens), real + tokens
                chosen.append(BatchEntry(key, line.popleft()))
                if line:
                    remaining.append(key)
            candidates = remaining
        for key in {picked.key for picked in chosen}:
            if not self._lines[key]:
                del self._lines[key]
        self.tokens -= real
        self.items -= len(chosen)
        if head is not None and head in self._lines:
            self._lines.move_to_end(head)
        return sorted(chosen, key=lambda picked: -picked.item.tokens)


def _joins(padded: int, real: int, max_tokens: int) -> bool:
    return padded <= max_tokens and (padded <= SMALL or padded <= PADDED * real)
