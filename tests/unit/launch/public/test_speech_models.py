"""Public speech models: the proposals, and the files that are fetched."""

import pytest

from launch.conversion.process import alignment_heads
from launch.files.listing import weights_of
from launch.proposal.draft import Machine
from launch.proposal.propose import propose
from launch.proposal.text import _languages
from launch.request import ModelRequest
from models.sources.repository import is_included
from registry.recipes.fields import HubSource
from tests.unit.launch.listings import listing_of


def test_the_same_weights_in_another_width_are_not_fetched() -> None:
    """openai/whisper-large-v3 has 6 GB of these besides the 3 GB that are read."""
    sizes = {
        "model.safetensors": 3_087_130_976,
        "model.fp32-00001-of-00002.safetensors": 4_993_448_880,
        "model.fp32-00002-of-00002.safetensors": 1_180_663_192,
    }
    assert [name for name in sizes if is_included(name)] == ["model.safetensors"]
    config = {"d_model": 1280, "decoder_layers": 32, "torch_dtype": "float16"}
    assert weights_of(listing_of({"config.json": config}, sizes)).parameters == pytest.approx(1.54e9, rel=0.01)


@pytest.mark.parametrize(
    ("reported", "kept"),
    [
        ([[3, 1], [2, 0]], [[3, 1], [2, 0]]),
        ([[7, 0], [10, 1]], [[2, 0], [2, 1], [3, 0], [3, 1]]),  # a distilled one with those of its teacher
        ([[3, 5]], [[2, 0], [2, 1], [3, 0], [3, 1]]),
        ([], [[2, 0], [2, 1], [3, 0], [3, 1]]),
        (None, [[2, 0], [2, 1], [3, 0], [3, 1]]),
    ],
)
def test_times_of_words_use_only_existing_heads(reported: list[list[int]] | None, kept: list[list[int]]) -> None:
    """Missing heads crashed the process of the transcription."""
    assert alignment_heads(reported, {"decoder_layers": 4, "decoder_attention_heads": 2}) == kept


@pytest.mark.parametrize(
    ("files", "languages"),
    [
        ({"config.json": {"lang_ids": list(range(98))}, "vocabulary.json": ["x"] * 51_864}, "English only"),
        ({"config.json": {"lang_ids": list(range(98))}, "vocabulary.txt": "x\n" * 51_864}, "English only"),
        ({"config.json": {"lang_ids": list(range(99))}, "vocabulary.json": ["x"] * 51_865}, "99"),
        ({"config.json": {"vocab_size": 51_866}}, "about 100"),
        (
            {"config.json": {"vocab_size": 51_865}, "generation_config.json": {"is_multilingual": False}},
            "English only",
        ),
        ({"config.json": {}}, "not given in its files"),
    ],
)
def test_languages_come_from_the_vocabulary(files: dict[str, object], languages: str) -> None:
    """CTranslate2 writes the ids of 98 languages even into an English-only Whisper's config."""
    assert _languages(listing_of(files)) == languages


@pytest.mark.parametrize(
    ("machine", "size", "dtype", "windows"),
    [
        (Machine("cuda", 8 << 30, 90), 600_000_000, "float16", 16),
        (Machine("cpu", 8 << 30), 600_000_004, "int8", 2),
        (Machine("cpu", 8 << 30), 600_000_000, "auto", 2),
    ],
)
def test_a_whisper_is_proposed_as_its_size_and_the_device_need(
    machine: Machine, size: int, dtype: str, windows: int
) -> None:
    config = {"alignment_heads": [], "vocab_size": 51_866}
    small: dict[str, object] = {"config.json": config, "vocabulary.json": [], "tokenizer.json": {}}
    source = HubSource(hub="a/whisper", revision="0" * 40)
    found = propose(listing_of(small, {"model.bin": size}), source, ModelRequest("x"), machine)
    batching = found.recipe.batching
    assert (found.recipe.dtype, batching.max_requests, batching.max_tokens) == (dtype, windows, windows * 30)
    assert "Languages: about 100." in found.notes
