"""Choose captured graphs for steps, and which shapes get one. Pure.

1. A step uses the smallest bucket with room for its tokens, its inputs and its longest input.
2. Padding is an extra input after the others, or several if it is longer than the bucket's longest input.
3. A step without a bucket, or whose bucket has no graph, runs without a graph.
4. A bucket gets a graph at its USES-th step, if the bytes of all graphs then stay within the bound. After a failure it
   is not tried again.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

TOKENS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Tokens of the buckets. At most half of a step is padding, or a third from 256 tokens on. Larger steps compute for
longer than their kernel launches take."""
LONGEST = 512
"""Most tokens of an input. Attention starts blocks for this many for each input, however short."""
LEAST_INPUT = 3
"""Tokens of the shortest inputs for which a bucket has room if all are that short."""
USES = 3
MOST_BYTES = 512 << 20


class Bucket(NamedTuple):
    """The shape of a captured step."""

    tokens: int
    inputs: int
    """Inputs, including those of the padding."""
    longest: int


def buckets_of(max_tokens: int, max_inputs: int, context: int) -> tuple[Bucket, ...]:
    """Return buckets for steps up to a size, smallest first. context: tokens of the longest input."""
    buckets = []
    before = 0
    for tokens in (tokens for tokens in TOKENS if tokens <= max_tokens):
        longest = min(tokens, LONGEST, context)
        padding = -(-(tokens - before) // longest)
        buckets.append(Bucket(tokens, min(tokens // LEAST_INPUT, max_inputs) + padding, longest))
        before = tokens
    return tuple(buckets)


def padded(lengths: Sequence[int], bucket: Bucket) -> list[int]:
    """Return the lengths of a bucket's inputs: given, padding, and empty ones."""
    padding = bucket.tokens - sum(lengths)
    own = [min(bucket.longest, padding - start) for start in range(0, padding, bucket.longest)]
    return [*lengths, *own, *[0] * (bucket.inputs - len(lengths) - len(own))]


def _fits(lengths: Sequence[int], bucket: Bucket) -> bool:
    padding = bucket.tokens - sum(lengths)
    inputs = len(lengths) + -(-padding // bucket.longest)
    return padding >= 0 and inputs <= bucket.inputs and max(lengths) <= bucket.longest


class CapturePolicy:
    """Decides which buckets have a graph, and which get one.

    Args:
        buckets: smallest first.
        expected_bytes: estimate for a bucket's graph.
    """

    def __init__(self, buckets: Sequence[Bucket], expected_bytes: Callable[[Bucket], int]) -> None:
        self._buckets, self._expected = tuple(buckets), expected_bytes
        self._uses: Counter[Bucket] = Counter()
        self._failed: set[Bucket] = set()
        self._bytes: dict[Bucket, int] = {}

    @property
    def bytes_left(self) -> int:
        """Bytes that graphs may still use."""
        return max(0, MOST_BYTES - sum(self._bytes.values()))

    def bucket(self, lengths: Sequence[int]) -> Bucket | None:
        """Return a step's bucket. lengths: of its inputs, at least one. Thread-safe."""
        return next((bucket for bucket in self._buckets if _fits(lengths, bucket)), None)

    def wants(self, bucket: Bucket) -> bool:
        """Count a step of a bucket without a graph. Returns whether it should get one now."""
        self._uses[bucket] += 1
        return self._uses[bucket] >= USES and bucket not in self._failed and self._expected(bucket) <= self.bytes_left

    def add(self, bucket: Bucket, size: int) -> None:
        """Note that a bucket has a graph of `size` bytes."""
        self._bytes[bucket] = size

    def fail(self, bucket: Bucket) -> None:
        """Note that a bucket cannot have a graph."""
        self._failed.add(bucket)

    def clear(self) -> None:
        """Note that all graphs were dropped."""
        self._bytes.clear()
