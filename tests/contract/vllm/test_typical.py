"""Typical decoding in vLLM's sampler: the same tokens as transformers leaves, and only for requests that ask."""

import pkgutil
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TopKLogitsWarper, TopPLogitsWarper, TypicalLogitsWarper
from vllm import SamplingParams
from vllm.v1.sample import logits_processor
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

from models.chat.vllm import launch
from models.chat.vllm.sampling import typical
from models.chat.vllm.sampling.typical import TypicalSampling, cut

VOCABULARY = 500
NO_SETTINGS: Any = None
"""Token ids, which these warpers do not look at."""


def scores(rows: int, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * spread


def params(mass: Any = None, top_p: Any = 1.0, top_k: Any = 0) -> SamplingParams:
    extra = {"typical_p": mass, "typical_top_p": top_p, "typical_top_k": top_k}
    return SamplingParams(extra_args=extra if mass is not None else None)


def processor() -> TypicalSampling:
    return TypicalSampling(None, torch.device("cpu"), False)


def update(size: int, added: Any = (), removed: Any = (), moved: Any = ()) -> BatchUpdate:
    whole = [(index, settings, None, []) for index, settings in added]
    return BatchUpdate(batch_size=size, removed=removed, added=whole, moved=moved)


def reference(row: torch.Tensor, mass: float, top_p: float, top_k: int) -> torch.Tensor:
    """transformers' warpers in the order of `generate`, which is Text Generation Inference's too."""
    row = row.unsqueeze(0)
    if top_k:
        row = TopKLogitsWarper(top_k)(NO_SETTINGS, row)
    if top_p < 1:
        row = TopPLogitsWarper(top_p)(NO_SETTINGS, row)
    return TypicalLogitsWarper(mass)(NO_SETTINGS, row)[0]


@pytest.mark.parametrize("spread", [0.0, 0.1, 3.0, 30.0])
@pytest.mark.parametrize("mass", [0.001, 0.2, 0.5, 0.95, 0.999])
def test_the_cut_is_that_of_transformers(mass: float, spread: float) -> None:
    rows = scores(8, spread=spread)
    rows[1, 5:] = float("-inf")  # as a grammar leaves it
    rows[2, 1:] = float("-inf")
    found = cut(rows, torch.full((8,), mass))
    assert torch.equal(found, TypicalLogitsWarper(mass)(NO_SETTINGS, rows))
    assert found.isfinite().any(-1).all()


def test_the_likeliest_token_can_be_cut() -> None:
    """What tells it from top-p: its surprise of 1.2 is farther from the entropy, 3.2, than 4.0 is."""
    row = torch.tensor([[0.3, *[0.7 / 40] * 40]]).log()
    found = cut(row, torch.tensor([0.3]))
    assert found.isneginf().tolist() == [[True, *[False] * 40]]


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.8, 0), (1.0, 12), (0.8, 12), (1.0, 10 * VOCABULARY)])
def test_only_the_rows_that_ask_are_cut_each_by_its_own(top_p: float, top_k: int) -> None:
    sampling = processor()
    sampling.update_state(update(4, [(0, params()), (1, params(0.3, top_p, top_k)), (2, params()), (3, params(0.9))]))
    rows = scores(4)
    found = sampling.apply(rows.clone())
    assert torch.equal(found[[0, 2]], rows[[0, 2]])
    expected = reference(rows[1], 0.3, top_p, min(top_k, VOCABULARY))
    assert torch.equal(found[1].isneginf(), expected.isneginf())
    assert torch.equal(found[1][found[1].isfinite()], rows[1][found[1].isfinite()])
    assert torch.equal(found[3], reference(rows[3], 0.9, 1.0, 0))
    assert sampling.is_argmax_invariant()  # so greedy rows keep vLLM's greedy tokens


def test_nothing_is_touched_without_such_a_request() -> None:
    sampling, rows = processor(), scores(2)
    sampling.update_state(update(2, [(0, params()), (1, params(1.0))]))
    assert sampling.apply(rows) is rows
    sampling.update_state(update(2, [(0, params(0.2))]))
    assert sampling.apply(rows.clone()).isneginf().any()
    sampling.update_state(update(1, removed=[0]))
    assert sampling.apply(rows) is rows
    assert torch.equal(rows, scores(2))


def test_rows_that_move_take_their_wish_along() -> None:
    """Random changes of a batch against a plain list of who sits where."""
    chance = random.Random(1)
    sampling, seats = processor(), [None] * 6
    for step in range(200):
        added, removed, moved = [], [], []
        index = chance.randrange(6)
        kind = chance.choice(("add", "remove", "swap", "move", "nothing"))
        if kind == "add":
            seats[index] = chance.choice((None, 0.1, 0.5))  # type: ignore[call-overload]
            added = [(index, params(seats[index]))]
        elif kind == "remove":
            seats[index], removed = None, [index]
        elif kind in ("swap", "move"):
            other = (index + 1) % 6
            swap = kind == "swap"
            moved = [(index, other, MoveDirectionality.SWAP if swap else MoveDirectionality.UNIDIRECTIONAL)]
            seats[other], seats[index] = seats[index], seats[other] if swap else None
        sampling.update_state(update(6, added, removed, moved) if kind != "nothing" else None)
        rows = scores(6, step)
        found = sampling.apply(rows.clone())
        for seat, mass in enumerate(seats):
            expected = rows[seat] if mass is None else reference(rows[seat], mass, 1.0, 0)
            assert torch.equal(found[seat], expected), (step, seat)


@pytest.mark.parametrize("mass", ["0.5", [0.5], 0, 1, 2, -1, True, 2**63])
def test_values_that_mean_nothing_end_no_step(mass: Any) -> None:
    assert typical.settings_of(params(mass)) is None


@pytest.mark.parametrize(("top_p", "top_k"), [("x", "y"), (2**63, 2**63), (-1, -1), (None, None), (0, 2**31)])
def test_cuts_that_mean_nothing_cut_nothing(top_p: Any, top_k: Any) -> None:
    assert typical.settings_of(params(0.5, top_p, top_k)) == (0.5, 1.0, 0)


def test_it_is_put_among_vllms_own_once() -> None:
    """Not as a custom one: with these vLLM hands each request's output tokens to the sampler at every step."""
    module = SimpleNamespace(BUILTIN_LOGITS_PROCESSORS=list(logits_processor.BUILTIN_LOGITS_PROCESSORS))
    before = [kind for kind in module.BUILTIN_LOGITS_PROCESSORS if kind is not TypicalSampling]
    for _ in range(2):
        typical.patch(module)
        assert set(module.BUILTIN_LOGITS_PROCESSORS) == {*before, TypicalSampling}
        assert len(module.BUILTIN_LOGITS_PROCESSORS) == len(before) + 1


# --- vLLM's second model runner ------------------------------------------------------------------------------------
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_second_runner_cuts_what_the_first_one_cuts(temperature: float) -> None:
    """Seats as that runner has them, in any order of rows; the temperature comes after it there."""
    kind = pkgutil.resolve_name(launch.TYPICAL_V2)
    assert issubclass(kind, LogitsProcessor)
    second = kind(None, SimpleNamespace(device=torch.device("cpu")))
    wishes = {3: params(), 1: params(0.3, 0.8, 12), 2: params(0.9), 0: params(0.2)}
    for seat, wish in wishes.items():
        wish.temperature = 0.0 if seat == 0 else temperature
        assert second.add_request(seat, wish) is (seat in (1, 2)), "a greedy one is left alone"
    rows = scores(4)
    seats = [2, 0, 3, 1]
    found = second.apply(rows.clone(), SimpleNamespace(idx_mapping_np=np.array(seats)))
    first = processor()
    first.update_state(update(4, [(0, params(0.9)), (3, params(0.3, 0.8, 12))]))
    expected = first.apply(rows / temperature)
    assert torch.equal(found.isneginf(), expected.isneginf())
    assert torch.equal(found[found.isfinite()], rows[found.isfinite()])
    assert not second.add_request(1, params()), "the seat's next one asks for nothing"
    assert not second.add_request(2, params())
    assert second.apply(rows, SimpleNamespace(idx_mapping_np=np.array(seats))) is rows
