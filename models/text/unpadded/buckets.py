"""The choice between captured graphs, and of the shapes that get one: pure.

1. A step takes the smallest bucket with room for its tokens, its inputs and its longest input.
2. Padding is an input of its own behind the others, or several where it is longer than a bucket's longest.
3. A step without a bucket, and one whose bucket has no graph, runs as without graphs.
4. A bucket gets a graph at its USES-th step, while the bytes of all graphs with this one stay within the bound.
   One that failed is not tried again.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

TOKENS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Tokens of the buckets: at most half of a step is padding, a third from 256 on. Larger steps keep a card busy for
longer than their launches take."""
LONGEST = 512
"""Tokens of an input, at most: attention starts blocks for this many of each input, however long it is."""
LEAST_INPUT = 3
"""Tokens of a short input: a bucket has room for inputs that have as many."""
USES = 3
MOST_BYTES = 512 << 20


class Bucket(NamedTuple):
    """The shape of a captured step."""

    tokens: int
    inputs: int
    """Inputs, those of the padding included."""
    longest: int


def buckets_of(max_tokens: int, max_inputs: int, context: int) -> tuple[Bucket, ...]:
    """Buckets for steps of at most so many tokens and inputs, smallest first. context: tokens of the longest input."""
    buckets = []
    before = 0
    for tokens in (tokens for tokens in TOKENS if tokens <= max_tokens):
        longest = min(tokens, LONGEST, context)
        padding = -(-(tokens - before) // longest)
        buckets.append(Bucket(tokens, min(tokens // LEAST_INPUT, max_inputs) + padding, longest))
        before = tokens
    return tuple(buckets)


def padded(lengths: Sequence[int], bucket: Bucket) -> list[int]:
    """Lengths of a bucket's inputs: those given, the padding's, and empty ones."""
    padding = bucket.tokens - sum(lengths)
    own = [min(bucket.longest, padding - start) for start in range(0, padding, bucket.longest)]
    return [*lengths, *own, *[0] * (bucket.inputs - len(lengths) - len(own))]


def _fits(lengths: Sequence[int], bucket: Bucket) -> bool:
    padding = bucket.tokens - sum(lengths)
    inputs = len(lengths) + -(-padding // bucket.longest)
    return padding >= 0 and inputs <= bucket.inputs and max(lengths) <= bucket.longest


class CapturePolicy:
    """Decides which sizes have a graph, and which get one.

    Args:
        buckets: smallest first.
        expected_bytes: of a bucket's graph, before it is there.
    """

    def __init__(self, buckets: Sequence[Bucket], expected_bytes: Callable[[Bucket], int]) -> None:
        self._buckets, self._expected = tuple(buckets), expected_bytes
        self._uses: Counter[Bucket] = Counter()
        self._failed: set[Bucket] = set()
        self._bytes: dict[Bucket, int] = {}

    @property
    def bytes_left(self) -> int:
        """Bytes that graphs may still take."""
        return max(0, MOST_BYTES - sum(self._bytes.values()))

    def bucket(self, lengths: Sequence[int]) -> Bucket | None:
        """The bucket of a step; lengths: of its inputs, at least one. Any thread may call."""
        return next((bucket for bucket in self._buckets if _fits(lengths, bucket)), None)

    def wants(self, bucket: Bucket) -> bool:
        """Count a step of a bucket without a graph; returns whether it gets one now."""
        self._uses[bucket] += 1
        return self._uses[bucket] >= USES and bucket not in self._failed and self._expected(bucket) <= self.bytes_left

    def add(self, bucket: Bucket, size: int) -> None:
        """A bucket has a graph of `size` bytes."""
        self._bytes[bucket] = size

    def fail(self, bucket: Bucket) -> None:
        """A bucket gets no graph."""
        self._failed.add(bucket)

    def clear(self) -> None:
        """Drop the graphs of all buckets."""
        self._bytes.clear()
