"""The blocks in which servers take parts of a limit."""

from hypothesis import given
from hypothesis import strategies as st

from fleet.blocks import IDLE_SECONDS, SHARES, LimitBlock, block_size


def test_a_block_is_an_eighth_of_a_share_and_smaller_at_the_end() -> None:
    assert block_size(8000, 0, 1, 10) == 100
    assert block_size(8000, 7000, 1, 10) == 50
    assert block_size(8000, 7990, 1, 10) == 1
    assert block_size(8000, 8000, 1, 10) == 0
    assert block_size(8000, 0, 700, 10) == 700, "as much as a request needs"
    assert block_size(8000, 7900, 700, 10) == 100, "no more than is left"


@given(st.integers(0, 10**15), st.integers(1, 10**6), st.integers(1, 1000), st.lists(st.integers(0, 999), max_size=200))
def test_blocks_never_exceed_a_limit(capacity: int, reservation: int, nodes: int, takers: list[int]) -> None:
    granted, unused = 0, 0
    for _ in takers:
        block = block_size(capacity, granted, reservation, nodes)
        assert 0 <= block <= capacity - granted
        assert block == capacity - granted or block >= reservation
        granted += block
        unused = max(unused, block - reservation)
    assert granted <= capacity
    assert unused * nodes <= capacity / SHARES, "the most that is unused on all nodes"


def test_a_block_can_be_used_until_its_window_ends() -> None:
    block = LimitBlock()
    assert block.missing(10, 0.0) == 10
    block.add(10, 60, 30.0, 0.0)
    assert (block.missing(4, 0.0), block.missing(14, 0.0)) == (0, 4)
    block.charge(4, 0.0)
    assert (block.missing(7, 29.9), block.left) == (1, 6)
    assert block.missing(6, 30.0) == 6
    assert block.left == 0


def test_usage_before_the_first_block_is_taken_from_it() -> None:
    block = LimitBlock()
    block.charge(3, 0.0)
    block.add(10, 60, 30.0, 0.0)
    assert block.left == 7
    block.charge(9, 1.0)
    assert block.missing(1, 1.0) == 3
    block.add(5, 60, 29.0, 1.0)
    assert block.left == 3, "usage beyond a block is taken from the window's next one"
    block.add(10, 120, 60.0, 30.0)
    assert block.left == 10, "the rest of an ended window is lost"


def test_a_reservation_is_returned_only_in_its_own_window() -> None:
    block = LimitBlock()
    block.add(10, 60, 30.0, 0.0)
    block.charge(6, 0.0)
    block.release(2, 60)
    assert block.left == 6
    block.release(-1, 60)
    assert block.left == 5
    block.add(10, 120, 60.0, 30.0)
    block.release(4, 60)
    assert block.left == 10


def test_an_idle_block_is_given_back_once() -> None:
    block = LimitBlock()
    block.add(10, 60, 60.0, 0.0)
    block.charge(4, 5.0)
    assert block.idle(5.0 + IDLE_SECONDS - 0.1) == 0
    assert block.idle(5.0 + IDLE_SECONDS) == 6
    assert (block.idle(20.0), block.left) == (0, 0)
    block.add(10, 60, 40.0, 20.0)
    assert (block.surplus(7), block.surplus(7), block.left) == (3, 0, 7)
    block.charge(9, 20.0)
    assert (block.surplus(0), block.left) == (0, -2)
