"""The shipped router reaches its figures on held-out inputs, with the embedding model and by letters alone."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from routing.intents.model import OUT, IntentModel, from_bytes
from routing.intents.spelling import mistyped, recased
from starter_training import cards, figures
from starter_training.routing.examples import held_out
from starter_training.routing.train import embed, measure

pytestmark = pytest.mark.real
NAME, FEW = "auto", 6
"""Inputs of each route that are tested with the embedding model; the figures are from 60."""


@pytest.fixture(scope="module")
def section() -> figures.Section:
    return figures.load()[NAME]


@pytest.fixture(scope="module")
def model() -> IntentModel:
    found = from_bytes((figures.PACK / NAME / "intents.safetensors").read_bytes())
    assert isinstance(found, IntentModel)
    return found


def test_the_weights_are_those_that_were_measured(section: figures.Section) -> None:
    assert figures.changed(figures.PACK, section) == []


def test_the_card_is_written_from_the_figures() -> None:
    assert (figures.PACK / NAME / "CARD.md").read_text() == cards.card(NAME, figures.PACK)


def test_its_figures_are_good_enough(section: figures.Section) -> None:
    measured = section["measured"]
    assert measured["both"]["right"] >= 0.97
    assert measured["both"]["abstained"] >= 0.90
    assert measured["typed"]["right"] >= 0.92, "with typing errors and changed capitals"


def test_letters_alone_reach_their_figures(section: figures.Section, model: IntentModel) -> None:
    examples = held_out(60)
    assert len(examples) == section["measured"]["inputs"]
    assert measure(model, examples, None) == pytest.approx(section["measured"]["letters"], abs=0.005)


def test_the_embedding_model_reaches_its_figures(section: figures.Section, model: IntentModel) -> None:
    examples, rng = held_out(FEW), Random(7)
    found = measure(model, examples, embed([e.text for e in examples]))
    expected: dict[str, Any] = section["measured"]["both"]
    for name, among in (("right", len(examples) // 2), ("abstained", len(examples) // 2)):
        assert found[name] >= expected[name] - figures.spread(expected[name], among)
    typed = [recased(mistyped(e.text, rng), rng) for e in examples if e.label != OUT]
    looked = embed(typed)
    same = sum(
        model.predict(text, vector).label == e.label
        for text, vector, e in zip(typed, looked, (e for e in examples if e.label != OUT), strict=True)
    )
    assert same / len(typed) >= 0.92
