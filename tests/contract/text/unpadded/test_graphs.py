"""Steps as graphs, on a CPU, where the function itself runs on the graph's fixed memory."""

import random
from collections.abc import Callable

import pytest
import torch

from benchmarks.gpu import encoders
from models.text.tokens import Ids
from models.text.unpadded.buckets import USES, Bucket, buckets_of
from models.text.unpadded.graphs import CapturedSteps, Replay
from models.text.unpadded.network import UnpaddedNetwork, without_padding
from tests.contract.text.unpadded.networks import SameFunction, network

pytestmark = pytest.mark.real
BUCKETS = buckets_of(128, 32, 64)


def captured(name: str, capture: Callable[[], SameFunction]) -> tuple[UnpaddedNetwork, CapturedSteps]:
    unpadded = without_padding(network(name), "cpu", name == "bert", lambda _: True)
    assert unpadded is not None
    unpadded.capture(BUCKETS, capture)
    assert unpadded.captured is not None
    return unpadded, unpadded.captured


def steps(seed: int, types: bool) -> list[list[Ids]]:
    rng = random.Random(seed)

    def given(length: int) -> Ids:
        ids = [rng.randrange(4, 100) for _ in range(length)]
        return Ids(ids, [rng.randrange(2) for _ in ids] if types else None)

    return [[given(rng.choice([1, 3, 5, 17])) for _ in range(rng.randrange(1, 4))] for _ in range(16)]


@pytest.mark.parametrize("name", ["bert", "xlm-roberta"])
def test_a_replay_has_the_states_of_its_step_whatever_ran_before(name: str) -> None:
    made = SameFunction()
    unpadded, graphs = captured(name, lambda: made)
    plain, _ = captured(name, lambda: SameFunction())
    plain.captured = None
    with torch.inference_mode():
        for step in steps(7, name == "bert"):
            expected, _ = plain.states(plain.pack(step))
            states, moved = unpadded.states(unpadded.pack(step))
            torch.testing.assert_close(states, expected, atol=2e-5, rtol=1e-4)
            assert moved.boundaries.tolist() == [sum(moved.lengths[:n]) for n in range(len(step) + 1)]
            assert moved.lengths == tuple(len(given.ids) for given in step)
    assert len(graphs) == made.captures > 0
    assert made.replays > 2 * made.captures


def test_only_a_captured_size_is_replayed_and_sleep_drops_all() -> None:
    made = SameFunction()
    unpadded, graphs = captured("bert", lambda: made)
    short, long = [Ids([5] * 20)], [Ids([5] * 50)]
    with torch.inference_mode():
        for _ in range(USES - 1):
            unpadded.states(unpadded.pack(short))
        assert (made.captures, made.replays, len(graphs)) == (0, 0, 0)
        unpadded.states(unpadded.pack(short))
        assert (made.captures, len(graphs)) == (1, 1)
        before = made.replays
        unpadded.states(unpadded.pack(long))
        unpadded.states(unpadded.pack([Ids([5] * 64)] * 3))
        assert (made.captures, made.replays) == (1, before), "other sizes, and one larger than all buckets"
        left = unpadded.bytes_left
        unpadded.clear()
        assert len(graphs) == 0
        assert unpadded.bytes_left > left
        unpadded.states(unpadded.pack(short))
        assert (made.captures, len(graphs)) == (2, 1), "captured again, because the weights have moved"


class WrongFunction(SameFunction):
    def __call__(self, function: Callable[[], torch.Tensor]) -> tuple[Replay, int]:
        super().__call__(function)
        return lambda: torch.randn_like(function()), 1


class NoMemory(SameFunction):
    def __call__(self, function: Callable[[], torch.Tensor]) -> tuple[Replay, int]:
        super().__call__(function)
        raise torch.OutOfMemoryError("no memory")


@pytest.mark.parametrize("kind", [WrongFunction, NoMemory])
def test_a_capture_that_fails_or_differs_is_neither_used_nor_repeated(
    kind: type[SameFunction], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "roundhouse.text")
    made = kind()
    unpadded, graphs = captured("bert", lambda: made)
    given = [Ids([5, 6, 7])]
    with torch.inference_mode():
        expected, _ = unpadded.states(unpadded.pack(given))
        for _ in range(3 * USES):
            torch.testing.assert_close(unpadded.states(unpadded.pack(given))[0], expected)
    assert (made.captures, len(graphs)) == (1, 0)
    assert "get no graph" in caplog.text
    assert encoders.fallbacks(caplog.text), "the check on a GPU finds it in the log"


def test_padding_is_a_separate_input() -> None:
    unpadded, _ = captured("roberta", SameFunction)
    packing = unpadded.pack([Ids([9] * 30), Ids([8] * 40)])
    assert packing.bucket == Bucket(96, BUCKETS[2].inputs, 64)
    assert packing.boundaries.tolist() == [0, 30, 70] + [96] * (packing.bucket.inputs - 2)
    assert packing.rows.shape == (4, 96)
    assert packing.without_padding().rows.shape == (4, 70)
