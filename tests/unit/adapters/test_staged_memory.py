"""Memory of an adapter that left is used again, and never while a tensor lies in it."""

from typing import Any

import torch

from adapters.staged_memory import LARGE, SPARE, STEP, StagedMemory


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


def test_some_idle_pieces_are_kept_and_none_that_does_not_fit() -> None:
    memory = StagedMemory()
    staged = [memory.take(LARGE) for _ in range(SPARE + 3)]
    assert memory.held == (SPARE + 3) * LARGE
    staged.pop()
    memory.trim()
    assert memory.held == (SPARE + 3) * LARGE, "all but one in use, and one for the next"
    staged.append(memory.take(LARGE))
    assert memory.held == (SPARE + 3) * LARGE
    staged.clear()
    memory.trim()
    assert memory.held == SPARE * LARGE
    large = memory.take(3 * LARGE)
    assert memory.held == 3 * LARGE, "too small for it, so they went before the other was taken"
    del large
    small = memory.take(LARGE)
    assert memory.held == LARGE, "a small adapter does not hold on to three times its size"
    assert small.numel() == LARGE
    del small
    memory.trim(keep=0)
    assert memory.held == 0


def never() -> bool:
    return False


def test_pieces_are_made_ready_for_the_next_adapters() -> None:
    memory, size = StagedMemory(), STEP + LARGE
    memory.prepare(9, never)
    assert memory.held == 0, "of a size that nobody knows yet"
    first = memory.take(LARGE)
    memory.prepare(2, never)
    assert memory.held == 2 * LARGE
    del first
    staged = [memory.take(size)]
    memory.prepare(9, never)
    assert memory.held == size, "the next one may be of either size"
    staged.append(memory.take(size))
    memory.prepare(4, never)
    assert memory.held == 4 * size, "as many as there may be"
    memory.prepare(99, never)
    assert memory.held == (2 + SPARE) * size
    ready = [memory.take(size) for _ in range(SPARE)]
    assert memory.held == (2 + SPARE) * size
    assert not any(bool(piece.any()) for piece in ready), "zeros: their pages are there"


def test_nothing_is_made_ready_for_an_engine_that_sleeps() -> None:
    memory = StagedMemory()
    memory.take(LARGE)
    memory.trim(keep=0)
    memory.prepare(9, never)
    assert memory.held == 0
    memory.take(LARGE)
    memory.prepare(9, never)
    assert memory.held == SPARE * LARGE


def test_other_work_comes_first() -> None:
    """What was left undone is done the next time; a piece that is half ready can be used, and is the last choice."""
    memory, size = StagedMemory(), 4 * STEP
    staged = [memory.take(size), memory.take(size)]
    asked = iter([False, False, True])
    memory.prepare(9, lambda: next(asked))
    (half,) = idle(memory)
    assert half.ready == 2 * STEP
    staged.pop()
    assert memory.take(size).numel() == size
    assert half.ready == 2 * STEP, "one that is ready was there"
    memory.prepare(3, never)
    assert half.ready == size


def idle(memory: StagedMemory) -> list[Any]:
    return [piece for piece in memory._pieces if piece.idle]


def test_small_adapters_are_the_allocators() -> None:
    memory = StagedMemory()
    assert memory.take(LARGE - 1).numel() == LARGE - 1
    assert memory.take(0).numel() == 0
    assert memory.held == 0
