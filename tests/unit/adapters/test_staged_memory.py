"""Memory of an adapter that left is used again, and never while a tensor lies in it."""

import torch

from adapters.staged_memory import LARGE, StagedMemory


def test_a_piece_is_given_out_again_only_when_no_tensor_lies_in_it() -> None:
    memory = StagedMemory()
    first = memory.take(LARGE)[8:24].view(torch.int64)
    first[:] = 7
    second = memory.take(LARGE)
    second[:] = 0
    assert first.tolist() == [7, 7]
    where = first.data_ptr() - 8
    corner = first[1:]  # a view of a view holds on to all of it
    del first
    assert memory.take(LARGE).data_ptr() != where
    assert corner.tolist() == [7]
    del corner
    again = memory.take(LARGE)
    assert again.data_ptr() == where
    assert again.numel() == LARGE


def test_at_most_one_idle_piece_is_kept_and_none_that_does_not_fit() -> None:
    memory = StagedMemory()
    staged = [memory.take(LARGE) for _ in range(4)]
    assert memory.held == 4 * LARGE
    staged.pop()
    memory.trim()
    assert memory.held == 4 * LARGE, "three in use and one for the next"
    staged.append(memory.take(LARGE))
    assert memory.held == 4 * LARGE
    staged.clear()
    memory.trim()
    assert memory.held == LARGE
    large = memory.take(3 * LARGE)
    assert memory.held == 3 * LARGE, "too small for it, so it went before the other was taken"
    del large
    small = memory.take(LARGE)
    assert memory.held == LARGE, "a small adapter does not hold on to three times its size"
    assert small.numel() == LARGE
    del small
    memory.trim(keep=0)
    assert memory.held == 0


def test_small_adapters_are_the_allocators() -> None:
    memory = StagedMemory()
    assert memory.take(LARGE - 1).numel() == LARGE - 1
    assert memory.take(0).numel() == 0
    assert memory.held == 0
