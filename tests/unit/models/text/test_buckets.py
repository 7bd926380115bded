"""Which steps replay a graph: the smallest bucket with room, padding of its own, a bound on memory."""

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
def test_a_bucket_holds_its_step_and_padding_of_its_own(
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
def test_every_step_of_ordinary_inputs_has_a_bucket_that_is_not_much_larger(lengths: list[int]) -> None:
    bucket, total = policy().bucket(lengths), sum(lengths)
    if total > TOKENS[-1]:
        assert bucket is None
    elif bucket is not None:
        assert bucket.tokens <= max(TOKENS[0], 3 * total // 2 + 1, 2 * max(lengths))
    else:
        raise AssertionError(f"{total} tokens of {len(lengths)} inputs have no bucket")


def test_what_is_larger_than_all_buckets_has_none() -> None:
    given = policy(context=8192)
    assert given.bucket([LONGEST]) == Bucket(LONGEST, LONGEST // LEAST_INPUT + 1, LONGEST)
    assert given.bucket([LONGEST + 1]) is None, "a long input keeps a card busy by itself"
    assert given.bucket([1] * 300) is None, "more inputs than a step has"
    assert policy(max_tokens=16).bucket([4]) is None


def test_a_bucket_gets_its_graph_at_the_third_step() -> None:
    given = policy()
    small, large = given.bucket([8]), given.bucket([40])
    assert small is not None
    assert large is not None
    assert [given.wants(small) for _ in range(USES)] == [False] * (USES - 1) + [True]
    given.add(small, 100)
    assert not given.wants(large), "each is counted by itself"
    given.fail(large)
    assert not any(given.wants(large) for _ in range(2 * USES)), "one that failed is not tried again"


def test_graphs_stay_within_their_memory() -> None:
    given = policy(each=MOST_BYTES // 100)
    small, large = given.bucket([8]), given.bucket([80])
    assert small is not None
    assert large is not None
    for bucket in (small, large):
        for _ in range(USES - 1):
            given.wants(bucket)
    assert given.wants(small)
    given.add(small, MOST_BYTES // 2)
    assert given.bytes_left == MOST_BYTES // 2
    assert not given.wants(large), "96 hundredths are expected, and a half is left"
    given.clear()
    assert given.bytes_left == MOST_BYTES
    assert given.wants(large), "its steps are still counted"


@pytest.mark.parametrize("size", [MOST_BYTES, 2 * MOST_BYTES])
def test_one_that_took_more_than_was_expected_is_the_last(size: int) -> None:
    given = policy()
    small, large = given.bucket([8]), given.bucket([80])
    assert small is not None
    assert large is not None
    given.add(small, size)
    assert given.bytes_left == 0
    assert not any(given.wants(large) for _ in range(2 * USES))
