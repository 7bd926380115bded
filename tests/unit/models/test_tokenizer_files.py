"""Texts are split as tokenizer.json says, whatever class the makers named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models import tokenizer_files
from models.text import loading

pytestmark = pytest.mark.real
TEXT = "Hello, the quick\n    print(12345) café  "
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def written(folder: Path, split: Callable[[Any], Any], kind: str, name: str) -> Path:
    """Write a tokenizer of bytes. split: returns its pre-tokenizer. kind: the network's. name: the stated class."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = split(pre_tokenizers), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<end>"])
    tokenizer.train_from_iterator(4 * ["the quick brown fox", "print(12345)"], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, "eos_token": "<end>"}))
    return folder


def plain(parts: Any) -> Any:
    return parts.ByteLevel(add_prefix_space=False)


def digits(parts: Any) -> Any:
    return parts.Sequence([parts.Digits(individual_digits=True), plain(parts)])


def qwen(parts: Any) -> Any:
    from tokenizers import Regex

    last = parts.ByteLevel(add_prefix_space=False, use_regex=False)
    return parts.Sequence([parts.Split(Regex(QWEN), "isolated"), last])


@pytest.mark.parametrize(
    ("split", "kind", "name"),
    [
        (qwen, "llama", "LlamaTokenizerFast"),  # DeepSeek-R1-Distill-Llama: all blanks were lost
        (digits, "llama", "GPT2Tokenizer"),  # SmolLM2: numbers had other tokens
        (digits, "starcoder2", "GPT2Tokenizer"),
        (plain, "qwen2", "PreTrainedTokenizerFast"),  # a network of Qwen's kind with another tokenizer
        (qwen, "qwen2", "Qwen2Tokenizer"),
    ],
)
def test_texts_are_split_as_in_the_file(split: Callable[[Any], Any], kind: str, name: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    loading.import_library()
    folder = written(tmp_path, split, kind, name)
    loaded = AutoTokenizer.from_pretrained(str(folder))
    expected = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT)
    assert loaded.convert_ids_to_tokens(loaded(TEXT)["input_ids"]) == expected.tokens
    assert loaded.decode(expected.ids) == TEXT
    assert (type(loaded).__name__ == "Qwen2Tokenizer") == (name == "Qwen2Tokenizer"), "replaced only if it differs"
    assert loaded.eos_token == "<end>"


def test_tokenizers_of_sentencepiece_are_left_alone(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, LlamaTokenizer

    tokenizer_files.patch()
    tokenizer = LlamaTokenizer(vocab={"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3, "a": 4}, merges=[])
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert type(AutoTokenizer.from_pretrained(str(tmp_path))) is LlamaTokenizer


def test_texts_are_normalized_as_in_the_file(tmp_path: Path) -> None:
    """DeBERTa 3's rerankers had no token for a whole word with an ellipsis or a full-width letter."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import AutoTokenizer, DebertaV2Tokenizer

    loading.import_library()
    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "▁a", ".", "B"]
    tokenizer = Tokenizer(models.Unigram([(word, -float(number)) for number, word in enumerate(words)], 3))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.NFKC()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deberta-v2"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "DebertaV2TokenizerFast"}))
    loaded = AutoTokenizer.from_pretrained(str(tmp_path))
    assert loaded.tokenize("a…Ｂ") == ["▁a", ".", ".", ".", "B"]
    assert loaded.model_input_names == DebertaV2Tokenizer.model_input_names
