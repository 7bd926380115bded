"""Whatever is in a repository's files, adding its model ends in a proposal or a refusal, never in an error of ours."""

import contextlib
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from launch.checks.checker import FileChecker
from launch.proposal.draft import Machine
from launch.proposal.propose import propose
from launch.request import ModelRequest
from registry.errors import RoundhouseError, Unfit
from registry.recipes.fields import HubSource
from tests.unit.launch.listings import listing_of
from tests.unit.launch.public.known_models import CHAT
from tests.unit.registry.makers import recipe

GIB = 2**30
SOURCE = HubSource(hub="some/model", revision="0" * 40)
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 2**63, 10**400, 1e308, 0.5, "", "x", "7" * 5_000, "\ud800", [], [[]], {}, {"a": None}, ["x"] * 3,
)  # fmt: skip
"""Odd values of a field. JSON does not bound numbers."""
FILES = ("config.json", "modules.json", "tokenizer_config.json", "generation_config.json", "adapter_config.json",
         "config_sentence_transformers.json", "sentence_bert_config.json", "preprocessor_config.json",
         "model.safetensors.index.json", "1_Pooling/config.json")  # fmt: skip
KINDS: tuple[dict[str, Any], ...] = (
    {"architectures": ["BertModel"], "hidden_size": 64, "max_position_embeddings": 512, "num_hidden_layers": 2},
    {"architectures": ["BertForSequenceClassification"], "num_labels": 1, "id2label": {"0": "a"}, "hidden_size": 64},
    {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "d_model": 64, "decoder_layers": 2},
    {"suppress_ids": [], "lang_ids": [], "d_model": 64},
    *(known.config for known in CHAT[:6]),
)


def changed(value: Any, random: Random) -> Any:
    """Return the value with one part changed, at the top or deeper."""
    if isinstance(value, dict) and value:
        name = random.choice(sorted(value))
        deeper = isinstance(value[name], dict | list) and random.random() < 0.5
        return {**value, name: changed(value[name], random) if deeper else random.choice(ODD)}
    if isinstance(value, list) and value:
        at = random.randrange(len(value))
        return [*value[:at], changed(value[at], random), *value[at + 1 :]]
    return random.choice(ODD)


@pytest.mark.parametrize("seed", range(0, 3_000, 100))
def test_odd_files_end_in_a_proposal_or_a_refusal(seed: int) -> None:
    for number in range(seed, seed + 100):
        random = Random(number)
        config = dict(random.choice(KINDS))
        for _ in range(random.choice((1, 1, 2, 4))):
            config = changed(config, random)
        small: dict[str, Any] = {"config.json": config}
        if random.random() < 0.3:
            small[random.choice(FILES)] = random.choice(
                (*ODD, '{"a":' * 5_000, "\ufeff{}", "[", {"modules": 5}, [{"type": 5}])
            )
        weights = random.choice(("model.safetensors", "model.bin", "model-00001-of-00002.safetensors"))
        large = {weights: 10**9, "tokenizer.json": 9}
        listing = listing_of({name: json.dumps(value) for name, value in small.items()}, large)
        machine = random.choice((Machine("cuda", 68 * GIB, 90), Machine("cpu", 16 * GIB)))
        with contextlib.suppress(RoundhouseError):
            propose(listing, SOURCE, ModelRequest("x", id="m"), machine)


async def test_no_number_of_broken_files_is_too_many_for_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process answers in one line, whose length is bounded."""
    monkeypatch.setattr("launch.checks.checker._mark", lambda *_: None)
    for number in range(5_000):
        (tmp_path / f"sentence_{number:0200}.json").touch()
    with pytest.raises(Unfit, match=r"sentence_0+\.json is not JSON") as refused:
        await FileChecker().check(recipe("m"), tmp_path)
    assert 1 < len(refused.value.faults) <= 100
