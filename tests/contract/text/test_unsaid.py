"""Models whose files leave something unsaid, as people have them: served as they were meant, or refused with why."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from models.messages import EmbedRequest, RerankRequest
from models.text.embeddings import EmbeddingEngine
from models.text.rerank import RerankingEngine
from registry.errors import EngineFailed
from tests.contract.text.fixtures import Reports, minilm, recipe, text

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]
SIZES = {
    "vocab_size": 30522, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 128, "initializer_range": 0.3,
}  # fmt: skip
QUERY, DOCUMENTS = "which brake stops the engine?", ["steam", text(30), text(9, 4)]
ASKED = RerankRequest(query=QUERY, documents=DOCUMENTS)


def write(folder: Path, network: Any, tokenizer: dict[str, Any] | None = None, **config: Any) -> Path:
    """A network with MiniLM's tokenizer. tokenizer: what its config says besides. config: of the network, changed."""
    network.save_pretrained(folder)
    own = Tokenizer.from_file(str(minilm() / "tokenizer.json"))
    own.no_padding()
    own.no_truncation()
    own.save(str(folder / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 128, "unk_token": "[UNK]"}
    named = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = {"model_input_names": ["input_ids", "attention_mask"]}
    told = {**said, **named, **inputs, **(tokenizer or {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return folder


def bert(**more: Any) -> Any:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    return BertModel(BertConfig(**{**SIZES, **more}))


def bert_scorer() -> Any:
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(3)
    return BertForSequenceClassification(BertConfig(**SIZES, num_labels=1))


def rename(folder: Path, change: Callable[[str], str | None]) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    kept = {new: tensor for name, tensor in load_file(file).items() if (new := change(name))}
    save_file(kept, file, {"format": "pt"})


async def vectors(folder: Path, texts: Sequence[str]) -> Any:
    engine = EmbeddingEngine()
    await engine.load(recipe("embed"), folder, "cpu", Reports())
    try:
        found, _ = await engine.embed(EmbedRequest(inputs=list(texts), normalize=False))
    finally:
        await engine.close()
    return np.frombuffer(found.vectors, "<f4").reshape(len(texts), -1)


async def logits(folder: Path) -> list[float]:
    engine = RerankingEngine()
    await engine.load(recipe("rerank"), folder, "cpu", Reports())
    try:
        return (await engine.rerank(ASKED))[0].logits
    finally:
        await engine.close()


async def test_weights_that_no_file_has_are_not_made_by_chance(tmp_path: Path) -> None:
    """As when a whole SentenceTransformer's state was saved, or a head was left out."""
    folder = write(tmp_path / "prefix", bert())
    rename(folder, lambda name: f"0.auto_model.{name}")
    with pytest.raises(EngineFailed, match=r"lack \d+ of the weights of a BertModel, such as embeddings"):
        await vectors(folder, ["steam"])
    folder = write(tmp_path / "head", bert_scorer())
    rename(folder, lambda name: None if "classifier" in name else name)
    with pytest.raises(EngineFailed, match=r"lack 2 .* BertForSequenceClassification, such as classifier\.bias"):
        await logits(folder)
    whole = await vectors(write(tmp_path / "whole", bert()), ["steam"])
    folder = write(tmp_path / "unread", bert())
    rename(folder, lambda name: None if name.startswith("pooler.") else name)
    np.testing.assert_allclose(await vectors(folder, ["steam"]), whole, atol=1e-6)


async def test_a_token_in_every_text_that_the_network_lacks_is_told_at_the_load(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", bert(vocab_size=102))
    with pytest.raises(EngineFailed, match=r"writes '.*' \(\d+\) into every text, but its network has 102"):
        await vectors(folder, ["steam"])
