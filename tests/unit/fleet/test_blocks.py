"""How much of a limit a server takes at once."""

from hypothesis import given
from hypothesis import strategies as st

from fleet.blocks import SHARES, block_size


def test_a_block_is_an_eighth_of_a_share_and_smaller_at_the_end() -> None:
    assert block_size(8000, 0, 1, 10) == 100
    assert block_size(8000, 7000, 1, 10) == 50
    assert block_size(8000, 7990, 1, 10) == 1
    assert block_size(8000, 8000, 1, 10) == 0
    assert block_size(8000, 0, 700, 10) == 700, "a request needs as much"
    assert block_size(8000, 7900, 700, 10) == 100, "no more than there is"


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
    assert unused * nodes <= capacity / SHARES, "what may lie unused on all nodes"
