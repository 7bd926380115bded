"""Shapes that are told from config.json are those of transformers' own models."""

import json
from pathlib import Path

import pytest
import torch

from adapters.content.base_shapes import _LLAMA_LIKE, UnknownBase, layer_of, read_base

SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "pad_token_id": 0,
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(_LLAMA_LIKE))
def test_config_gives_the_shapes_of_the_real_model(kind: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM  # for this alone: 4 s of each worker that looks for tests

    config = AutoConfig.for_model(kind, **SMALL)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    real = {
        name: tuple(module.weight.shape)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and layer_of(name + ".") is not None
    }
    found = read_base(tmp_path)
    assert found.linear == real
    assert found.layers == 2


def test_an_unknown_family_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba", "hidden_size": 8}))
    with pytest.raises(UnknownBase, match="mamba"):
        read_base(tmp_path)


def test_a_changed_base_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "model_type": "llama"}))
    assert read_base(tmp_path).layers == 2
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "model_type": "llama", "num_hidden_layers": 30}))
    assert read_base(tmp_path).layers == 30
