"""A grammar that uses more than its share of the steps ends its own request, and a cheap one never does."""

import time

import pytest

from models.chat.vllm import grammars
from registry.bounds import USUAL

FOLLOW, EACH = USUAL.follow_seconds, USUAL.follow_token_seconds


class Grammar:
    """Uses CPU time of its thread, regardless of the machine's load."""

    def __init__(self, accept: float = 0.0, fill: float = 0.0) -> None:
        self.accept, self.fill = accept, fill
        self.name = "its own"

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        burn(self.accept)
        return tokens != [-1]

    def fill_bitmask(self, bitmask: object, row: int) -> None:
        burn(self.fill)


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.parametrize(("accept", "fill"), [(0.05, 0.0), (0.0, 0.05), (0.03, 0.03)])
def test_a_request_ends_when_its_allowance_is_used_up(accept: float, fill: float) -> None:
    watched, steps = grammars.TimedGrammar(Grammar(accept, fill), FOLLOW, EACH), 0
    while not watched.overspent:
        watched.fill_bitmask(None, 0)
        accepted = watched.accept_tokens("r", [1])
        steps += 1
    assert not accepted
    assert steps <= FOLLOW / (accept + fill - EACH) + 1


def test_a_small_cost_per_token_is_allowed_forever() -> None:
    watched = grammars.TimedGrammar(Grammar(accept=EACH / 10), FOLLOW, EACH)
    assert all(watched.accept_tokens("r", [1]) for _ in range(300))


def test_the_grammars_own_refusal_is_kept() -> None:
    watched = grammars.TimedGrammar(Grammar(), FOLLOW, EACH)
    assert not watched.accept_tokens("r", [-1])
    assert watched.name == "its own"


def test_the_time_of_all_grammars_is_bounded_and_refilled() -> None:
    """Many sequences do not get more of it, and cheap grammars go on beside expensive ones."""
    now = 0.0
    shared = grammars.SharedBudget(FOLLOW, lambda: now)
    cost = EACH + FOLLOW / 4
    many = [grammars.TimedGrammar(Grammar(accept=cost), FOLLOW, EACH, shared) for _ in range(12)]
    assert [one.accept_tokens("r", [1]) for one in many][4:] == [False] * 8
    usual = grammars.TimedGrammar(Grammar(accept=EACH / 10), FOLLOW, EACH, shared)
    assert all(usual.accept_tokens("r", [1]) for _ in range(3))
    late = grammars.TimedGrammar(Grammar(accept=cost), FOLLOW, EACH, shared)
    now += 2 * FOLLOW / grammars.REFILLED
    assert late.accept_tokens("r", [1])
