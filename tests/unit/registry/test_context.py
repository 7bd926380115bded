"""The context length that is reported for models that are not loaded."""

import json
from pathlib import Path
from typing import Any

import pytest

from registry.files.context import context_of
from tests.unit.registry.makers import recipe

LIMITLESS = {"model_max_length": 10**30}


@pytest.mark.parametrize(
    ("task", "files", "expected"),
    [
        ("chat", {"config": {"max_position_embeddings": 512}, "tokenizer_config": LIMITLESS}, 512),
        ("chat", {"config": {"text_config": {"max_position_embeddings": 64}}}, 64),
        ("chat", {"config": {"max_position_embeddings": 512, "rope_scaling": {"factor": 4.0}}}, None),
        ("chat", {"config": {"max_position_embeddings": 512, "rope_parameters": {"rope_theta": 1e4}}}, 512),
        ("chat", {"config": {}}, None),
        ("embed", {"config": {"max_position_embeddings": 512}, "sentence_bert_config": {"max_seq_length": 256}}, 256),
        ("embed", {"config": {"max_position_embeddings": 514, "model_type": "roberta"}}, 512),
        ("rerank", {"config": {"max_position_embeddings": 512}, "tokenizer_config": {"model_max_length": 128}}, 128),
        ("rerank", {"config": [], "tokenizer_config": "odd"}, None),
        ("transcribe", {"config": {"max_position_embeddings": 448}}, None),
        ("embed", {}, None),
    ],
)
def test_the_context_is_read_from_the_files(
    tmp_path: Path, task: str, files: dict[str, Any], expected: int | None
) -> None:
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    assert context_of(recipe("m", task=task), tmp_path) == expected


def test_the_recipe_has_priority_and_files_may_change(tmp_path: Path) -> None:
    assert context_of(recipe("m", context_length=99), None) == 99
    assert context_of(recipe("m"), tmp_path) is None
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 64}')
    assert context_of(recipe("m"), tmp_path) == 64, "the file was fetched since"
    (tmp_path / "config.json").write_text("{")
    assert context_of(recipe("m"), None) is None
