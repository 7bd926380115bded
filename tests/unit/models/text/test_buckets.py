"""The choice of graphs to replay: the smallest bucket with room, its padding, and a bound on memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.text.unpadded.buckets import (
    LEAST_INPUT,
    LONGEST,
    MOST_BYTES,
    TOKENS,
    USES,
    Bucket,
    CapturePolicy,
    buckets_of,
    padded,
)

LENGTHS = st.lists(st.integers(1, 700), min_size=1, max_size=300)


def policy(max_tokens: int = 32768, items: int = 256, context: int = 512, each: int = 1) -> CapturePolicy:
    return CapturePolicy(buckets_of(max_tokens, items, context), lambda bucket: bucket.tokens * each)


@given(LENGTHS, st.integers(16, 9000), st.integers(1, 300), st.integers(4, 8192))
def test_a_bucket_has_room_for_its_step_and_padding(
    lengths: list[int], max_tokens: int, items: int, context: int
) -> None:
    bucket = policy(max_tokens, items, context).bucket(lengths)
    if bucket is None:
        return
    assert bucket.tokens <= max_tokens
    found = padded(lengths, bucket)
    assert found[: len(lengths)] == lengths
    assert len(found) == bucket.inputs
    assert sum(found) == bucket.tokens
    assert max(found) <= bucket.longest <= min(LONGEST, context)
    assert min(found) >= 0


@given(st.lists(st.integers(LEAST_INPUT, LONGEST), min_size=1, max_size=256))
def test_steps_of_ordinary_inputs_have_a_bucket_not_much_larger(lengths: list[int]) -> None:
    bucket, total = policy().bucket(lengths), sum(lengths)
    if total > TOKENS[-1]:
        assert bucket is None
    elif bucket is not None:
        assert bucket.tokens <= max(TOKENS[0], 3 * total // 2 + 1, 2 * max(lengths))
    else:
        raise AssertionError(f"{total} tokens of {len(lengths)} inputs have no bucket")


def test_steps_larger_than_all_buckets_have_none() -> None:
    buckets = policy(context=8192)
    assert buckets.bucket([LONGEST]) == Bucket(LONGEST, LONGEST // LEAST_INPUT + 1, LONGEST)
    assert buckets.bucket([LONGEST + 1]) is None, "a long input uses the whole GPU without a graph"
    assert buckets.bucket([1] * 300) is None, "more inputs than a step may have"
    assert policy(max_tokens=16).bucket([4]) is None


def test_a_bucket_gets_its_graph_at_the_third_step() -> None:
    buckets = policy()
    small, large = buckets.bucket([8]), buckets.bucket([40])
    assert small is not None
    assert large is not None
    assert [buckets.wants(small) for _ in range(USES)] == [False] * (USES - 1) + [True]
    buckets.add(small, 100)
    assert not buckets.wants(large), "each bucket has a count of its own"
    buckets.fail(large)
    assert not any(buckets.wants(large) for _ in range(2 * USES)), "a failed capture is not repeated"


def test_graphs_stay_within_their_memory() -> None:
    buckets = policy(each=MOST_BYTES // 100)
    small, large = buckets.bucket([8]), buckets.bucket([80])
    assert small is not None
    assert large is not None
    for bucket in (small, large):
        for _ in range(USES - 1):
            buckets.wants(bucket)
    assert buckets.wants(small)
    buckets.add(small, MOST_BYTES // 2)
    assert buckets.bytes_left == MOST_BYTES // 2
    assert not buckets.wants(large), "it needs 96 hundredths, and half is left"
    buckets.clear()
    assert buckets.bytes_left == MOST_BYTES
    assert buckets.wants(large), "the counts of steps are kept"


@pytest.mark.parametrize("size", [MOST_BYTES, 2 * MOST_BYTES])
def test_a_graph_larger_than_expected_is_the_last(size: int) -> None:
    buckets = policy()
    small, large = buckets.bucket([8]), buckets.bucket([80])
    assert small is not None
    assert large is not None
    buckets.add(small, size)
    assert buckets.bytes_left == 0
    assert not any(buckets.wants(large) for _ in range(2 * USES))
