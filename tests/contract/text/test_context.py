"""The longest input of a network is the same by the library and by its files alone."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from models.text.loading import context_of
from registry.errors import EngineFailed
from registry.files import context
from tests.contract.text.fixtures import recipe

pytestmark = pytest.mark.real


class Model(list[SimpleNamespace]):
    """The part of a SentenceTransformer that is used here."""

    max_seq_length: int


@pytest.mark.parametrize("max_length", [10**30, 514, 512, 256])
@pytest.mark.parametrize(
    ("kind", "positions"),
    [
        ("Camembert", 512),
        ("Roberta", 512),
        ("XLMRoberta", 512),
        ("MPNet", 512),
        ("Longformer", 512),
        ("XLMRobertaXL", 512),
        ("Bert", 514),
    ],
)
def test_padding_takes_positions_in_models_like_roberta(
    tmp_path: Path, kind: str, positions: int, max_length: int
) -> None:
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
        max_position_embeddings=514, pad_token_id=1, attention_window=2,
    )  # fmt: skip
    model = Model([SimpleNamespace(model=getattr(transformers, f"{kind}Model")(config))])
    model.max_seq_length = max_length
    assert context_of(recipe("embed"), model) == min(max_length, positions)
    assert context_of(recipe("embed", context_length=positions), model) == positions
    with pytest.raises(EngineFailed, match=f"is {positions + 1}, but the model has {positions} positions"):
        context_of(recipe("embed", context_length=positions + 1), model)

    config.save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": max_length}))
    assert context.context_of(recipe("embed"), tmp_path) == min(max_length, positions)
